"""Write help texts as plain text in two columns, the same on a terminal and in a file."""

import textwrap
from typing import Any

from cyclopts.help import HelpEntry, HelpPanel

_OPTION_COLUMN, _COMMAND_COLUMN = 28, 14  # where the descriptions begin


class PlainHelp:
    """Formatter of help texts: usage, description and options of a command, wrapped to the screen's width."""

    def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:
        """Write the title and the entries of one group of options or commands."""
        if not panel.entries:
            return
        note = _plain(panel.description)
        title = _plain(panel.title).replace("Parameters", "Options")  # cyclopts's title for entries without a group
        lines = textwrap.wrap(f"{title}{f' ({note})' if note else ''}:", console.width - 1)
        rows = [(_names(entry), _text(entry)) for entry in panel.entries]
        is_commands = panel.format == "command" and not rows[0][0].startswith("-")
        for names, text in rows:
            lines += _rows(names, text, console.width - 1, _COMMAND_COLUMN if is_commands else _OPTION_COLUMN)
        _write(console, "\n" + "\n".join(lines))

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        """Write the line that shows how to call a command."""
        _write(console, f"usage: {str(getattr(usage, 'plain', usage)).removeprefix('Usage: ').strip()}")

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        """Write the description of a command."""
        _write(console, "\n" + textwrap.fill(_plain(description), console.width - 1))


def _write(console: Any, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _plain(text: Any) -> str:
    text = getattr(text, "primary_renderable", text)
    return " ".join(str(getattr(text, "plain", text or "")).split())


def _names(entry: HelpEntry) -> str:
    value = (entry.metavar or "").replace("...", " ...")
    if entry.positional_label:
        return entry.positional_label + (" ..." if value.endswith("...") else "")
    if entry.choices and value.startswith("CHOICE"):
        value = f"{{{','.join(entry.choices)}}}{value.removeprefix('CHOICE')}"
    return f"{', '.join((*entry.positive_shorts, *entry.positive_names[:1]))} {value}".strip()


def _text(entry: HelpEntry) -> str:
    note = f"(default: {entry.default})" if entry.default else "(required)" if entry.required else ""
    return f"{_plain(entry.description)} {note}".strip()


def _rows(names: str, text: str, width: int, column: int) -> list[str]:
    """Return the lines of one entry; long names get a line of their own."""
    indent = " " * column
    lines = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    if len(names) > column - 4 or not lines:
        return [f"  {names}", *lines]
    return [f"  {names}".ljust(column) + lines[0].lstrip(), *lines[1:]]
