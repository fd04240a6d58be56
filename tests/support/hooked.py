"""Check shapes and types in a process that pytest does not start; import this before any module of the packages.

The packages are listed in pytest's option `--jaxtyping-packages`.
"""

import tomllib
from pathlib import Path

from jaxtyping import install_import_hook

from tests.support import speedups

_OPTIONS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
(_PACKAGES,) = (
    word.split("=")[1].split(",") for word in _OPTIONS["addopts"].split() if word.startswith("--jaxtyping-packages=")
)
install_import_hook(_PACKAGES[:-1], _PACKAGES[-1])
speedups.install()
