"""Errors of relaxation."""

from data_pipeline.io.extras import are_installed

PACKAGES = ("openmm", "pdbfixer")


class RelaxationError(RuntimeError):
    """Error for a structure that cannot be relaxed; its text is one sentence that gives the reason."""


def installed() -> bool:
    """Return whether OpenMM and PDBFixer are installed."""
    return are_installed(*PACKAGES)
