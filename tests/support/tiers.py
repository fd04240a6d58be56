"""Tests are in three tiers: unit, integration and long; tests/README.md describes them.

A test is in the tier `long` if it is marked so, in `integration` if it is marked so or its file or folder is in the
table below, and otherwise in `unit`.
"""

from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# Files and folders of the tier `integration`, below tests/.
INTEGRATION = (
    "apps/cluster/test_engine.py",  # imports Parsl
    "apps/cluster/test_run.py",  # nodes of a cluster
    "apps/design/test_interrupted_steps.py",
    "apps/design/test_memory.py",
    "apps/predict",  # whole runs of commands
    "apps/serve/test_browser.py",
    "apps/serve/test_cluster_worker.py",
    "apps/serve/test_generated.py",
    "apps/serve/test_hostile_servers.py",
    "apps/serve/test_interrupted_steps.py",
    "apps/serve/test_interruptions.py",  # servers, workers and clients that are killed
    "apps/serve/test_power_cut.py",
    "apps/serve/test_worker_messages.py",
    "apps/verify",
    "bad_input",  # commands with some four hundred wrong inputs
    "benchmark",
    "cli/test_benchmark.py",
    "cli/test_benchmark_evaluation.py",
    "cli/test_compare.py",
    "cli/test_doctor.py",
    "cli/test_evaluate.py",
    "cli/test_feature_store.py",
    "cli/test_features.py",
    "cli/test_interrupted_commands.py",
    "cli/test_main.py",
    "cli/test_plan.py",
    "cli/test_relax.py",
    "cli/test_report.py",
    "cli/test_train.py",
    "cli/test_weights.py",
    "data_pipeline/parse/test_anything.py",
    "data_pipeline/search/test_interrupted_steps.py",
    "data_pipeline/training_sets/test_interrupted_steps.py",
    "docs",  # commands and Python of the documentation
    "earlier_versions",
    "examples",
    "execution/test_bfloat16.py",
    "execution/test_recompute.py",
    "execution/test_iteration_runner.py",
    "folding",  # whole predictions
    "gpu",  # without a GPU, in Triton's interpreter
    "notebooks",
    "ops/cpu/test_loops.py",  # compiles loops
    "ops/test_frozen.py",  # kernels in Triton's interpreter
    "ops/test_meta.py",
    *(
        f"ops/triton/test_{kernel}.py"
        for kernel in (
            "attention",
            "layer_norm",
            "meta",
            "norm_linear",
            "outer_product",
            "point_attention",
            "residual",
            "residual_norm",
            "self_attention",
            "shared_memory",  # compiles kernels
            "transition",
            "triangle",
            "update_frames",
        )
    ),
    "parallel/test_complexes.py",  # several ranks
    "parallel/test_hybrid.py",
    "parallel/test_launch.py",
    "parallel/test_neighbours.py",
    "parallel/test_rendezvous.py",
    "parallel/test_worker_group.py",
    "parity/test_cases.py",  # whole networks
    "parity/test_design_cases.py",
    "parity/test_gradients.py",
    "parity/test_initial_guess.py",
    "parity/test_make_cases.py",
    "parity/test_pairing.py",
    "parity/test_range_factors.py",
    "parity/test_trained_ranges.py",
    "planning/test_complex_training.py",  # whole passes and steps on meta tensors
    "planning/test_gpu_slabs.py",
    "planning/test_layouts.py",
    "planning/test_machines.py",
    "planning/test_measured_machines.py",
    "planning/test_new_update.py",
    "planning/test_prediction.py",
    "planning/test_recompute_choice.py",
    "planning/test_training.py",
    "report/test_target_page.py",
    "report/test_target_page_in_browser.py",
    "runtime/test_interruption.py",  # kills
    "scripts/test_mutations.py",
    "test_bare_machine.py",
    "test_english.py",  # reads every file
    "test_host_waits.py",
    "test_import_graph.py",
    "test_imports.py",  # a process for each library that is absent
    "test_safety.py",
    "training/finetune/test_adapted.py",  # several ranks
    "training/finetune/test_distillation.py",
    "training/finetune/test_finetune.py",  # a whole fine-tuning and predictions with it
    "training/finetune/test_interrupted_steps.py",
    "training/finetune/test_jobs.py",
    "training/finetune/test_memory.py",
    "training/finetune/test_planted_structure.py",
    "training/test_checkpoint_files.py",
    "training/test_complex_batches.py",
    "training/test_complex_evaluation.py",
    "training/test_complex_runs.py",  # several ranks
    "training/test_elastic.py",
    "training/test_interrupted_steps.py",
    "training/test_interruptions.py",
    "training/test_learning.py",
    "training/test_loader.py",  # worker processes
    "training/test_memory.py",
    "training/test_overfit_one.py",
    "training/test_captured_step.py",
    "training/test_trainer.py",  # whole runs
    "training/test_workload.py",
    "weights/test_interrupted_steps.py",
)
_INTEGRATION = {TESTS / name for name in INTEGRATION}
# What `addopts` in pyproject.toml selects.
UNIT = "not integration and not long"


def tier_of(item: pytest.Item) -> str:
    """The tier of a collected test."""
    return next((tier for tier in ("long", "integration") if item.get_closest_marker(tier)), "unit")


def _is_listed(path: Path) -> bool:
    """Return whether the table has this file or a folder above it."""
    return not _INTEGRATION.isdisjoint((path, *path.parents))


@cache
def marks_integration(path: Path) -> bool:
    """Return whether a file exists and marks tests or parameters with the tier `integration`."""
    return path.is_file() and "mark.integration" in path.read_text()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files without tests of the selected tier, which would take half of the time of a collection."""
    selected = config.getoption("markexpr")
    if selected == UNIT:
        return collection_path in _INTEGRATION or None
    if selected == "integration" and collection_path.suffix == ".py" and not _is_listed(collection_path):
        fixtures = (folder / "conftest.py" for folder in collection_path.parents if folder.is_relative_to(TESTS))
        return not any(map(marks_integration, (collection_path, *fixtures))) or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with exactly its tier, before -m selects by marks."""
    for item in items:
        if item.get_closest_marker("long"):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "integration"]
        elif not item.get_closest_marker("integration") and _is_listed(item.path):
            item.add_marker("integration")
