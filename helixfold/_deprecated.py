"""Old import paths of helixfold, which work with a `DeprecationWarning` until version 0.5.

`MODULES` maps the old name of a module, with all modules below it, to its name now; `NAMES` maps single names to the
module that has them now. `data_pipeline._deprecated` has the same for that package, and how they are found.
"""

from collections.abc import Callable
from typing import Any

from data_pipeline import _deprecated as old_paths

MODULES = {
    "helixfold.alignment_features": "helixfold.training.alignment_features",
    "helixfold.annotations": "helixfold.runtime.annotations",
    "helixfold.batch": "helixfold.model.batch",
    "helixfold.cluster": "helixfold.apps.cluster",
    "helixfold.config": "helixfold.model.config",
    "helixfold.databases.check": "data_pipeline.search.database_check",
    "helixfold.databases.download": "data_pipeline.search.database_download",
    "helixfold.design": "helixfold.apps.design",
    "helixfold.evaluation": "helixfold.apps.evaluate",
    "helixfold.finetune": "helixfold.training.finetune",
    "helixfold.geometry": "helixfold.model.geometry",
    "helixfold.inference": "helixfold.folding.api",
    "helixfold.notebook.overfit_one": "helixfold.training.overfit_one",
    "helixfold.notebook": "helixfold.report.notebook",
    "helixfold.options": "helixfold.runtime.options",
    "helixfold.presets": "helixfold.model.presets",
    "helixfold.representations": "helixfold.folding.representations",
    "helixfold.scoring": "helixfold.apps.score",
    "helixfold.serve": "helixfold.apps.serve",
    "helixfold.standard_streams": "helixfold.runtime.standard_streams",
    "helixfold.verification": "helixfold.apps.verify",
    "helixfold.write": "helixfold.results",
}
NAMES = {
    "helixfold.analysis.matching": {"find_predictions": "helixfold.results.find.find_predictions"},
    "helixfold.folding": {"FoldingOptions": "helixfold.folding.options.FoldingOptions"},
    "helixfold.folding.api": {"fold": "helixfold.folding.recycling.fold"},
    "helixfold.results.relaxed": {"RELAXATION_FILE": "helixfold.results.file_table.RELAXATION"},
    "helixfold.training.log": {
        name: f"helixfold.results.training_log.{name}" for name in ("EvaluationRecord", "TrainingHistory", "read_log")
    },
}


def install() -> None:
    """Let Python find the modules of this package by their old names."""
    old_paths.install(MODULES)


def moved_names(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that has an entry in `NAMES`."""
    return old_paths.moved_names(module, NAMES[module])
