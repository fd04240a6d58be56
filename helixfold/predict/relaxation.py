"""Relax predictions as a step of `helixfold predict`, and print what became of each."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from data_pipeline.errors import InputError
from data_pipeline.protein import Protein
from helixfold.planning.executors import release
from helixfold.predict.options import ToRelax
from helixfold.relax.problem import RelaxationError, installed
from helixfold.relax.relaxation import relax
from helixfold.relax.result import Relaxed
from helixfold.report.page import counted
from helixfold.write.origin import ModelOrigin
from helixfold.write.ranking import FinishedPrediction, ranked
from helixfold.write.relaxed import (
    read_metrics,
    read_unrelaxed,
    relaxation_metrics,
    write_metrics,
    write_relaxed,
)

INSTALL = "pip install 'helixfold[relax]'"
_LONG = 300  # residues; on a CPU they take about a minute, and a word beforehand is due
# Angstrom, over the heavy atoms of residues that keep their restraints, and the most residues that may lose them. Sound
# predictions move by a few tenths. What moves farther is another structure, which the model did not predict and whose
# confidence nobody knows.
MOST_MOVED, MOST_FREED = 2.0, 0.9


def chosen(requested: ToRelax | None, *, trained: bool) -> tuple[ToRelax, str | None]:
    """Return which predictions to relax, by default if OpenMM is there and parameters are trained, and a remark."""
    if requested in ("best", "all") and not installed():
        raise InputError(f"--models-to-relax {requested} needs OpenMM and PDBFixer, which are not installed: {INSTALL}")
    if requested is not None:
        return requested, None
    if not trained:
        return "none", None
    if not installed():
        return "none", f"structures are not relaxed, for OpenMM is not installed ({INSTALL}; --models-to-relax none)"
    return "best", None


def is_done(directory: Path, predictions: Sequence[FinishedPrediction], to_relax: ToRelax) -> bool:
    """Return whether every prediction to relax has an entry in the metrics file, also if relaxing it failed."""
    metrics = read_metrics(directory)
    return all(prediction.name in metrics for prediction in _selected(ranked(predictions), to_relax))


def relax_predictions(
    directory: Path,
    order: Sequence[FinishedPrediction],
    to_relax: ToRelax,
    device: torch.device,
    say: Callable[[str], None],
    *,
    name: str | None = None,
    origin_of: Callable[[str], ModelOrigin | None] = lambda _: None,
) -> None:
    """Relax the predictions that `to_relax` selects of target `name`'s predictions, given best first.

    `origin_of` takes the name of a prediction and returns what its mmCIF file tells of its origin. One that cannot be
    relaxed stays as it was predicted; the reason is printed and written to the metrics file.
    """
    metrics = read_metrics(directory)
    missing = [prediction for prediction in _selected(order, to_relax) if prediction.name not in metrics]
    if not missing:
        return
    release(device)
    for prediction in missing:
        if device.type == "cpu" and len(prediction.plddt) > _LONG:
            say(f"{prediction.name}: relaxing {len(prediction.plddt)} residues on the CPU, which takes minutes")
        try:
            relaxed = _relaxed(read_unrelaxed(directory, prediction), device)
            write_relaxed(directory, prediction, relaxed, name, origin_of(prediction.name))
        except (RelaxationError, MemoryError) as error:
            why = str(error) or "memory is used up"
            metrics[prediction.name] = {"failed": why}
            say(f"{prediction.name}: not relaxed: {why}")
        else:
            metrics[prediction.name] = relaxation_metrics(relaxed)
            say(f"{prediction.name}: {summary(relaxed)}")
        write_metrics(directory, metrics)


def _relaxed(protein: Protein, device: torch.device) -> Relaxed:
    """Relax a prediction. Raise `RelaxationError` if that makes another structure of it, as of chains that overlap."""
    relaxed = relax(protein, device=device)
    residues = len(protein.aatype)
    if relaxed.rmsd_held > MOST_MOVED or len(relaxed.freed) > MOST_FREED * residues:
        raise RelaxationError(
            f"its atoms would move by {relaxed.rmsd:.1f} A, and {len(relaxed.freed)} of {residues} residues had to be "
            "placed anew, which makes another structure of it; `helixfold relax` does so on request"
        )
    return relaxed


def summary(relaxed: Relaxed) -> str:
    """Describe a relaxation in one line."""
    before, after = relaxed.before.residues, relaxed.after.residues
    violations = (
        f"{counted(before, 'residue')} with violations, now {after}" if before else "no violations before or after"
    )
    where = "the CPU" if relaxed.platform == "CPU" else f"the GPU ({relaxed.platform})"
    return f"relaxed, {violations}; atoms moved {relaxed.rmsd:.2f} A; {relaxed.seconds:.1f} s on {where}"


def _selected(order: Sequence[FinishedPrediction], to_relax: ToRelax) -> Sequence[FinishedPrediction]:
    return {"best": order[:1], "all": order, "none": order[:0]}[to_relax]
