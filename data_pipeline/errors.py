"""Errors for input that cannot be used and for failed searches, and checks of settings."""

import os
from os import PathLike
from typing import Self


class InputError(ValueError):
    """Error for input that cannot be used; the command line prints its text and exits.

    The text is one sentence: file, record and position, what is wrong, and what to do.
    """

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
        """Return an error for a problem at a place in a file; `line` and `column` count from 1."""
        shown = None if record is None else f"'{printable(record)}'"
        places = (("line", line), ("column", column), ("record", shown))
        place = "".join(f", {what} {where}" for what, where in places if where is not None)
        return cls(f"{printable(str(path))}{place}: {problem}")


class TooLargeError(InputError):
    """Error for input that is sound, but more than is read; fewer rows of it can be."""


class DiskFullError(OSError):
    """Error for a file for which a disk or a quota has no room; the text is one sentence, with what to do."""

    @classmethod
    def at(cls, path: str | PathLike[str], number: int) -> Self:
        """Return the error for a file, with the system's error number."""
        return cls(number, f"{os.strerror(number)}; free some space, then run the same command again", os.fspath(path))

    def __str__(self) -> str:
        return f"{printable(str(self.filename))}: {self.strerror}"


class SearchError(RuntimeError):
    """Error for a search tool that failed on one target; the text has command, exit code and last output."""


class ServerUnavailableError(SearchError):
    """Error for a search on a server that answers no search of this run any more."""


class RequestError(Exception):
    """Error for a request without a usable answer; the text says why."""


class RequestTimeoutError(RequestError):
    """Error for an answer that is not complete when the time of its request is over."""


class UnusableAnswerError(RequestError):
    """Error that no other attempt would mend: a wrong address, certificate or redirect, or an answer too large."""


class ConnectionFailedError(RequestError):
    """Error for a connection that cannot be made, or ends before the answer does."""


class NoNetworkError(ConnectionFailedError):
    """Error for a server whose name is not known, or to which no network leads."""


def printable(text: str, limit: int = 200) -> str:
    """Return text from a file in a form that is safe to print on one line of a terminal.

    Control characters are escaped, and text longer than `limit` characters is cut.
    """
    begun = text[: limit + 1]  # a text from elsewhere may have millions of characters
    shown = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in begun)
    return shown if len(shown) <= limit else f"{shown[:limit]}..."


def error_reason(error: OSError | ValueError) -> str:
    """Return the operating system's message without error number and path.

    A path that contains a NUL raises `ValueError`, for which Python's own message is returned.
    """
    return (isinstance(error, OSError) and error.strerror) or str(error)


def check_at_least(settings: object, error: type[ValueError] = ValueError, **least: float) -> None:
    """Raise `error` for the first named setting that is NaN or below its minimum in `least`; None is accepted."""
    for name, limit in least.items():
        value = getattr(settings, name)
        if value is not None and not value >= limit:
            raise error(f"{name} must be at least {limit}, got {value}")


def check_at_most(settings: object, error: type[ValueError] = ValueError, **most: int) -> None:
    """Raise `error` for the first named setting that is above its maximum in `most`; None is accepted."""
    for name, limit in most.items():
        value = getattr(settings, name)
        if value is not None and value > limit:
            raise error(f"{name} must be at most {limit:,}, got {value}")


def check_positive(settings: object, *names: str, error: type[ValueError] = ValueError) -> None:
    """Raise `error` for the first named setting that is not a positive, finite number; None is accepted."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 < value < float("inf"):
            raise error(f"{name} must be a positive number, got {value}")


def check_fractions(settings: object, *names: str, error: type[ValueError] = ValueError) -> None:
    """Raise `error` for the first named setting that is not within 0..1; None is accepted."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 <= value <= 1:
            raise error(f"{name} must be within 0..1, got {value}")
