"""The one error for input that cannot be used; the command line prints it and exits."""

from os import PathLike
from typing import Self


class InputError(ValueError):
    """The caller's input is wrong; the text is one sentence: file, record, position, what is wrong, what to do."""

    @classmethod
    def at(
        cls,
        path: str | PathLike[str],
        problem: str,
        *,
        line: int | None = None,
        column: int | None = None,
        record: str | None = None,
    ) -> Self:
        """The error for one place in a file; lines and columns count from 1."""
        shown = None if record is None else f"'{printable(record)}'"
        places = (("line", line), ("column", column), ("record", shown))
        place = "".join(f", {what} {where}" for what, where in places if where is not None)
        return cls(f"{printable(str(path))}{place}: {problem}")


class SearchError(RuntimeError):
    """A search tool failed on one target; the text names command, exit code and the end of what it printed."""


def printable(text: str, limit: int = 200) -> str:
    """Text from a file, fit for one line of a terminal: control characters escaped, at most `limit` characters."""
    shown = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
    return shown if len(shown) <= limit else f"{shown[:limit]}..."


def error_reason(error: OSError | ValueError) -> str:
    """What the system says is wrong, without number and path; paths with a NUL are a ValueError, in Python's words."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def check_at_least(settings: object, error: type[ValueError] = ValueError, **least: float) -> None:
    """Raise `error` for the first of these settings that is less than it may be, or NaN."""
    for name, limit in least.items():
        if not getattr(settings, name) >= limit:
            raise error(f"{name} must be at least {limit}, got {getattr(settings, name)}")


def check_fractions(settings: object, *names: str, error: type[ValueError] = ValueError) -> None:
    """Raise `error` for the first of these settings that is not within 0..1."""
    for name in names:
        if not 0 <= getattr(settings, name) <= 1:
            raise error(f"{name} must be within 0..1, got {getattr(settings, name)}")
