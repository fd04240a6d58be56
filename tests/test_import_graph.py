"""Modules that import each other in a circle cannot be read one after the other: there are none."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.sources import ROOT, files, imported_names, is_convenience, module_name, nodes


def imported(path: Path) -> Iterator[str]:
    """Yield whatever a file imports, also inside functions, and what backends import at their first use.

    The tables of files and of old paths name modules that they do not import. The package's own names, and what the
    methods of `Prediction` need, are imported when they are used.
    """
    module = module_name(path)
    for name in imported_names(path):
        if module == "helixfold" or is_convenience(module, name):
            continue
        yield name
        yield name.rpartition(".")[0]
    for node in () if path.name in ("file_table.py", "_deprecated.py") or module == "helixfold" else nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("helixfold."):
            yield node.value.partition(":")[0]


def fail_on_circle(edges: Mapping[str, set[str]], what: str) -> None:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(f"{what} import each other: {' -> '.join(error.args[1])}")


def test_no_modules_import_each_other() -> None:
    paths = {module_name(path): path for path in files("helixfold", "data_pipeline")}
    fail_on_circle({name: {*imported(path)} & paths.keys() for name, path in paths.items()}, "modules")


def test_no_packages_import_each_other() -> None:
    edges: dict[str, set[str]] = {}
    for path in files("helixfold"):
        package = ".".join(module_name(path).split(".")[:2])
        others = {".".join(other.split(".")[:2]) for other in imported(path) if other.startswith("helixfold.")}
        edges.setdefault(package, set()).update(others - {package, "helixfold.__version__"})
    fail_on_circle(edges, "packages")


def test_no_folder_holds_more_than_25_files() -> None:
    folders = {path.parent for path in files("helixfold", "data_pipeline")}
    assert not {str(folder): count for folder in folders if (count := len(list(folder.glob("*.py")))) > 25}


def test_backends_are_imported_at_their_first_use_only() -> None:
    for path in (ROOT / "helixfold/ops").glob("*.py"):
        for name in imported_names(path):
            assert not name.startswith("helixfold.ops.cpu"), path
            assert not name.startswith("helixfold.ops.triton") or ".requirements" in name, path
