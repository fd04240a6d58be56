"""Modules that import each other in a circle cannot be read one after the other: there are none in these folders."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(
    str(path.parent.relative_to(ROOT))
    for package in ("helixfold", "data_pipeline")
    for path in (ROOT / package).rglob("__init__.py")
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    """Whatever a file imports, also inside functions, and what backends import at their first use."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("helixfold."):
            yield node.value.partition(":")[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_modules_import_each_other(folder: str) -> None:
    paths = {module_name(path): path for path in (ROOT / folder).rglob("*.py")}
    edges = {name: {other for other in imported(path) if other in paths} for name, path in paths.items()}
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_no_packages_import_each_other() -> None:
    edges: dict[str, set[str]] = {}
    for path in (ROOT / "helixfold").rglob("*.py"):
        room = ".".join(module_name(path).split(".")[:2])
        others = {".".join(other.split(".")[:2]) for other in imported(path) if other.startswith("helixfold.")}
        edges.setdefault(room, set()).update(others - {room, "helixfold.__version__"})
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(f"packages import each other: {' -> '.join(error.args[1])}")


def test_no_folder_holds_more_than_25_files() -> None:
    folders = {path.parent for top in ("helixfold", "data_pipeline") for path in (ROOT / top).rglob("*.py")}
    assert not {str(folder): count for folder in folders if (count := len(list(folder.glob("*.py")))) > 25}


def test_backends_are_imported_at_their_first_use_only() -> None:
    for path in (ROOT / "helixfold/ops").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not node.module.startswith("helixfold.ops.cpu"), path
                assert not node.module.startswith("helixfold.ops.triton") or node.module.endswith("refusal"), path
