"""Checked reading of the JSON files in a target's directory, which may be damaged or written by other programs."""

import json
import sys
from pathlib import Path
from typing import Any, TypeVar

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.json_files import read_json

AGAIN = "fold the target again with --overwrite"
_Value = TypeVar("_Value", str, bool, int, float, list[Any])
_WORDS: dict[type, str] = {str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list"}


class JsonObject:
    """JSON object whose fields are read with the type that they must have; any other value raises `InputError`.

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
        return cls(path, read_json(path, AGAIN))

    def get(self, key: str, kind: type[_Value], default: _Value | None = None) -> _Value:
        """Return a field of type str, bool, int, float (any finite number) or list."""
        found = self.content.get(key)
        if found is None:
            if default is None:
                raise self._error(key, "is missing")
            return default
        if not _fits(found, kind):
            raise self._error(key, f"{_WORDS[kind]} is expected, got {_short(found)}")
        return kind(found)

    def optional_number(self, key: str) -> float | None:
        """Return a finite number, or None if it is missing or null."""
        return None if self.content.get(key) is None else self.get(key, float)

    def list_of(self, key: str, kind: type[_Value], default: list[Any] | None = None) -> tuple[_Value, ...]:
        """Return a list whose items are all of one type, as for `get`."""
        found = self.get(key, list, default)
        if not all(_fits(item, kind) for item in found):
            raise self._error(key, f"a list of {_WORDS[kind].removeprefix('a ')}s is expected")
        return tuple(map(kind, found))

    def children(self, key: str) -> list["JsonObject"]:
        """Return a list of objects; it is empty if the field is missing."""
        return [
            JsonObject(self.path, item, f"{self._name(key)}[{number}]")
            for number, item in enumerate(self.get(key, list, []))
        ]

    def child(self, key: str) -> "JsonObject":
        """Return an object; it is empty if the field is missing."""
        found = self.content.get(key)
        return JsonObject(self.path, {} if found is None else found, self._name(key))

    def _name(self, key: str) -> str:
        return f"{self.place}.{printable(key)}" if self.place else printable(key)

    def _error(self, key: str, problem: str) -> InputError:
        name = self._name(key) if key else self.place
        return InputError.at(self.path, f"{name}: {problem}; {AGAIN}" if name else f"{problem}; {AGAIN}")


def _fits(found: Any, kind: type) -> bool:
    if kind is float and type(found) in (int, float):
        return abs(found) <= sys.float_info.max  # neither NaN nor infinite, nor an integer beyond every float
    return type(found) is kind


def _short(found: object) -> str:
    return printable(json.dumps(found), 40)
