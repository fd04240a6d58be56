"""Errors of relaxation."""

from data_pipeline.extras import are_installed, require

PACKAGES = ("openmm", "pdbfixer")


class RelaxationError(RuntimeError):
    """Error for a structure that cannot be relaxed; its text is one sentence that gives the reason."""


class NotInstalledError(RelaxationError):
    """Error for missing OpenMM or PDBFixer, which relaxation needs."""


def installed() -> bool:
    """Return whether OpenMM and PDBFixer are installed."""
    return are_installed(*PACKAGES)


def require_packages() -> None:
    """Raise `NotInstalledError` if OpenMM or PDBFixer is not installed."""
    require("relax", *PACKAGES, action="relaxation", error=NotInstalledError)
