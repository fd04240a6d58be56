"""The house rules that a reader relies on: imports go down only, and heavy libraries have rooms of their own."""

import ast
import sys

from tests.support import tiers
from tests.support.sources import ROOT, files, imported_names, is_convenience, module_name, nodes
from tests.training.ranks import COMMANDS, LATE

SOURCES = files("data_pipeline", "helixfold", "scripts")
# From the ground up: a room imports only from rooms before it.
ROOMS = (
    "data_pipeline",
    "helixfold.runtime",
    "helixfold.ops",
    "helixfold.model",
    "helixfold.weights",
    "helixfold.losses",
    "helixfold.optim",
    "helixfold.execution",
    "helixfold.parallel",
    "helixfold.planning",
    "helixfold.folding",
    "helixfold.analysis",
    "helixfold.relax",
    "helixfold.results",
    "helixfold.report",
    "helixfold.training",
    "helixfold.apps",
    "helixfold.benchmark",
    "helixfold.cli",
)
# Of the applications, these two run others, on nodes and as jobs.
APPLICATIONS_IMPORTED = {"cluster": {"predict"}, "serve": {"predict", "cluster"}}
# Modules of helixfold itself.
LOOSE = {"__init__", "__main__", "_deprecated"}


DISTRIBUTED = ("helixfold.parallel", "helixfold.planning.links", "helixfold.training")


def room(module: str) -> str | None:
    """Return the room that a module is in, or that a name is imported from; None: not of this project, or no room."""
    return next((name for name in ROOMS if module == name or module.startswith(f"{name}.")), None)


def application(module: str) -> str | None:
    """Return the application that a module belongs to; None: what applications share, and everything else."""
    *_, name = ["", *module.split(".")[2:3]] if module.startswith("helixfold.apps.") else [""]
    return name if name and (ROOT / "helixfold" / "apps" / name).is_dir() else None


def test_a_room_imports_only_from_rooms_below_it() -> None:
    upward = []
    for path in SOURCES:
        own = room(module_name(path))
        for imported in imported_names(path):
            other = room(imported)
            if is_convenience(module_name(path), imported):
                continue
            if own is not None and other is not None and ROOMS.index(other) > ROOMS.index(own):
                upward.append(f"{module_name(path)} imports {imported} from a room above")
    assert not upward


def test_only_methods_of_predictions_import_from_rooms_above_and_only_when_they_are_called() -> None:
    (path,) = [path for path in SOURCES if is_convenience(module_name(path), "helixfold.report.")]
    at_once = [
        node.module
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module and is_convenience(module_name(path), node.module)
    ]
    (prediction,) = [node for node in nodes(path) if isinstance(node, ast.ClassDef) and node.name == "Prediction"]
    of_methods = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(prediction)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    for_types = {"helixfold.analysis.complexes.ComplexComparison", "helixfold.analysis.scores.Scores"}
    above = {name for name in imported_names(path) if is_convenience(module_name(path), name)}
    assert not at_once
    assert above - for_types == {*of_methods}


def test_every_module_is_in_a_room() -> None:
    names = [module_name(path) for path in files("data_pipeline", "helixfold")]
    loose = {name for name in names if room(name) is None}
    assert loose <= {"helixfold", *(f"helixfold.{name}" for name in LOOSE)}


def test_applications_do_not_import_each_other() -> None:
    imports = []
    for path in files("helixfold/apps"):
        own = application(module_name(path))
        for imported in imported_names(path):
            other = application(imported)
            if other is not None and other != own and other not in APPLICATIONS_IMPORTED.get(own or "", ()):
                imports.append(f"{module_name(path)} imports {imported}")
    assert not imports


def test_only_the_named_packages_import_heavy_libraries() -> None:
    misplaced = []
    for path in SOURCES:
        module = module_name(path)
        for imported in imported_names(path):
            library = imported.split(".")[0]
            if (
                (imported.startswith("torch.distributed") and not module.startswith(DISTRIBUTED))
                or (library == "triton" and not module.startswith("helixfold.ops.triton"))
                or (library in ("llvmlite", "numba") and not module.startswith("helixfold.ops.cpu.compiled"))
                or (library == "torch" and module.startswith("data_pipeline"))
            ):
                misplaced.append(f"{module} imports {imported}")
    assert not misplaced


def test_the_model_needs_only_torch_numpy_einops_and_jaxtyping() -> None:
    allowed = {"torch", "numpy", "einops", "jaxtyping", "helixfold", "data_pipeline", *sys.stdlib_module_names}
    for package in ("model", "ops", "execution"):
        for path in files(f"helixfold/{package}"):
            kernels = {"triton": {"triton"}, "compiled": {"llvmlite", "numba"}}.get(path.parent.name, set())
            assert {name.split(".")[0] for name in imported_names(path)} <= allowed | kernels, path


def test_no_file_has_more_than_700_lines() -> None:
    long = [str(path) for path in SOURCES if len(path.read_text().splitlines()) > 700]
    assert not long


def test_the_table_of_tiers_names_files_and_folders_that_exist() -> None:
    assert not [name for name in tiers.INTEGRATION if not (tiers.TESTS / name).exists()]


def test_only_tests_and_their_fixtures_are_marked_with_a_tier() -> None:
    """With `-m integration`, pytest imports no file without the mark, in itself or in a `conftest.py` above it."""
    marked = [path for path in tiers.TESTS.rglob("*.py") if tiers.marks_integration(path)]
    assert {path.name for path in marked if not path.name.startswith("test_")} == {"conftest.py", "tiers.py"}
    assert len(marked) > 50


def test_modules_that_are_imported_before_a_fork_exist() -> None:
    """The server from which processes are forked skips names of modules that do not exist."""
    own = [name for name in (*COMMANDS, *LATE) if name.startswith(("data_pipeline.", "helixfold.", "tests."))]
    assert [name for name in own if not (ROOT / f"{name.replace('.', '/')}.py").is_file()] == []
