"""Find the functions of Triton's language once: its interpreter looks through all of them at every call of a kernel.

That takes a third of the time of a small kernel.
"""

from functools import cache
from inspect import getmembers
from typing import Any


def remember_language() -> None:
    """Let the interpreter replace the same functions as at its first call, if it is a version that is known here."""
    from triton.language.core import is_builtin  # noqa: PLC0415  not installed everywhere
    from triton.runtime import interpreter  # noqa: PLC0415

    @cache
    def names(namespace: Any) -> list[str]:
        return [name for name, member in getmembers(namespace) if is_builtin(member)]

    def replace(namespace: Any, *rest: Any) -> None:
        for name in names(namespace):
            # A kernel that calls another finds its functions replaced.
            if is_builtin(member := getattr(namespace, name)):
                interpreter._patch_attr(namespace, name, member, *rest)

    if hasattr(interpreter, "_patch_builtin"):
        interpreter._patch_builtin = replace
