"""Relaxation as a step of `helixfold predict`: which predictions are relaxed, and what is said of each."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import torch

from data_pipeline.errors import InputError
from helixfold.planning.executors import release
from helixfold.predict.options import ToRelax
from helixfold.relax.problem import RelaxationError, installed
from helixfold.relax.relaxation import relax
from helixfold.relax.result import Relaxed
from helixfold.write.ranking import FinishedPrediction, ranked
from helixfold.write.relaxed import (
    failure,
    metrics_of,
    read_metrics,
    read_unrelaxed,
    write_metrics,
    write_relaxed,
)

INSTALL = "pip install 'helixfold[relax]'"
_LONG = 300  # residues; on a CPU they take about a minute, and a word beforehand is due


def chosen(asked: ToRelax | None, *, trained: bool) -> tuple[ToRelax, str | None]:
    """Which predictions are relaxed, and what the user should know of that."""
    if asked is not None and asked not in get_args(ToRelax):
        raise InputError(f"models_to_relax must be one of {', '.join(get_args(ToRelax))}, got {asked!r}")
    if asked in ("best", "all") and not installed():
        raise InputError(f"--models-to-relax {asked} needs OpenMM and PDBFixer, which are not installed: {INSTALL}")
    if asked is not None:
        return asked, None
    if not trained:
        return "none", None
    if not installed():
        return "none", f"structures are not relaxed, for OpenMM is not installed ({INSTALL}; --models-to-relax none)"
    return "best", None


def is_done(directory: Path, predictions: Sequence[FinishedPrediction], to_relax: ToRelax) -> bool:
    """Whether every prediction that should be has been relaxed, or found to be beyond that."""
    there = read_metrics(directory)
    return all(each.name in there for each in _wanted(ranked(predictions), to_relax))


def relax_predictions(
    directory: Path,
    order: Sequence[FinishedPrediction],
    to_relax: ToRelax,
    device: torch.device,
    say: Callable[[str], None],
) -> None:
    """Relax what is to be, the best first; `order` has all predictions of the target, the best first.

    One that cannot be relaxed stays as it was predicted, which is said, and why is written down.
    """
    metrics = read_metrics(directory)
    missing = [each for each in _wanted(order, to_relax) if each.name not in metrics]
    if not missing:
        return
    release(device)
    for prediction in missing:
        if device.type == "cpu" and len(prediction.plddt) > _LONG:
            say(f"{prediction.name}: relaxing {len(prediction.plddt)} residues on the CPU, which takes minutes")
        try:
            relaxed = relax(read_unrelaxed(directory, prediction), device=device)
            write_relaxed(directory, prediction, relaxed)
        except (RelaxationError, MemoryError) as error:
            why = str(error) or "memory is used up"
            metrics[prediction.name] = failure(why)
            say(f"{prediction.name}: not relaxed: {why}")
        else:
            metrics[prediction.name] = metrics_of(relaxed)
            say(f"{prediction.name}: {summary(relaxed)}")
        write_metrics(directory, metrics)


def summary(relaxed: Relaxed) -> str:
    """What relaxation did, in one line."""
    before, after = relaxed.before.residues, relaxed.after.residues
    violations = f"{before} residues with violations, now {after}" if before else "no violations before or after"
    where = "the CPU" if relaxed.platform == "CPU" else f"the GPU ({relaxed.platform})"
    return f"relaxed, {violations}; atoms moved {relaxed.rmsd:.2f} A; {relaxed.seconds:.1f} s on {where}"


def _wanted(order: Sequence[FinishedPrediction], to_relax: ToRelax) -> Sequence[FinishedPrediction]:
    return {"best": order[:1], "all": order, "none": order[:0]}[to_relax]
