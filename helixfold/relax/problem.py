"""Errors that say why a structure is left as it was predicted."""

import importlib.util

_NEEDED = ("openmm", "pdbfixer")


class RelaxationError(RuntimeError):
    """This structure cannot be relaxed; the text is one sentence that says why."""


class NotInstalledError(RelaxationError):
    """OpenMM and PDBFixer, which relaxation needs, are not installed."""


def installed() -> bool:
    """Return whether relaxation can be done here."""
    return not _missing()


def require() -> None:
    """Raise `NotInstalledError` where relaxation cannot be done."""
    if _missing():
        raise NotInstalledError(
            f"relaxation needs {' and '.join(_missing())}, not installed here; get it with "
            f"pip install 'helixfold[relax]'"
        )


def _missing() -> list[str]:
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]
