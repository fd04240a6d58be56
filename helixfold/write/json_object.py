"""Checked reading of the JSON files in a target's directory, which may be damaged or written by other programs."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.errors import InputError, printable

_MAX_BYTES = 2**28
_AGAIN = "fold the target again with --overwrite"


class JsonObject:
    """JSON object whose methods return fields of one type each, and raise `InputError` for any other value.

    A field that is missing or null has the given default; without a default it is an error.
    """

    def __init__(self, path: Path, content: object, place: str = "") -> None:
        self.path, self.place = path, place
        if not isinstance(content, dict):
            raise self._error("", f"an object is expected, got {_short(content)}")
        self.content: dict[str, Any] = content

    @classmethod
    def read(cls, path: Path) -> "JsonObject":
        """Read the object in a file."""
        return cls(path, read_json(path))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        return str(self._checked(key, default, lambda found: isinstance(found, str), "text"))

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        return float(self._checked(key, default, _is_number, "a number"))

    def optional_number(self, key: str) -> float | None:
        """Return a finite number, or None if it is missing or null."""
        return None if self.content.get(key) is None else self.number(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer."""
        return int(self._checked(key, default, lambda found: type(found) is int, "a whole number"))

    def numbers(self, key: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return a list of finite numbers."""
        found = self.items(key, default)
        if not all(map(_is_number, found)):
            raise self._error(key, "a list of numbers is expected")
        return tuple(map(float, found))

    def texts(self, key: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return a list of strings."""
        found = self.items(key, default)
        if not all(isinstance(item, str) for item in found):
            raise self._error(key, "a list of texts is expected")
        return tuple(found)

    def items(self, key: str, default: Sequence[object] | None = None) -> list[Any]:
        """Return a list of any values."""
        return list(self._checked(key, default, lambda found: isinstance(found, list | tuple), "a list"))

    def children(self, key: str) -> list["JsonObject"]:
        """Return a list of objects; it is empty if the field is missing."""
        return [
            JsonObject(self.path, item, f"{self._name(key)}[{number}]")
            for number, item in enumerate(self.items(key, ()))
        ]

    def child(self, key: str) -> "JsonObject":
        """Return an object; it is empty if the field is missing."""
        return JsonObject(self.path, self._get(key, {}), self._name(key))

    def _checked(self, key: str, default: object, is_right: Callable[[Any], bool], expected: str) -> Any:
        found = self._get(key, default)
        if not is_right(found):
            raise self._error(key, f"{expected} is expected, got {_short(found)}")
        return found

    def _get(self, key: str, default: object) -> Any:
        found = self.content.get(key)
        if found is None and default is None:
            raise self._error(key, "is missing")
        return default if found is None else found

    def _name(self, key: str) -> str:
        return f"{self.place}.{printable(key)}" if self.place else printable(key)

    def _error(self, key: str, problem: str) -> InputError:
        name = self._name(key) if key else self.place
        return InputError.at(self.path, f"{name}: {problem}; {_AGAIN}" if name else f"{problem}; {_AGAIN}")


def read_json(path: Path, max_bytes: int = _MAX_BYTES) -> object:
    """Return the content of a JSON file. Raise `InputError` if it cannot be read, is too large or not JSON."""
    try:
        if (size := path.stat().st_size) > max_bytes:
            raise InputError.at(path, f"it has {size:,} bytes, and at most {max_bytes:,} are read")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InputError.at(path, f"cannot be read: {error.strerror}") from error
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError.at(path, f"not a complete JSON file ({printable(str(error))}); {_AGAIN}") from error


def _is_number(found: object) -> bool:
    try:
        return isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
    except OverflowError:  # an integer beyond every float
        return False


def _short(found: object) -> str:
    return printable(json.dumps(found), 40)
