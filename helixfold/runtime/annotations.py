"""Annotations of options for cyclopts, with placeholders if it is not installed.

Modules that compute can therefore be imported with little more than PyTorch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import CoercionError, Group, Parameter, Token
else:
    try:
        from cyclopts import CoercionError, Group, Parameter, Token
    except ModuleNotFoundError:

        class Parameter:
            """Placeholder for the annotation of an option and the decorator of a class of options."""

            alias = ()
            combine = classmethod(lambda cls, *_: cls())

            def __init__(self, *_, **__) -> None:
                pass

            def __call__(self, decorated):
                return decorated

        class Group:
            """Placeholder for a group of options in the help."""

            def __init__(self, *_, **__) -> None:
                pass

            create_ordered = classmethod(lambda cls, *_, **__: cls())

        Token, CoercionError = str, ValueError

__all__ = ["CoercionError", "Group", "Parameter", "Token"]
