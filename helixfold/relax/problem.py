"""Errors that say why a structure is left as it was predicted."""

from data_pipeline.extras import are_installed, require

PACKAGES = ("openmm", "pdbfixer")


class RelaxationError(RuntimeError):
    """This structure cannot be relaxed; the text is one sentence that says why."""


class NotInstalledError(RelaxationError):
    """OpenMM and PDBFixer, which relaxation needs, are not installed."""


def installed() -> bool:
    """Return whether relaxation can be done here."""
    return are_installed(*PACKAGES)


def require_packages() -> None:
    """Raise `NotInstalledError` where relaxation cannot be done."""
    require("relax", *PACKAGES, action="relaxation", error=NotInstalledError)
