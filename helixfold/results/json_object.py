"""Read JSON files in a target's directory with checks, because they may be damaged or from other programs.

`AGAIN` is the advice at the end of error messages: to fold the target again.
"""

import json
import sys
from pathlib import Path
from typing import Any, TypeVar

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.json_files import read_json

# Advice at the end of messages about damaged files.
AGAIN = "fold the target again with --overwrite"
_Value = TypeVar("_Value", str, bool, int, float, list[Any])
_TYPE_WORDS: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
}


class JsonObject:
    """JSON object whose fields are read with type checks; a value of another type raises `InputError`.

    A missing or null field has the default value; without a default it raises `InputError`. `place` is the object's
    place in the file, for messages.
    """

    def __init__(self, path: Path, content: object, place: str = "") -> None:
        self.path, self.place = path, place
        if not isinstance(content, dict):
            raise self._error("", f"expected an object, got {_short(content)}")
        self.content: dict[str, Any] = content

    @classmethod
    def read(cls, path: Path) -> "JsonObject":
        """Read the object in a file. Raise `InputError` if it is missing or damaged."""
        return cls(path, read_json(path, AGAIN))

    def get(self, key: str, kind: type[_Value], default: _Value | None = None) -> _Value:
        """Return a field of type str, bool, int, float (any finite number) or list."""
        value = self.content.get(key)
        if value is None:
            if default is None:
                raise self._error(key, "is missing")
            return default
        if not _fits(value, kind):
            raise self._error(key, f"expected {_TYPE_WORDS[kind]}, got {_short(value)}")
        return kind(value)

    def optional_number(self, key: str) -> float | None:
        """Return a finite number, or None if it is missing or null."""
        return None if self.content.get(key) is None else self.get(key, float)

    def list_of(self, key: str, kind: type[_Value], default: list[Any] | None = None) -> tuple[_Value, ...]:
        """Return the items of a list, which must all be of the type `kind`, as for `get`.

        A missing list has the items of `default`; without a default it raises `InputError`.
        """
        items = self.get(key, list, default)
        if not all(_fits(item, kind) for item in items):
            raise self._error(key, f"expected a list of {_TYPE_WORDS[kind].removeprefix('a ')}s")
        return tuple(map(kind, items))

    def children(self, key: str) -> list["JsonObject"]:
        """Return a list of objects; it is empty if the field is missing or null."""
        return [
            JsonObject(self.path, item, f"{self._name(key)}[{index}]")
            for index, item in enumerate(self.get(key, list, []))
        ]

    def child(self, key: str) -> "JsonObject":
        """Return a nested object; it is empty if the field is missing or null."""
        content = self.content.get(key)
        return JsonObject(self.path, {} if content is None else content, self._name(key))

    def _name(self, key: str) -> str:
        return f"{self.place}.{printable(key)}" if self.place else printable(key)

    def _error(self, key: str, problem: str) -> InputError:
        name = self._name(key) if key else self.place
        return InputError.at(self.path, f"{name}: {problem}; {AGAIN}" if name else f"{problem}; {AGAIN}")


def _fits(value: Any, kind: type) -> bool:
    if kind is float and type(value) in (int, float):
        return abs(value) <= sys.float_info.max  # False for NaN, infinity, and integers larger than any float.
    return type(value) is kind


def _short(value: object) -> str:
    return printable(json.dumps(value), 40)
