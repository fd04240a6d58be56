"""The kind of command that all commands are: it has the common options, and help from the docstrings of its fields."""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from typing import Annotated, Any, get_type_hints

from cyclopts import App, Argument, ArgumentCollection, Group, Parameter

from helixfold.options import File, option_group


@option_group(Group.create_ordered("Common options", sort_key=9))
@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options of every command."""

    config: File | None = None
    """Read options from this TOML file, such as num_recycles = 3. Options on the command line override it."""
    quiet: Annotated[bool, Parameter(alias="-q")] = False
    """Print only errors and warnings, and what the command is asked to show."""
    verbose: Annotated[bool, Parameter(alias="-v")] = False
    """Also print details that help to find a problem, such as search commands and tracebacks."""


_USUAL = CommonOptions()


class Command(App):
    """A command or a group of commands."""

    def default(self, obj: Any = None, **more: Any) -> Any:
        """Register the function of this command, with the common options."""
        is_flag = obj.__module__.startswith("cyclopts")  # cyclopts registers --help and --version as commands
        super().default(obj if is_flag else _with_common_options(obj), **more)
        return obj

    def assemble_argument_collection(
        self, *, default_parameter: Parameter | None = None, parse_docstring: bool = False
    ) -> ArgumentCollection:
        """Return the arguments of this command; with `parse_docstring`, as they are shown: with their help, and without
        earlier spellings.

        Cyclopts would parse the source of a module again for each of its classes.
        """
        arguments = super().assemble_argument_collection(default_parameter=default_parameter)
        if parse_docstring and self.default_command is not None:
            documented = dict(_documented(self.default_command, arguments))
            for each in arguments:
                text = each.parameter.help or documented.get(each.field_info.name)
                shown = Parameter(help=text, name=shown_names(each)) if each.parameter.name else Parameter(help=text)
                each.parameter = Parameter.combine(each.parameter, shown)
        return arguments


def shown_names(argument: Argument) -> tuple[str, ...]:
    """Return the first name of an argument and the short ones; others are earlier spellings."""
    first, *others = argument.parameter.name or ()
    return (first, *(name for name in dict.fromkeys(others) if not name.startswith("--")))


def _with_common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the same options and the common ones, which `helixfold.cli.app.run` applies."""

    @wraps(function)
    def command(*arguments: Any, shared_options: CommonOptions = _USUAL, **more: Any) -> Any:
        return function(*arguments, **more)

    signature = inspect.signature(function)
    shared = inspect.Parameter(
        "shared_options", inspect.Parameter.KEYWORD_ONLY, default=_USUAL, annotation=CommonOptions
    )
    parameters = [*signature.parameters.values(), shared]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {**get_type_hints(function, include_extras=True), "shared_options": CommonOptions}
    return command


def _documented(function: Callable[..., Any], arguments: ArgumentCollection) -> Iterator[tuple[str, str]]:
    """Yield the names and docstrings of a function's parameters and of the fields of its classes of options."""
    yield from re.findall(r"^(\w+)\n((?:    .*\n?)+)", inspect.getdoc(function) or "", re.MULTILINE)
    for argument in arguments:
        for kind in getattr(argument.hint, "__mro__", ()) if argument.children else ():
            yield from _field_docstrings(kind.__module__).get(kind.__name__, {}).items()


@cache
def _field_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of all classes' fields in a module."""
    if module == "builtins":
        return {}
    found: dict[str, dict[str, str]] = {}
    for kind in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(kind, ast.ClassDef):
            found[kind.name] = {
                field.target.id: inspect.cleandoc(text.value.value)
                for field, text in zip(kind.body, kind.body[1:], strict=False)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
    return found
