"""Base of all commands: common options, option files (`--config`), and help texts from docstrings."""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from cyclopts import App, Argument, ArgumentCollection, Group, Parameter, Token

from data_pipeline.io.errors import InputError, did_you_mean, printable
from helixfold.runtime.options import File, option_group


@option_group(Group.create_ordered("Common options", sort_key=9))
@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options of every command."""

    # The help texts are not docstrings, because every `--help` would parse this module to find them.
    config: Annotated[
        File | None,
        Parameter(help="Read options from this TOML file, such as num_recycles = 3. The command line overrides it."),
    ] = None
    quiet: Annotated[
        bool, Parameter(alias="-q", help="Print only errors and warnings, and what the command is asked to show.")
    ] = False
    verbose: Annotated[
        bool,
        Parameter(
            alias="-v", help="Also print details that help to find a problem, such as search commands and tracebacks."
        ),
    ] = False


_DEFAULT_OPTIONS = CommonOptions()


class Command(App):
    """A cyclopts application for one command or a group of commands, with the common options."""

    def default(self, obj: Any = None, **more: Any) -> Any:
        """Register the function of this command with the common options added, and return it unchanged."""
        is_flag = obj.__module__.startswith("cyclopts")  # cyclopts registers --help and --version as commands
        super().default(obj if is_flag else _with_common_options(obj), **more)
        return obj

    def assemble_argument_collection(
        self, *, default_parameter: Parameter | None = None, parse_docstring: bool = False
    ) -> ArgumentCollection:
        """Return the arguments of this command.

        With `parse_docstring`, return them as the help shows them: with help texts, and without earlier spellings.
        Unlike cyclopts, this does not parse the source of a module again for each of its classes.
        """
        arguments = super().assemble_argument_collection(default_parameter=default_parameter)
        if parse_docstring and self.default_command is not None:
            documented = dict(_documented(self.default_command, arguments))
            for each in arguments:
                text = each.parameter.help or documented.get(each.field_info.name)
                displayed = (
                    Parameter(help=text, name=shown_names(each)) if each.parameter.name else Parameter(help=text)
                )
                each.parameter = Parameter.combine(each.parameter, displayed)
        return arguments


def shown_names(argument: Argument) -> tuple[str, ...]:
    """Return the first name of an argument and its short names, without earlier spellings."""
    first, *others = argument.parameter.name or ()
    return (first, *(name for name in dict.fromkeys(others) if not name.startswith("--")))


def _with_common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the same options plus the common ones, which `helixfold.cli.app.run` applies."""

    @wraps(function)
    def command(*arguments: Any, shared_options: CommonOptions = _DEFAULT_OPTIONS, **more: Any) -> Any:
        return function(*arguments, **more)

    signature = inspect.signature(function)
    shared = inspect.Parameter(
        "shared_options", inspect.Parameter.KEYWORD_ONLY, default=_DEFAULT_OPTIONS, annotation=CommonOptions
    )
    parameters = [*signature.parameters.values(), shared]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {**get_type_hints(function, include_extras=True), "shared_options": CommonOptions}
    return command


def _documented(function: Callable[..., Any], arguments: ArgumentCollection) -> Iterator[tuple[str, str]]:
    """Yield names and docstrings of the parameters of a function and of the fields of its option classes."""
    yield from re.findall(r"^(\w+)\n((?:    .*\n?)+)", inspect.getdoc(function) or "", re.MULTILINE)
    for argument in arguments:
        is_needed = any(child.show and not child.parameter.help for child in argument.children)
        for kind in getattr(argument.hint, "__mro__", ()) if is_needed else ():
            yield from _field_docstrings(kind.__module__).get(kind.__name__, {}).items()


@cache
def _field_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the fields of all classes in a module."""
    if module == "builtins":
        return {}
    docstrings: dict[str, dict[str, str]] = {}
    for kind in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(kind, ast.ClassDef):
            docstrings[kind.name] = {
                field.target.id: inspect.cleandoc(text.value.value)
                for field, text in zip(kind.body, kind.body[1:], strict=False)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
    return docstrings


class ConfigFile:
    """Source of options for cyclopts: reads the TOML file passed to `--config`."""

    def __init__(self, commands: Collection[str]) -> None:
        self._commands = commands  # may have tables in the file
        self._words: list[str] = []
        self._inputs: list[str] = []

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Add the values of the file to arguments that are not on the command line."""
        named = next((each for each in arguments if each.name == "--config"), None)
        if named is None or not named.tokens:
            return
        from data_pipeline.io.toml_files import read_toml  # not needed for `--help`

        path = Path(named.tokens[-1].value)
        for key, value in _values(path, read_toml(path, "TOML file of options"), commands, self._commands).items():
            argument = _argument_of(key, path, arguments)
            if argument is named:
                raise InputError.at(path, "an option file cannot name another one; remove the key config")
            if any(token.source != str(path) for token in argument.tokens):
                continue
            values = value if isinstance(value, list) else [value]
            if not all(isinstance(each, str | bool | int | float) or hasattr(each, "isoformat") for each in values):
                raise InputError.at(
                    path, f"{key}: expected a value or a list of values, got a table or a list of lists"
                )
            count, is_list = argument.token_count()
            if isinstance(value, bool) and count > 0 and bool not in get_args(argument.hint):
                if not (value and is_list):
                    raise InputError.at(path, f"{key}: expected a value, got {_text(value)}")
                values = []  # the option without values, as on a command line
            if isinstance(value, list) and not is_list and len(value) != count:
                raise InputError.at(path, f"{key}: must be one value, got a list of {len(value)}")
            for token in _tokens(key, values, str(path)):
                argument.append(token)
            if argument.name.startswith("-"):
                self._words += _words(argument, values)
            else:
                self._inputs += map(_text, values)

    def without_file(self, words: Sequence[str]) -> list[str]:
        """Return an equivalent command line without `--config`."""
        end = words.index("--") if "--" in words else len(words)
        others = [
            word
            for index, word in enumerate(words[:end])
            if not word.startswith("--config=") and "--config" not in (word, *words[max(0, index - 1) : index])
        ]
        return [*others, *self._words, *(words[end:] or ["--"]), *self._inputs]


def _values(
    path: Path, content: Mapping[str, Any], commands: Sequence[str], all_commands: Collection[str]
) -> dict[str, Any]:
    """Return the values for a command: keys outside of tables, updated with the table of the command."""
    tables = [name for name, value in content.items() if isinstance(value, dict)]
    if unknown := [name for name in tables if name not in all_commands]:
        hint = did_you_mean(unknown[0], all_commands)
        raise InputError.at(path, f"unknown command {printable(unknown[0])!r}{hint}")
    values: dict[str, Any] = {}
    table: Any = content
    for command in (None, *commands):
        table = table if command is None else table.get(command, {})
        if not isinstance(table, dict):
            raise InputError.at(path, f"{command}: must be a table, written as [{command}]")
        values |= {name: value for name, value in table.items() if not isinstance(value, dict)}
    return values


def _argument_of(key: str, path: Path, arguments: ArgumentCollection) -> Argument:
    """Return the argument for a key with hyphens or underscores; raise `InputError` for an unknown key."""
    by_key = {_key(name): each for each in arguments if each.parse and not each.children for name in _names(each)}
    if (argument := by_key.get(_key(key))) is None:
        keys = [_key(_names(each)[0]) for each in by_key.values() if each.show]
        raise InputError.at(path, f"unknown option {printable(key)!r}{did_you_mean(_key(key), keys)}")
    return argument


def _names(argument: Argument) -> Sequence[str]:
    """Return the names of an option, or the parameter name of a positional argument such as FILE..."""
    negatives = set(argument.negatives)
    options = [name for name in argument.names if name.startswith("--") and name not in negatives]
    return options or [argument.field_info.name]


def _key(name: str) -> str:
    """Return the key of an option in a file: its name with underscores."""
    return name.removeprefix("--").replace("-", "_")


def _tokens(key: str, values: Sequence[Any], source: str) -> list[Token]:
    """Return the values of a key as tokens of cyclopts; `source` is the option file."""
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
    """Return an option with these values as words of a command line."""
    name, texts = argument.name, [_text(value) for value in values]
    if not values or values[0] is True:
        return [name]
    if argument.token_count()[0] > 1:
        return [name, *texts]
    return [f"{name}={text}" for text in texts]


def _text(value: Any) -> str:
    """Return a value of a file as a word of a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
