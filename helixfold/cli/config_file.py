"""Read options of a command from a TOML file (`--config`); those on the command line override them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cyclopts import App, Argument, ArgumentCollection, Token

from data_pipeline.errors import InputError, did_you_mean, printable


class ConfigFile:
    """Source of options for cyclopts, which reads the file that `--config` names."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._inputs: list[str] = []

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Add the values of the file to arguments that are not on the command line."""
        named = next((each for each in arguments if each.name == "--config"), None)
        if named is None or not named.tokens:
            return
        from data_pipeline.toml_files import read_toml  # `--help` does without

        path = Path(named.tokens[-1].value)
        for key, value in _values(path, read_toml(path, "TOML file of options"), commands).items():
            argument = _argument_of(key, path, arguments)
            if argument is named:
                raise InputError.at(path, "a file of options cannot name another one; remove the key config")
            if any(token.source != str(path) for token in argument.tokens):
                continue
            values = value if isinstance(value, list) else [value]
            if not all(isinstance(each, str | bool | int | float) or hasattr(each, "isoformat") for each in values):
                raise InputError.at(
                    path, f"{key}: expected a value or a list of values, got a table or a list of lists"
                )
            count, is_list = argument.token_count()
            if isinstance(value, list) and not is_list and len(value) != count:
                raise InputError.at(path, f"{key}: must be one value, got a list of {len(value)}")
            for token in _tokens(key, values, str(path)):
                argument.append(token)
            if argument.name.startswith("-"):
                self._words += _words(argument, values)
            else:
                self._inputs += map(_text, values)

    def without_file(self, words: Sequence[str]) -> list[str]:
        """Return a command line that does not need the file, from the one that names it."""
        end = words.index("--") if "--" in words else len(words)
        kept = [
            word
            for number, word in enumerate(words[:end])
            if not word.startswith("--config=") and "--config" not in (word, *words[max(0, number - 1) : number])
        ]
        return [*kept, *self._words, *(words[end:] or ["--"]), *self._inputs]


def _values(path: Path, content: Mapping[str, Any], commands: Sequence[str]) -> dict[str, Any]:
    """Return the keys for a command: those outside of tables, and those of the table of the command."""
    from helixfold.cli.app import COMMANDS

    tables = [name for name, value in content.items() if isinstance(value, dict)]
    if unknown := [name for name in tables if name not in COMMANDS]:
        hint = did_you_mean(unknown[0], COMMANDS)
        raise InputError.at(path, f"there is no command {printable(unknown[0])!r}{hint}")
    found: dict[str, Any] = {}
    table: Any = content
    for command in (None, *commands):
        table = table if command is None else table.get(command, {})
        if not isinstance(table, dict):
            raise InputError.at(path, f"{command}: must be a table, written as [{command}]")
        found |= {name: value for name, value in table.items() if not isinstance(value, dict)}
    return found


def _argument_of(key: str, path: Path, arguments: ArgumentCollection) -> Argument:
    """Return the argument that a key names, with hyphens or underscores; raise `InputError` if there is none."""
    known = {_key(name): each for each in arguments if each.parse and not each.children for name in _names(each)}
    if (argument := known.get(_key(key))) is None:
        shown = [_key(_names(each)[0]) for each in known.values() if each.show]
        raise InputError.at(path, f"there is no option {printable(key)!r}{did_you_mean(_key(key), shown)}")
    return argument


def _names(argument: Argument) -> Sequence[str]:
    """Return the names of an option; an argument without one, such as FILE..., has the name in the program."""
    negatives = set(argument.negatives)
    options = [name for name in argument.names if name.startswith("--") and name not in negatives]
    return options or [argument.field_info.name]


def _key(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _tokens(key: str, values: Sequence[Any], source: str) -> list[Token]:
    keyword = f"--{key.replace('_', '-')}"
    if not values:
        return [Token(keyword=keyword, implicit_value=(), source=source)]
    return [
        Token(keyword=keyword, implicit_value=value, source=source)
        if isinstance(value, bool)
        else Token(keyword=keyword, value=_text(value), index=index, source=source)
        for index, value in enumerate(values)
    ]


def _words(argument: Argument, values: Sequence[Any]) -> list[str]:
    """Return the words of the command line for an option with these values."""
    name, texts = argument.name, [_text(value) for value in values]
    if not values or values[0] is True:
        return [name]
    if argument.token_count()[0] > 1:
        return [name, *texts]
    return [f"{name}={text}" for text in texts]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
