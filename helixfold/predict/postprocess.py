"""What follows when all predictions of a target lie in its directory, step by step, up to the mark that it is finished.

Every step reads files and writes files. A target that is killed in between does its missing steps when it is run again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helixfold.execution.stages import Stages
from helixfold.predict import relaxation
from helixfold.predict.jobs import Method
from helixfold.report.plots import write_plots
from helixfold.report.target_page import write_report
from helixfold.write.ranking import (
    Finished,
    all_notes,
    mark_finished,
    ranked,
    read_finished,
    write_ranked,
)
from helixfold.write.results import write_timings
from helixfold.write.tables import write_tables


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target whose predictions are written, as the steps see it; `say` prints a line about it."""

    directory: Path
    names: tuple[str, ...]  # of its predictions, which are those of their files
    method: Method
    facts: Mapping[str, object]  # for timings.json
    stages: Stages
    say: Callable[[str], None]


# In this order; each is called with the predictions, best first, and has its line in timings.json if it comes before
# that is written. What changes structures goes before "ranking", and the mark is last.
STEPS: tuple[tuple[str, Callable[[Target, list[Finished]], None]], ...] = (
    (
        "relaxation",
        lambda target, order: relaxation.relax_predictions(
            target.directory, order, target.method.to_relax, target.method.device, target.say
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
    ("report", lambda target, order: write_report(target.directory, [each.name for each in order])),
    ("mark", lambda target, order: mark_finished(target.directory, order)),
)


def has_followed(directory: Path, predictions: Sequence[Finished], method: Method) -> bool:
    """Whether what this method asks for has been done with a target that is marked as finished."""
    ranks = range(len(predictions))
    there = all((directory / f"ranked_{rank}.{kind}").is_file() for rank in ranks for kind in ("pdb", "cif"))
    return there and relaxation.is_done(directory, predictions, method.to_relax)


def finish(target: Target) -> list[Finished]:
    """Carry out all steps; the predictions, best first."""
    found = [read_finished(target.directory, name) for name in target.names]
    order = ranked([each for each in found if each is not None])
    for name, step in STEPS:
        with target.stages.stage(name):
            step(target, order)
    return order
