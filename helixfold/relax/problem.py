"""Errors of relaxation."""

from data_pipeline.io.extras import are_installed

# Packages that relaxation needs, by their import names.
PACKAGES = ("openmm", "pdbfixer")


class RelaxationError(RuntimeError):
    """A structure cannot be relaxed; the text is one sentence with the reason."""


def installed() -> bool:
    """Return whether OpenMM and PDBFixer are installed, without importing them."""
    return are_installed(*PACKAGES)
