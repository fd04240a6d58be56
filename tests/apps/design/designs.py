"""`helixfold design` in processes that are to be killed."""

from collections.abc import Sequence
from unittest.mock import patch

from helixfold.cli.main import main


def design(arguments: Sequence[str]) -> int:
    """The command with a state after every step; its memory is not counted anew in each process."""
    with patch("helixfold.apps.design.run._SAVE_EVERY", -1.0), patch("helixfold.apps.design.run.check_memory"):
        return main(["design", *arguments])


def binder(arguments: Sequence[str]) -> int:
    """The same for binders; structures of random networks are taken as if no C-alpha atoms clashed."""
    with (
        patch("helixfold.apps.design.binders.clashes", lambda protein, only_alpha=False: 0),
        patch("helixfold.apps.design.binders._MIN_CONTACTS", 0),
        patch("helixfold.apps.design.binders.check_memory"),
    ):
        return main(["design", *arguments])
