"""Fold one or several targets with one model: draw samples, run the network with recycling, read off predictions."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline.features.complexes.feature_set import TargetFeatures
from data_pipeline.features.sample import Sample
from data_pipeline.parse.restraints import DistanceRestraints
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from helixfold.execution.device import dtype_on
from helixfold.execution.iteration_runner import EAGER, IterationRunner, bucket_size
from helixfold.execution.stages import Stages
from helixfold.folding.model_input import ModelInput, batch_of, draw, generator, model_input
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.folding.readout import mean_plddt, predicted_protein, prediction_of, representation, sample_of
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.evoformer import outer_mask
from helixfold.model.outputs import Folded, Recycled, nothing_recycled
from helixfold.model.presets import Preset
from helixfold.model.update import Executor, as_tensor
from helixfold.ops.device_properties import properties_of
from helixfold.runtime.options import RepresentationName

# Kinds of devices that compute while the host does something else.
_DRAW_AHEAD = ("cuda",)
STAGES = ("sampling", "network", "confidence")


@dataclass(frozen=True, kw_only=True)
class FoldingTarget:
    """Features of a target, and what its recycling starts from.

    `name` is the prediction's; None is the model's. The first iteration recycles the atoms of `initial_guess`
    (Angstrom), or nothing; see `helixfold.folding.initial_guess`. `offsets` are the distances of residues along the
    chain; see `helixfold.folding.residue_offsets`. `restraints` are for AlphaLink's networks.
    """

    features: TargetFeatures
    name: str | None = None
    initial_guess: Float[np.ndarray, "r 37 3"] | None = None
    offsets: Int[np.ndarray, "r r"] | None = None
    restraints: DistanceRestraints | None = None


@torch.no_grad()
def fold(
    model: AlphaFold,
    preset: Preset,
    targets: Sequence[FoldingTarget],
    options: FoldingOptions,
    run: Executor,
    *,
    stages: Stages,
    runner: IterationRunner = EAGER,
) -> list[Prediction]:
    """Predict one or several targets with one model, and return their predictions in order (Suppl. Alg. 30).

    Several targets share the network's passes; the streams of the executor `run` must then be tensors. Up to rounding,
    a target folded alone gives the same prediction: each has its own samples and leaves the batch when its own
    recycling ends. Shorter targets are padded to the longest, and all of them to a common size if `runner`
    captures CUDA graphs, which other targets can then replay. A prediction depends only on features, parameters,
    options and the device's arithmetic. With a tolerance or a score to stop at, the host waits for a GPU once per
    iteration.
    """
    device = next(model.parameters()).device
    dtype = dtype_on(options.dtype, properties_of(device))
    if len(targets) > 1 and not can_share_passes(targets, options, dtype):
        alone = [fold(model, preset, [target], options, run, stages=stages, runner=runner) for target in targets]
        return [prediction for (prediction,) in alone]
    inputs = [
        model_input(
            target.features, preset, cyclic=options.cyclic, offsets=target.offsets, restraints=target.restraints
        )
        for target in targets
    ]
    draws = _Draws(inputs, preset, options, device, is_captured=_is_captured(inputs, run, runner))
    names = [target.name or preset.name for target in targets]
    prefix = f"{names[0]}: " if len(targets) == 1 else ""
    recycles, tolerance = options.recycles(preset), options.tolerance(preset)
    predictions: dict[int, Prediction] = {}
    earlier: list[tuple[Protein, dict[RepresentationName, np.ndarray]]] = []
    remaining = list(range(len(targets)))
    previous = _recycled_guesses(run, model, targets, draws.residues, dtype)
    with dropping_out(model, inputs[0].name, preset, options):
        for cycle in range(recycles + 1):
            with stages.stage(f"{prefix}sampling"):
                ensemble = draws.ensemble(remaining, cycle)
            with stages.stage(f"{prefix}network"):
                folded = runner(model, run, ensemble, previous, dtype)
                if device.type in _DRAW_AHEAD and cycle < recycles:
                    draws.draw(remaining, cycle + 1)
                # An initial guess may be as good as what comes of it; only predictions converge.
                converged = _converged(
                    previous if cycle > 0 and tolerance > 0 else None, folded, ensemble[0].seq_mask, tolerance
                )
                ended = _ended(model, folded, ensemble[0].seq_mask, converged, options, is_last=cycle == recycles)
            for place, number in enumerate(remaining):
                if not ended[place]:
                    continue
                with stages.stage(f"{prefix}confidence"):
                    predictions[number] = prediction_of(
                        model,
                        run,
                        folded if len(targets) == 1 else draws.sample_of(folded, place, number),
                        inputs[number],
                        options,
                        name=names[number],
                        num_recycles=cycle,
                        converged=converged[place],
                    )
            kept = [place for place, has_ended in enumerate(ended) if not has_ended]
            if not kept:
                break
            if options.save_passes:
                represented = {name: representation(run, folded, name) for name in options.representations}
                earlier.append((predicted_protein(model, folded, inputs[0]), represented))
            remaining = [remaining[place] for place in kept]
            previous = _of_samples(folded.recycled(), kept if len(kept) < len(ended) else None)
            # Its MSA is not held while the next iteration makes one.
            del folded
    if options.save_passes:
        proteins, represented_passes = tuple(zip(*earlier, strict=True)) or ((), ())
        predictions[0] = replace(
            predictions[0],
            recycling_iterations=(*proteins, predictions[0].protein),
            pass_representations=represented_passes if options.representations else (),
        )
    return [predictions[number] for number in range(len(targets))]


def can_share_passes(targets: Sequence[FoldingTarget], options: FoldingOptions, dtype: torch.dtype) -> bool:
    """Return whether several targets can be one batch; `dtype` is the trunk's precision."""
    # Padding produces the network's largest numbers, which float16 cannot hold. Dropout would be the same for all
    # targets of a batch. Structures of all passes are kept for one target only, and so are offsets and
    # restraints of residue pairs.
    has_pairs = options.cyclic is not None or any(
        target.offsets is not None or target.restraints is not None for target in targets
    )
    return not (dtype == torch.float16 or options.dropout or options.save_passes or has_pairs)


def _is_captured(inputs: Sequence[ModelInput], run: Executor, runner: IterationRunner) -> bool:
    longest = max(len(each.features.aatype) for each in inputs)
    return len(inputs) > 1 and runner.captures(run, len(inputs), bucket_size(longest))


class _Draws:
    """Random draws of targets' samples, each once, as batches.

    `residues` is the length to which batches are padded.
    """

    def __init__(
        self,
        inputs: Sequence[ModelInput],
        preset: Preset,
        options: FoldingOptions,
        device: torch.device,
        *,
        is_captured: bool,
    ) -> None:
        self._inputs, self._preset, self._options, self._device = inputs, preset, options, device
        self._is_captured = is_captured
        self._lengths = [len(each.features.aatype) for each in inputs]
        longest = max(self._lengths)
        self.residues = bucket_size(longest) if is_captured else longest
        self._drawn: dict[tuple[int, int], list[Sample]] = {}

    def draw(self, numbers: Sequence[int], cycle: int) -> None:
        """Draw the ensembles of these targets for one iteration."""
        members = range(self._options.num_ensemble)
        for number in numbers:
            positions = [[self._options.seed, cycle, member] for member in members]
            samples = [draw(self._inputs[number], self._preset, position) for position in positions]
            self._drawn[number, cycle] = samples

    def ensemble(self, numbers: Sequence[int], cycle: int) -> list[Batch]:
        """Return the ensemble of one iteration, of which each member is a batch of these targets."""
        if (numbers[0], cycle) not in self._drawn:
            self.draw(numbers, cycle)
        samples = [self._drawn[number, cycle] for number in numbers]
        self._drawn.clear()
        return [
            batch_of(
                [each[member] for each in samples],
                self._preset,
                self._device,
                self._inputs[0].offsets,
                self._inputs[0].restraints,
                residues=self.residues,
                round_rows=bucket_size if self._is_captured else int,
                merge_slots=True,
            )
            for member in range(self._options.num_ensemble)
        ]

    def sample_of(self, folded: Folded, place: int, number: int) -> Folded:
        """Return the outputs for the target of a number, which is at a place of the batch, without padding."""
        rows = min(len(self._inputs[number].features.msa), self._preset.sampling.max_msa_clusters)
        return sample_of(folded, place, self._lengths[number], rows)


def _converged(before: Recycled | None, folded: Folded, mask: Float[Tensor, "b r"], tolerance: float) -> list[bool]:
    """Return for each sample whether its distances changed by less than the tolerance in Angstrom."""
    if before is None:
        return [False] * len(mask)
    # Differs from AlphaFold: DeepMind's program makes one more pass. ColabFold's ends here, as this one does.
    change = distance_change(before.positions, folded.structure.positions, mask)
    return list((change < tolerance).tolist())


def _ended(
    model: AlphaFold,
    folded: Folded,
    mask: Float[Tensor, "b r"],
    converged: Sequence[bool],
    options: FoldingOptions,
    *,
    is_last: bool,
) -> list[bool]:
    """Return for each sample whether its recycling ends with this iteration."""
    if is_last or options.stop_at_score is None:
        return [is_last or each for each in converged]
    scores = mean_plddt(model, folded, mask).tolist()
    return [each or score >= options.stop_at_score for each, score in zip(converged, scores, strict=True)]


def distance_change(
    before: Float[Tensor, "b r 37 3"], after: Float[Tensor, "b r 37 3"], mask: Float[Tensor, "b r"]
) -> Float[Tensor, " b"]:
    """Return the root mean square change of the distances between C-alpha atoms, in Angstrom.

    It is AlphaFold-Multimer's criterion for the end of recycling.
    """
    alpha = ATOM_ORDER["CA"]
    change = torch.cdist(after[:, :, alpha], after[:, :, alpha]) - torch.cdist(before[:, :, alpha], before[:, :, alpha])
    pairs = outer_mask(mask)
    return ((change.square() * pairs).sum((1, 2)) / pairs.sum((1, 2))).sqrt()


@contextmanager
def dropping_out(model: AlphaFold, target: str, preset: Preset, options: FoldingOptions) -> Iterator[None]:
    """Let the network drop what it drops in training, if the options ask for it; the seed decides what.

    As samples do, the draws depend on the target, the model and the seed, and not on the executor or earlier draws.
    """
    if not options.dropout:
        yield
        return
    device = next(model.parameters()).device
    seed = int(generator(target, preset, [options.seed]).integers(2**62))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.train()
        try:
            yield
        finally:
            model.eval()


def recycled_guess(
    run: Executor, model: AlphaFold, positions: Float[np.ndarray, "b r 37 3"], dtype: torch.dtype
) -> Recycled:
    """Return atoms as if an earlier iteration had predicted them, with representations of zeros."""
    # Differs from ColabFold: its program rounds the guess to float16, in steps of 1/64 Angstrom beyond 16 Angstrom from
    # the origin, and all that is recycled after it; nothing is rounded here, so that a shifted guess is the same guess.
    atoms = torch.from_numpy(positions).to(next(model.parameters()).device, torch.float32)
    return replace(nothing_recycled(run, model.config, atoms.new_ones(atoms.shape[:2]), dtype), positions=atoms)


def _recycled_guesses(
    run: Executor, model: AlphaFold, targets: Sequence[FoldingTarget], residues: int, dtype: torch.dtype
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
