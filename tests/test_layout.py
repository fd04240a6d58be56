"""The house rules that a reader relies on: imports go down only, and heavy libraries have rooms of their own."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_pipeline", "helixfold")
SOURCES = sorted(path for package in (*PACKAGES, "scripts") for path in (ROOT / package).rglob("*.py"))
# From the ground up; a module imports from its own floor or from below.
FLOORS = [
    ("data_pipeline",),
    ("helixfold.config", "helixfold.geometry", "helixfold.ops", "helixfold.batch", "helixfold.presets"),
    ("helixfold.model",),
    ("helixfold.weights", "helixfold.losses"),
    ("helixfold.execution", "helixfold.parallel", "helixfold.optim", "helixfold.relax"),
    ("helixfold.planning", "helixfold.prediction", "helixfold.analysis"),
    ("helixfold.write", "helixfold.inference", "helixfold.training"),
    ("helixfold.report", "helixfold.predict", "helixfold.notebook"),
    ("helixfold.benchmark",),
    ("helixfold.cli",),
]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def floor(module: str) -> int | None:
    levels = [
        level for level, names in enumerate(FLOORS) for name in names if module == name or module.startswith(f"{name}.")
    ]
    return levels[0] if levels else None


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_go_down_only(path: Path) -> None:
    own = floor(module_name(path))
    for imported in imports(path):
        other = floor(imported)
        if own is not None and other is not None:
            assert other <= own, f"{module_name(path)} imports {imported} from a floor above"


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_only_the_named_rooms_import_the_heavy(path: Path) -> None:
    module = module_name(path)
    for imported in imports(path):
        if imported.startswith("torch.distributed"):
            assert module.startswith(("helixfold.parallel", "helixfold.planning.links", "helixfold.training")), module
        if imported.split(".")[0] == "triton":
            assert module.startswith("helixfold.ops.triton"), module
        if imported.split(".")[0] == "torch":
            assert not module.startswith("data_pipeline"), module


def test_the_model_needs_only_torch_numpy_einops_and_jaxtyping() -> None:
    allowed = {"torch", "numpy", "einops", "jaxtyping", "helixfold", "data_pipeline", *sys.stdlib_module_names}
    for package in ("model", "ops", "execution", "geometry"):
        for path in (ROOT / "helixfold" / package).rglob("*.py"):
            kernels = {"triton"} if path.parent.name == "triton" else set()
            assert {name.split(".")[0] for name in imports(path)} <= allowed | kernels, path


def test_the_package_imports_without_gpu_libraries() -> None:
    check = "import sys, helixfold, helixfold.cli.predict; print([name for name in ('triton',) if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_stay_short_enough_to_hold_one_idea() -> None:
    long = [str(path) for path in SOURCES if len(path.read_text().splitlines()) > 400]
    assert not long
