"""How the commands read their options: what is wrong is one sentence, with the nearest option that there is."""

import argparse
import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from data_pipeline.errors import printable

# argparse names Python's types.
_NO_NUMBER = re.compile(r"invalid (int|float) value: ")
_NUMBERS = {"int": "must be a whole number, got ", "float": "must be a number, got "}


class CommandParser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line; options are not abbreviated, so that no typo becomes another."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """Wrong options are wrong input: exit code 2."""
        message = _NO_NUMBER.sub(lambda found: _NUMBERS[found[1]], printable(message, 500))
        self.exit(2, f"helixfold: error: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, *arguments: Any, **settings: Any) -> Any:
        """As the library's, and none of the words may be left over; files may stand between options."""
        namespace, rest = super().parse_known_args(*arguments, **settings)
        if rest and hasattr(namespace, "inputs") and not any(word.startswith("-") for word in rest):
            namespace.inputs = [*namespace.inputs, *map(Path, rest)]
            rest = []
        if rest:
            self.error(self._unknown(rest))
        return namespace, rest

    def _unknown(self, rest: Sequence[str]) -> str:
        word = next((word for word in rest if word.startswith("-")), rest[0]).split("=")[0]
        shown = [name for action in self._actions for name in action.option_strings if action.help != argparse.SUPPRESS]
        near = difflib.get_close_matches(word, shown, n=1) if word.startswith("-") else []
        return f"there is no option {word}" + (f"; did you mean {near[0]}?" if near else "")
