"""A GPU that is lent for an hour has Python, PyTorch, Triton, NumPy, einops, jaxtyping and pytest; that is enough."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from tests.support.sources import ROOT

PACKAGES = ("torch", "triton", "numpy", "einops", "jaxtyping", "pytest")
# What measures and computes on a GPU.
MODULES = [
    *(f"helixfold.benchmark.{name}" for name in ("ops", "block", "model", "step", "kernels", "launches")),
    "helixfold.benchmark.memory",
    *(
        "helixfold.benchmark.gpu",
        "helixfold.folding.recycling",
        "helixfold.training.step",
        "helixfold.training.config",
        "helixfold.training.loader",
    ),
    *("helixfold.parallel.gradients", "helixfold.optim.flat", "helixfold.execution.spilled"),
    *("helixfold.benchmark.gpu", "scripts.benchmark"),
]
# Where the tests for a GPU are.
TESTED = ("execution", "gpu", "ops", "parallel")


def with_requirements(names: tuple[str, ...]) -> set[str]:
    """The distributions of these names and those that they require."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        try:
            requirements = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            waiting += [re.split(r"[^A-Za-z0-9._-]", each)[0] for each in requirements if "extra ==" not in each]
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with links to these packages and no others."""
    directory = tmp_path_factory.mktemp("packages")
    for top in tops(with_requirements(PACKAGES)):
        (directory / top.name).symlink_to(top)
    return directory


def tops(names: set[str]) -> set[Path]:
    """The files and directories of these distributions where Python looks for modules."""
    return {
        Path(str(distribution(name).locate_file(file.parts[0])))
        for name in names
        for file in distribution(name).files or []
        if file.parts[0] not in ("..", "__pycache__")
    }


def run_there(bare: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Leave out the settings of this test run, and Triton's interpreter, in which the measurement takes minutes.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "TRITON"))
    }
    environment["PYTHONPATH"] = os.pathsep.join([str(bare), str(ROOT)])
    # Without site, Python sees nothing but its own library and this path.
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_everything_for_the_gpu_is_imported_and_other_packages_are_not_there(bare: Path) -> None:
    done = run_there(bare, "-c", "".join(f"import {module}\n" for module in [*MODULES, "pyhmmer"]))
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'pyhmmer'"


def test_the_measurement_of_a_gpu_runs(bare: Path, tmp_path: Path) -> None:
    readings = tmp_path / "readings.json"
    words = ("gpu", "--tiny", "--part", "block", "--repeats", "1", "--json", str(readings))
    done = run_there(bare, "scripts/benchmark.py", *words)
    assert done.returncode == 0, done.stderr
    assert readings.is_file()


@pytest.mark.parametrize(
    ("others", "folders"),
    [
        pytest.param((), [f"tests/{name}" for name in TESTED], id="bare"),
        pytest.param((), ["tests"], id="all", marks=pytest.mark.long),
        pytest.param(
            ("hypothesis", "scipy", "pandas"),
            [f"tests/{name}" for name in TESTED],
            id="with other packages",
            marks=pytest.mark.long,
        ),
    ],
)
def test_tests_of_the_gpu_are_collected(
    bare: Path, others: tuple[str, ...], folders: list[str], tmp_path: Path
) -> None:
    """Also beside other packages that a machine happens to have."""
    for top in [*bare.iterdir(), *tops(with_requirements(others))]:
        if not (tmp_path / top.name).exists():
            (tmp_path / top.name).symlink_to(top)
    bare = tmp_path
    # Nothing runs, so assertions need not be rewritten, which takes longer than to import the tests.
    options = ("-o", "addopts=", "--collect-only", "--assert=plain", "-q")
    done = run_there(bare, "-m", "pytest", *options, *folders)
    assert done.returncode == 0, done.stdout[-3000:]
    # A module that needs other packages would be left out in silence.
    needed = {path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py")} | {"test_alone.py", "test_spilled.py"}
    needed |= {path.name for path in (ROOT / "tests" / "ops" / "triton").glob("test_*.py")}
    assert needed <= {line.split("::")[0].split("/")[-1] for line in done.stdout.splitlines() if "::" in line}
