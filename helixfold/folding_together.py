"""Fold several targets as one batch: on a GPU short targets take hardly longer together than one alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from data_pipeline.complexes.feature_set import TargetFeatures
from data_pipeline.features.sample import Sample
from helixfold.batch import Batch
from helixfold.execution.device import dtype_on
from helixfold.execution.recorded_passes import LAUNCHED, Passes, bucket_size
from helixfold.execution.stages import Stages
from helixfold.folding import (
    FoldingOptions,
    RecyclingResult,
    distance_change,
    fold,
    mean_plddt,
    prediction_of,
    recycled_guess,
)
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Folded, PredictedStructure, Recycled
from helixfold.model.update import Executor, as_tensor
from helixfold.model_input import draw, model_input
from helixfold.ops.card import card_of
from helixfold.planning.executors import RESERVE, Plan
from helixfold.prediction import Prediction
from helixfold.presets import Preset

# Kinds of devices that compute while the host does something else.
_DRAW_AHEAD = ("cuda",)
# Names of the stages that `fold_together` records.
STAGES = ("sampling", "network", "confidence")


@dataclass(frozen=True, kw_only=True)
class TargetToFold:
    """Features of a target, the name that its prediction gets, and the atoms that its first iteration recycles."""

    features: TargetFeatures
    name: str
    initial_guess: Float[np.ndarray, "r 37 3"] | None = None


def fit_together(plans: Sequence[Plan]) -> bool:
    """Return whether targets with these plans are all computed whole, and fit into memory in the same passes."""
    names = ("residues", "msa_rows", "extra_rows", "templates")
    padded = {name: max(getattr(plan.size, name) for plan in plans) for name in names}
    largest = replace(plans[0], size=replace(plans[0].size, **padded))
    # Each of them takes as much as one alone, or less.
    return all(plan.executor == "whole" for plan in plans) and (
        len(plans) * RESERVE * largest.forecast("whole").peak <= largest.available.memory
    )


@torch.no_grad()
def fold_together(
    model: AlphaFold,
    run: Executor,
    targets: Sequence[TargetToFold],
    preset: Preset,
    options: FoldingOptions,
    *,
    stages: Stages,
    passes: Passes = LAUNCHED,
) -> list[Prediction]:
    """Predict several targets with one model in the same passes, and return their predictions in order.

    Each is what `fold` returns for it alone, but for rounding: it has its own samples, and leaves the batch when its
    own recycling ends. Shorter targets are padded to the longest, and all of them to a common size if `passes` are
    recorded, for other targets to replay. Streams of the executor `run` must be tensors.
    """
    device = next(model.parameters()).device
    dtype = dtype_on(options.dtype, card_of(device))
    # The network's largest numbers are those of padding, which float16 does not hold. What is dropped out would be
    # the same in targets that share passes; structures of all passes are asked for to look at one target; and rings
    # have offsets for each pair of residues, which batches of several targets lack.
    if dtype == torch.float16 or options.dropout or options.save_passes or options.cyclic is not None:
        return [
            fold(
                model,
                run,
                each.features,
                preset,
                options,
                stages=stages,
                name=each.name,
                initial_guess=each.initial_guess,
            )
            for each in targets
        ]
    recycles, tolerance = options.recycles(preset), options.tolerance(preset)
    given = [model_input(target.features, preset) for target in targets]
    lengths = [len(each.features.aatype) for each in given]
    longest = max(lengths)
    is_recorded = passes.records(run, len(targets), bucket_size(longest))
    rounded: Callable[[int], int] = bucket_size if is_recorded else lambda size: size
    found: dict[int, Prediction] = {}
    remaining = list(range(len(targets)))
    previous = _recycled_guesses(run, model, targets, rounded(longest), dtype)

    def drawn(cycle: int) -> dict[int, list[Sample]]:
        """Return the ensemble of each remaining target for one iteration."""
        members = range(options.num_ensemble)
        return {
            each: [draw(given[each], preset, [options.seed, cycle, index]) for index in members] for each in remaining
        }

    samples: dict[int, list[Sample]] = {}
    for cycle in range(recycles + 1):
        with stages.stage("sampling"):
            samples = samples or drawn(cycle)
            ensemble = [
                Batch.from_samples(
                    [samples[each][index] for each in remaining], rounded(longest), device, round_rows=rounded
                )
                for index in range(options.num_ensemble)
            ]
        with stages.stage("network"):
            folded = passes(model, run, ensemble, previous, dtype)
            # A GPU computes while the host draws what comes next.
            samples = drawn(cycle + 1) if device.type in _DRAW_AHEAD and cycle < recycles else {}
            ended, converged = _ended(
                model,
                folded,
                previous,
                options,
                mask=ensemble[0].seq_mask,
                tolerance=tolerance if cycle > 0 else 0.0,
                is_last=cycle == recycles,
            )
        with stages.stage("confidence"):
            for place, number in enumerate(remaining):
                if ended[place]:
                    target = targets[number]
                    rows = min(len(given[number].features.msa), preset.sampling.max_msa_clusters)
                    last = RecyclingResult(
                        folded=_alone(folded, place, lengths[number], rows),
                        num_recycles=cycle,
                        converged=converged[place],
                    )
                    found[number] = prediction_of(
                        model,
                        run,
                        last,
                        given=given[number],
                        name=target.name,
                        options=options,
                    )
        kept = [place for place, has_ended in enumerate(ended) if not has_ended]
        remaining = [remaining[place] for place in kept]
        if not remaining:
            break
        previous = _of_samples(folded.recycled(), kept if len(kept) < len(ended) else None)
        # Its MSA is not held while the next iteration makes one.
        del folded
    return [found[number] for number in range(len(targets))]


def _ended(
    model: AlphaFold,
    folded: Folded,
    previous: Recycled | None,
    options: FoldingOptions,
    *,
    mask: Tensor,
    tolerance: float,
    is_last: bool,
) -> tuple[list[bool], list[bool]]:
    """Return for each sample whether its recycling ends with this iteration, and whether that is as it converged."""
    count = len(mask)
    converged = [False] * count
    if previous is not None and tolerance > 0:
        change = distance_change(previous.positions, folded.structure.positions, mask)
        converged = (change < tolerance).tolist()
    good_enough = [False] * count
    if options.stop_at_score is not None:
        good_enough = [score >= options.stop_at_score for score in mean_plddt(model, folded, mask).tolist()]
    return [is_last or any(each) for each in zip(converged, good_enough, strict=True)], converged


def _recycled_guesses(
    run: Executor, model: AlphaFold, targets: Sequence[TargetToFold], residues: int, dtype: torch.dtype
) -> Recycled | None:
    """Return the initial guesses of targets, padded to so many residues; a target without one recycles nothing."""
    if all(target.initial_guess is None for target in targets):
        return None
    positions = np.zeros((len(targets), residues, 37, 3), np.float32)
    for place, target in zip(positions, targets, strict=True):
        if target.initial_guess is not None:
            place[: len(target.initial_guess)] = target.initial_guess
    return recycled_guess(run, model, positions, dtype)


def _of_samples(recycled: Recycled, kept: list[int] | None) -> Recycled:
    """Return what is recycled of some samples; None stands for all."""
    if kept is None:
        return recycled
    return Recycled(
        msa_first_row=recycled.msa_first_row[kept],
        pair=as_tensor(recycled.pair)[kept],
        positions=recycled.positions[kept],
    )


def _alone(folded: Folded, place: int, residues: int, rows: int) -> Folded:
    """Return one sample's result as a batch of one, without the padding of residues and of MSA rows."""
    own, real = slice(place, place + 1), slice(residues)
    representations, structure = folded.representations, folded.structure
    # Dim 0 of these counts the structure module's iterations.
    by_iteration = ("frames", "rigid_groups", "atom14", "torsions", "unnormalized_torsions")
    return Folded(
        representations=replace(
            representations,
            msa=as_tensor(representations.msa)[own, :rows, real],
            msa_first_row=representations.msa_first_row[own, real],
            pair=as_tensor(representations.pair)[own, real, real],
            single=representations.single[own, real],
        ),
        structure=PredictedStructure(
            **{
                name: value[:, own, real] if name in by_iteration else value[own, real]
                for name, value in vars(structure).items()
            }
        ),
    )
