"""Finish a target once all its predictions are written: relax, rank, plot, tabulate, report and mark it as finished.

Every step reads files and writes files, so that a target that was interrupted makes up for missing steps later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helixfold.execution.stages import Stages
from helixfold.predict import relaxation
from helixfold.predict.jobs import RunSettings
from helixfold.report.plots import write_plots
from helixfold.report.target_page import write_report
from helixfold.write.ranking import (
    FinishedPrediction,
    all_notes,
    ranked,
    read_finished,
    write_ranked,
    write_ranking,
)
from helixfold.write.results import write_timings
from helixfold.write.tables import write_tables


@dataclass(frozen=True, kw_only=True)
class PredictedTarget:
    """A target whose predictions are written, with what the steps need; `say` prints a line about it."""

    directory: Path
    title: str  # the target's name as its file has it
    names: tuple[str, ...]  # of the predictions, as in their files' names
    settings: RunSettings
    facts: Mapping[str, object]  # for timings.json
    stages: Stages
    say: Callable[[str], None]


# In this order; each is called with the predictions, best first, and has its line in timings.json if it comes before
# that is written. What changes structures goes before "ranking", and the mark is last.
STEPS: tuple[tuple[str, Callable[[PredictedTarget, list[FinishedPrediction]], None]], ...] = (
    (
        "relaxation",
        lambda target, order: relaxation.relax_predictions(
            target.directory, order, target.settings.to_relax, target.settings.device, target.say, name=target.title
        ),
    ),
    ("ranking", lambda target, order: write_ranked(target.directory, order)),
    ("plots", lambda target, order: write_plots(target.directory, order)),
    ("tables", lambda target, order: write_tables(target.directory, order)),
    (
        "timings",
        lambda target, order: write_timings(
            target.directory, {**target.facts, "stages": target.stages.table()}, notes=all_notes(order)
        ),
    ),
    ("report", lambda target, order: write_report(target.directory, [prediction.name for prediction in order])),
    ("mark", lambda target, order: write_ranking(target.directory, order)),
)


def is_postprocessed(directory: Path, predictions: Sequence[FinishedPrediction], settings: RunSettings) -> bool:
    """Return whether a target that is marked as finished has all files that these settings ask for."""
    ranks = range(len(predictions))
    is_ranked = all((directory / f"ranked_{rank}.{kind}").is_file() for rank in ranks for kind in ("pdb", "cif"))
    return is_ranked and relaxation.is_done(directory, predictions, settings.to_relax)


def postprocess(target: PredictedTarget) -> list[FinishedPrediction]:
    """Carry out all steps and return the predictions, best first."""
    predictions = (read_finished(target.directory, name) for name in target.names)
    order = ranked([prediction for prediction in predictions if prediction is not None])
    for name, step in STEPS:
        with target.stages.stage(name):
            step(target, order)
    return order
