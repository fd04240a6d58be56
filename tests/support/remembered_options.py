"""Read the definitions of options once for each command: tests run commands a thousand times, each with its own words.

Reading them takes three quarters of what it takes to refuse a wrong option.
"""

import copy
from collections.abc import Callable
from typing import Any

from cyclopts import App, ArgumentCollection


def remember_options() -> None:
    """Let cyclopts give each command a copy of the options that it has found once."""
    assemble = App.assemble_argument_collection
    known: dict[Callable[..., Any] | None, list[tuple[dict[str, Any], ArgumentCollection]]] = {}

    def remembered(app: App, **named: Any) -> ArgumentCollection:
        given = {**named, "inherited": app.app_stack.default_parameter}
        found = known.setdefault(app.default_command, [])
        for other, arguments in found:
            if other == given:
                return _without_words(arguments)
        arguments = assemble(app, **named)
        found.append((given, arguments))
        return _without_words(arguments)

    App.assemble_argument_collection = remembered  # type: ignore[method-assign]


def _without_words(arguments: ArgumentCollection) -> ArgumentCollection:
    """Return a copy to which words of the command line can be given, in arguments within arguments too."""
    copies = {id(argument): copy.copy(argument) for argument in arguments}
    for each in copies.values():
        each.tokens = []
        each.children = ArgumentCollection(copies[id(child)] for child in each.children)
    return ArgumentCollection(copies.values())
