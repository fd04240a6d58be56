"""The house rules that a reader relies on: imports go down only, and heavy libraries have rooms of their own."""

import sys

from tests.support import tiers
from tests.support.sources import files, imported_names, module_name

SOURCES = files("data_pipeline", "helixfold", "scripts")
# From the ground up; a module imports from its own floor or from below.
FLOORS = [
    ("data_pipeline",),
    (
        "helixfold.runtime.annotations",
        "helixfold.runtime.openmp",
        "helixfold.runtime.interruption",
        "helixfold.runtime.options",
        "helixfold.runtime.standard_streams",
        "helixfold.model.config",
        "helixfold.model.geometry",
        "helixfold.ops",
        "helixfold.model.batch",
        "helixfold.model.presets",
    ),
    ("helixfold.model",),
    ("helixfold.weights", "helixfold.losses"),
    ("helixfold.execution", "helixfold.parallel", "helixfold.optim", "helixfold.relax"),
    ("helixfold.planning", "helixfold.analysis"),
    ("helixfold.folding", "helixfold.results", "helixfold.training"),
    (
        "data_pipeline.search",
        "helixfold.report",
        "helixfold.apps",
        "helixfold.training.finetune",
        "helixfold.report.notebook",
        "helixfold.apps.verify",
    ),
    ("helixfold.apps.design",),
    ("helixfold.apps.cluster", "helixfold.apps.score", "helixfold.apps.serve"),
    ("helixfold.benchmark", "helixfold.apps.evaluate"),
    ("helixfold.cli",),
]


DISTRIBUTED = ("helixfold.parallel", "helixfold.planning.links", "helixfold.training")


def floor(module: str) -> int | None:
    levels = [
        level for level, names in enumerate(FLOORS) for name in names if module == name or module.startswith(f"{name}.")
    ]
    return levels[0] if levels else None


def test_imports_go_down_only() -> None:
    upward = []
    for path in SOURCES:
        own = floor(module_name(path))
        for imported in imported_names(path):
            other = floor(imported)
            if own is not None and other is not None and other > own:
                upward.append(f"{module_name(path)} imports {imported} from a floor above")
    assert not upward


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
    for package in ("model", "ops", "execution", "geometry"):
        for path in files(f"helixfold/{package}"):
            kernels = {"triton": {"triton"}, "compiled": {"llvmlite", "numba"}}.get(path.parent.name, set())
            assert {name.split(".")[0] for name in imported_names(path)} <= allowed | kernels, path


def test_no_file_has_more_than_700_lines() -> None:
    long = [str(path) for path in SOURCES if len(path.read_text().splitlines()) > 700]
    assert not long


def test_the_table_of_tiers_names_files_and_folders_that_exist() -> None:
    assert not [name for name in tiers.INTEGRATION if not (tiers.TESTS / name).exists()]
