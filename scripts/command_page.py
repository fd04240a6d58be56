"""Write the options of all commands in docs/reference/command-line.md: `python scripts/command_page.py`."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cyclopts import App, Argument

from helixfold.apps.options import PredictOptions
from helixfold.apps.predict.compat import foreign_options, is_unsupported
from helixfold.cli.app import GROUPS, application
from helixfold.cli.help import default_of, description_of, groups_of, name_of, usage_of, value_of
from helixfold.runtime.options import Traits, traits_of

PAGE = Path(__file__).parents[1] / "docs/reference/command-line.md"
_COMMON = "Common options"
_TRAITS = traits_of(PredictOptions)
_PART = re.compile(r"(<!-- (commands|common) -->\n).*?(?=<!-- end -->)", re.DOTALL)
_CODE = re.compile(r"(`[^`]*`|(?<![\w-])--[a-z][\w-]*(?:=\w+)?)")


class Option(NamedTuple):
    """An option of a command, with all its names."""

    command: str
    argument: Argument
    names: tuple[str, ...]


# The titles of the columns, and the content of their cells.
COLUMNS: dict[str, Callable[[Option], str]] = {
    "option": lambda option: f"`{name_of(option.argument)} {value_of(option.argument)}`".replace(" `", "`"),
    "what it does": lambda option: " ".join(
        filter(None, (_text(option.argument.parameter.help or ""), _other_spellings(option), _offer(option)))
    ),
    "default": lambda option: "required" if option.argument.required else _default(option.argument),
}


# A column for `helixfold predict` only: whether results record the option, because its value changes them.
CHANGES_RESULTS = {"changes results": lambda option: "yes" if _traits(option).recorded else ""}


def renewed(text: str) -> str:
    """Return the text of the page with the current options of the commands."""
    parts = {"commands": "".join(_commands()), "common": "".join(_common())}
    return _PART.sub(lambda match: match[1] + parts[match[2]], text)


def _commands() -> Iterator[str]:
    for title, commands in GROUPS.items():
        yield f"\n## {title}\n"
        for command in commands:
            yield from _command([command])
    yield "\n"


def _command(words: list[str]) -> Iterator[str]:
    """Yield the section of a command and the sections of its subcommands."""
    root = application(words)
    _, apps, _ = root.parse_commands(words)
    app, name = apps[-1], " ".join(["helixfold", *words])
    yield f"\n### `{name}`\n\n{_text(description_of(app))}\n\n```\n{usage_of(app, name)}\n```\n"
    if app.default_command is not None:
        with root.app_stack(apps):
            yield from _tables(app, name, is_common=False)
    for inner in app:
        if not inner.startswith("-"):
            yield from _command([*words, inner])


def _common() -> Iterator[str]:
    root = application(["compare"])
    _, apps, _ = root.parse_commands(["compare"])
    with root.app_stack(apps):
        yield from _tables(apps[-1], "", is_common=True)
    yield "\n"


def _tables(app: App, command: str, *, is_common: bool) -> Iterator[str]:
    """Yield the groups of options of a command, without the common options, which have a separate section."""
    names = {each.name: tuple(each.parameter.name or ()) for each in app.assemble_argument_collection()}
    for group, arguments in groups_of(app.assemble_argument_collection(parse_docstring=True)):
        if (group.name == _COMMON) != is_common:
            continue
        title = {"Parameters": "Options"}.get(group.name, group.name)
        note = f" ({_text(group.help)})" if group.help else ""
        columns = {**COLUMNS, **(CHANGES_RESULTS if command == "helixfold predict" else {})}
        rows = [[*columns], ["---"] * len(columns)]
        for each in arguments:
            option = Option(command, each, names[each.name])
            rows.append([cell(option).replace("|", "\\|") for cell in columns.values()])
        table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        yield f"\n{table}" if is_common else f"\n**{title}**{note}\n\n{table}"


def _default(argument: Argument) -> str:
    default = default_of(argument)
    return f"`{default}`" if re.fullmatch(r"[\w.*/=-]+", default) else _text(default)


def _other_spellings(option: Option) -> str:
    """Return a sentence with earlier spellings, and spellings of ColabFold and AlphaFold, whose values may differ."""
    if option.argument.index is not None:
        return ""
    names = name_of(option.argument).split(", ")
    others = {name: "" for name in option.names if name not in names}
    for program, foreign in foreign_options().items():
        for name, here in foreign.items():
            is_same = here.startswith("--") and option.argument.name in re.findall(r"--[a-z-]+", here)
            if name in others or (option.command == "helixfold predict" and is_same and not is_unsupported(name)):
                others[name] = f" ({program})"
    return f"Other spellings: {', '.join(f'`{name}`{program}' for name, program in others.items())}." if others else ""


def _traits(option: Option) -> Traits:
    is_of_predict = option.command == "helixfold predict"
    return _TRAITS.get(option.argument.field_info.name, Traits()) if is_of_predict else Traits()


def _offer(option: Option) -> str:
    """Return a sentence with the name of the option in requests to the service, if the service offers it."""
    offer = _traits(option).offer
    return "" if offer is None else f"In requests to the service: `{offer.name}`."


def _text(text: str) -> str:
    """Return a text as Markdown, with options as code and special characters escaped."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(
        f"`{part.strip('`')}`" if index % 2 else re.sub(r"([<>*_\[\]])", r"\\\1", part)
        for index, part in enumerate(parts)
    )


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
