"""Errors for input that cannot be used and for failed searches, and texts for messages.

`MAX_LISTED` is the number of errors of a batch that are listed; the rest are counted.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from os import PathLike
from typing import Self

_MAX_LINE_CHARACTERS = 1000  # characters of an error in a list
_MAX_WORD_CHARACTERS = 100  # characters that are compared, because the time grows with their square
_MIN_SIMILARITY = 0.6  # similarity of two names from which on one is suggested for the other
MAX_LISTED = 20  # input errors of a batch that are listed; the rest are counted


class InputError(ValueError):
    """Error for input that cannot be used; the command line prints its text and exits.

    The text is one sentence: file, record and position, what is wrong, and what to do. `record` is the name of the
    record that the sentence is about, if it is about one.
    """

    record: str | None = None
    is_temporary = False  # whether only a server is unavailable, so that the same input may be used later

    @property
    def lines(self) -> list[str]:
        """Return the lines in which the error is printed: one with its text."""
        return [str(self)]

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
        """Return an error with the text "PATH, line, column, record: PROBLEM"; places that are None are left out.

        `line` and `column` count from 1, and `record` is also stored.
        """
        quoted = None if record is None else f"'{printable(record)}'"
        places = (("line", line), ("column", column), ("record", quoted))
        place = "".join(f", {what} {where}" for what, where in places if where is not None)
        error = cls(f"{printable(str(path))}{place}: {problem}")
        error.record = record
        return error


class BatchInputError(InputError):
    """Errors in the input of a batch; the text has a line for each of the first `MAX_LISTED` different ones.

    The last line ends with `advice`.
    """

    def __init__(self, errors: Sequence[InputError], advice: str = "") -> None:
        self.errors, self.advice = tuple(errors), advice
        super().__init__(self.errors, advice)  # with which it is pickled

    @property
    def lines(self) -> list[str]:
        """Return a line for each of the first `MAX_LISTED` different errors, and one that counts the others."""
        *lines, last = _lines(self.errors)
        return [*lines, last + self.advice]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def _lines(errors: Iterable[InputError]) -> list[str]:
    """Return a shortened line for each different error, at most `MAX_LISTED`, and a line with the number of others."""
    texts = list(dict.fromkeys(printable(str(error), _MAX_LINE_CHARACTERS) for error in errors))
    more = [f"... and {len(texts) - MAX_LISTED:,} more"] if len(texts) > MAX_LISTED else []
    return [*texts[:MAX_LISTED], *more]


class InputProblems:
    """Collects the errors in the input of a batch, so that one target's errors do not hide another's.

    `advice` ends the error that `raise_all` raises.
    """

    def __init__(self) -> None:
        self._errors: list[tuple[str, InputError]] = []
        self.advice = ""

    def __len__(self) -> int:
        return len(self._errors)

    @property
    def named(self) -> Iterator[tuple[str, str]]:
        """Iterate over the errors, as pairs of a name and the text.

        The name is the error's record, else the name with which it was added, which may be "".
        """
        return ((error.record or name, str(error)) for name, error in self._errors)

    @property
    def lines(self) -> list[str]:
        """Return a line for each of the first `MAX_LISTED` different errors, and one that counts the others."""
        return _lines(error for _, error in self._errors)

    def add(self, error: InputError, name: str = "") -> None:
        """Add an error, or each of `BatchInputError`; `name` is the target or file, if the error has no record."""
        errors = error.errors if isinstance(error, BatchInputError) else (error,)
        for each in errors:
            # Tracebacks would keep the file's content in memory.
            each.__traceback__ = each.__cause__ = each.__context__ = None
            self._errors.append((name, each))

    @contextmanager
    def collected(self, name: str = "") -> Iterator[None]:
        """Context that adds an `InputError` raised in it to the collection and suppresses it.

        `name` is the target or file, if the error has no record.
        """
        try:
            yield
        except InputError as error:
            self.add(error, name)

    def raise_all(self) -> None:
        """Raise `BatchInputError` with all errors, or the first if all texts are equal and no advice is given.

        Return if there are none.
        """
        errors = [error for _, error in self._errors]
        if len(set(map(str, errors))) > 1 or (errors and self.advice):
            raise BatchInputError(errors, self.advice)
        if errors:
            raise errors[0]


@contextmanager
def input_problems(problems: InputProblems | None = None) -> Iterator[InputProblems]:
    """Context that yields a collection for the errors of single targets.

    If `problems` is passed, it is yielded, and the caller handles its errors. Otherwise, all collected errors are
    raised together at the end of the block.
    """
    if problems is not None:
        yield problems
        return
    own = InputProblems()
    with own.collected():
        yield own
    own.raise_all()


class TooLargeError(InputError):
    """Error for a valid alignment that is too large; fewer rows of it can be read."""


class DiskFullError(OSError):
    """Error for a file that does not fit on a full disk or into a quota; the text is one sentence with advice."""

    @classmethod
    def at(cls, path: str | PathLike[str], errno: int) -> Self:
        """Return the error for a file, with the system's error number."""
        return cls(errno, f"{os.strerror(errno)}; free some space, then run the same command again", os.fspath(path))

    def __str__(self) -> str:
        return f"{printable(str(self.filename))}: {self.strerror}"


class SearchError(RuntimeError):
    """Error for a search, or another external program, that failed; the text is the reason.

    For a program, the text has its command, exit code and last output.
    """


class ServerUnavailableError(SearchError):
    """Error for a search on a server that this run does not use any more, because it failed before or just now."""


class RequestError(Exception):
    """Error for an HTTP request without a usable answer; the text is the reason."""


class RequestTimeoutError(RequestError):
    """Error for an answer that is incomplete at the time limit of its request."""


class UnusableAnswerError(RequestError):
    """Error that a retry cannot fix: a wrong address, certificate or redirect, or an answer that is too large."""


class ConnectionFailedError(RequestError):
    """Error for a connection that fails, or ends before the answer is complete; a retry may succeed."""


class NoNetworkError(ConnectionFailedError):
    """Error for a server whose name cannot be resolved, or that the network does not reach."""


def printable(text: str, limit: int = 200) -> str:
    """Return text from a file in a form that is safe to print on one line of a terminal.

    Characters that cannot be printed are escaped, and text longer than `limit` characters is cut and ends in "...".
    """
    start = text[: limit + 1]  # texts from files may have millions of characters
    safe = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in start)
    return safe if len(safe) <= limit else f"{safe[:limit]}..."


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean X?" with the choice that is most similar to a word, or "" if none is similar.

    The similarity counts letters and whole words: `--least-plddt` is more similar to `--min-plddt` than `--min-length`.
    """
    word = word[:_MAX_WORD_CHARACTERS].casefold()
    near: dict[str, float] = {}
    for choice in choices:
        letters, words = _likeness(word, choice.casefold())
        if max(letters, words) >= _MIN_SIMILARITY:
            near[choice] = 2 * letters + words
    return f"; did you mean {max(near, key=near.__getitem__)}?" if near else ""


def _likeness(one: str, other: str) -> tuple[float, float]:
    """Return the similarities of two names (0 to 1) by letters in order, and by whole words, ignoring plurals."""
    words = [{word.removesuffix("s") for word in re.findall(r"[^\W_]+", name)} for name in (one, other)]
    total, common = (sum(map(len, each)) for each in ([*words[0], *words[1]], words[0] & words[1]))
    return SequenceMatcher(None, one, other).ratio(), 2 * common / max(1, total)


def choice_problem(value: object, choices: Iterable[object]) -> str:
    """Return "must be one of ..., got ..." for a wrong value, with a suggestion if a choice is similar.

    The value is not compared with the choices.
    """
    words = [str(choice) for choice in choices]
    hint = did_you_mean(value, words) if isinstance(value, str) else ""
    return f"must be one of {', '.join(words)}, got {printable(repr(value), 80)}{hint}"


def error_reason(error: OSError | ValueError) -> str:
    """Return the operating system's message without error number and path.

    A path that contains a NUL raises `ValueError`, for which Python's own message is returned.
    """
    return (isinstance(error, OSError) and error.strerror) or str(error)
