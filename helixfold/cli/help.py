"""Help pages as plain text in two columns, equal on a terminal and in a file.

Cyclopts would load a terminal library and process each option twice, which takes most of the time of `--help`.
"""

import inspect
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclopts import App, Argument, ArgumentCollection, Group

from helixfold.cli.command import shown_names

_OPTION_COLUMN, _COMMAND_COLUMN = 28, 14  # where the descriptions begin
_PLACEHOLDERS = {Path: "PATH", str: "STR", int: "N", float: "NUMBER"}
_GENERAL_OPTIONS = {"-h, --help": "Display this message and exit.", "--version": "Display application version."}


def help_page(app: App, name: str, commands: dict[str, dict[str, str]] | None = None) -> str:
    """Return the help page of the command `name`, as wide as the screen: usage, description, commands and options.

    `commands` are the titles, names and summaries of commands that are not imported.
    """
    width = shutil.get_terminal_size().columns - 1
    paragraphs = [f"usage: {usage_of(app, name)}", textwrap.fill(description_of(app), width)]
    for title, summaries in (commands or commands_of(app)).items():
        paragraphs.append(_section(f"{title}:", summaries, width, _COMMAND_COLUMN))
    if commands is not None:
        paragraphs.append(_section("Options:", _GENERAL_OPTIONS, width, _OPTION_COLUMN))
    if app.default_command is not None:
        for group, arguments in groups_of(app.assemble_argument_collection(parse_docstring=True)):
            title = "Options" if group.name == "Parameters" else group.name
            rows = {f"{name_of(each)} {value_of(each)}".strip(): _help_text(each) for each in arguments}
            paragraphs.append(_section(_title(title, group, width), rows, width, _OPTION_COLUMN))
    if app.help_epilogue:
        paragraphs.append("\n".join(_wrapped(line, width) for line in app.help_epilogue.splitlines()))
    return "\n\n".join(paragraphs)


def usage_of(app: App, name: str) -> str:
    """Return the usage of a command, with an optional example."""
    return app.usage or f"{name} [options]"


def description_of(app: App) -> str:
    """Return the description of a command in one line, without the parameters section of its docstring."""
    return _flat(inspect.cleandoc(app.help or "").split("\nParameters\n---")[0])


def commands_of(app: App) -> dict[str, dict[str, str]]:
    """Return the names and summaries of the commands of a group, by the title of the group."""
    names = [name for name in app if not name.startswith("-")]
    title = app.group_commands.name if isinstance(app.group_commands, Group) else "Actions"
    return {title: {name: _flat(str(app[name].help).split("\n\n")[0]) for name in names}} if names else {}


def groups_of(arguments: ArgumentCollection) -> Iterator[tuple[Group, list[Argument]]]:
    """Yield the groups of options in the help, in order, each with its options."""
    visible = arguments.filter_by(show=True)
    named = {group.name: group for group in visible.groups if group.show}
    for group in sorted(named.values(), key=_sort_key):
        own_arguments = visible.filter_by(group=group)
        yield group, sorted(own_arguments, key=lambda argument: argument.index is None)


def name_of(argument: Argument) -> str:
    """Return the names of an option in the help, with short names first."""
    if argument.index is not None:
        return argument.name.lstrip("-").upper()
    return ", ".join(sorted(shown_names(argument), key=lambda name: name.startswith("--")))


def value_of(argument: Argument) -> str:
    """Return the placeholder for the value of an option in the help, or an empty string for a flag."""
    repetition = " ..." if argument.token_count()[1] else ""
    if argument.index is not None:
        return repetition.strip()
    kinds = (argument.hint, *getattr(argument.hint, "__args__", ()))
    if bool in kinds and str not in kinds:
        return ""
    if argument.parameter.metavar:
        return argument.parameter.metavar.replace("...", " ...")
    if choices := argument.get_choices():
        return f"{{{','.join(choices)}}}{repetition}"
    return next((name for kind, name in _PLACEHOLDERS.items() if kind in kinds), "VALUE") + repetition


def default_of(argument: Argument) -> str:
    """Return the default of an option in the help, or an empty string for a flag or None."""
    text: Any = argument.show_default
    if callable(text):
        return str(text(argument.field_info.default))
    return text if isinstance(text, str) else ""


def show_default(value: Any) -> str:
    """Return a default value as text for the help, or an empty string for a flag or None."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _sort_key(group: Group) -> tuple[Any, ...]:
    """Return the sort key of a group, from the `sort_key` of `Group.create_ordered`."""
    key = group.sort_key
    if not isinstance(key, tuple):  # groups of cyclopts itself
        return (-3, 0) if group.name == "Arguments" else (-2, 0)
    return (key[0] if isinstance(key[0], int) else 2, key[1])


def _title(title: str, group: Group, width: int) -> str:
    """Return the title of a group of options, with its note, wrapped."""
    note = _flat(group.help)
    return "\n".join(textwrap.wrap(f"{title}{f' ({note})' if note else ''}:", width))


def _help_text(argument: Argument) -> str:
    """Return the description of an option, with its default or whether it is required."""
    default = default_of(argument)
    note = f"(default: {default})" if default else "(required)" if argument.required else ""
    return f"{_flat(argument.parameter.help)} {note}".strip()


def _flat(text: str | None) -> str:
    """Return a text in one line."""
    return " ".join(inspect.cleandoc(text or "").split())


def _wrapped(line: str, width: int) -> str:
    """Wrap a line of examples to the screen, keeping its indent."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)


def _section(title: str, rows: dict[str, str], width: int, column: int) -> str:
    """Return a titled section with a row for each name, whose descriptions begin at `column`."""
    return "\n".join([title, *(line for names, text in rows.items() for line in _rows(names, text, width, column))])


def _rows(names: str, text: str, width: int, column: int) -> list[str]:
    """Return the lines of one entry; long names have a separate line."""
    indent = " " * column
    lines = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    if len(names) > column - 4 or not lines:
        return [f"  {names}", *lines]
    return [f"  {names}".ljust(column) + lines[0].lstrip(), *lines[1:]]
