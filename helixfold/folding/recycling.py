"""Fold one or several targets with one model: draw samples, run the network with recycling, collect predictions."""

from collections.abc import Callable, Iterator, Sequence
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

# Device types that compute asynchronously, so that the host can draw the next sample meanwhile.
_DRAW_AHEAD = ("cuda",)
# Stages of `fold` whose time is recorded.
STAGES = ("sampling", "network", "confidence")


@dataclass(frozen=True, kw_only=True)
class FoldingTarget:
    """Input of `fold`: a target's features, and optionally a structure to start from and residue offsets.

    `name` is the name of the prediction; None takes the model's name. The first iteration recycles the atom positions
    of `initial_guess` (Å), or zeros; see `helixfold.folding.initial_guess`. `offsets` are the sequence offsets i - j of
    residue pairs; see `helixfold.folding.residue_offsets`. `restraints` are for AlphaLink's networks.
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
    passes: IterationRunner = EAGER,
) -> list[Prediction]:
    """Predict one or several targets with one model, and return their predictions in order (Suppl. Alg. 30).

    Several targets are computed as one batch; the streams of the executor `run` must then be tensors. Up to rounding, a
    target gives the same prediction as when folded alone: each has its own samples and leaves the batch when its own
    recycling ends. Shorter targets are padded to the longest. Targets that cannot share a batch (`can_share_batch`) are
    folded one after another. `stages` records the times of `STAGES`. `passes` runs the recycling iterations; if it
    captures CUDA graphs, all targets are padded to a common size, so that other targets can replay them. A prediction
    depends only on features, parameters, options and the device's arithmetic. With a tolerance or a score to stop at,
    the host waits for a GPU once per iteration.
    """
    device = next(model.parameters()).device
    dtype = dtype_on(options.dtype, properties_of(device))
    if len(targets) > 1 and not can_share_batch(targets, options, dtype):
        alone = [fold(model, preset, [target], options, run, stages=stages, passes=passes) for target in targets]
        return [prediction for (prediction,) in alone]
    inputs = [
        model_input(
            target.features, preset, cyclic=options.cyclic, offsets=target.offsets, restraints=target.restraints
        )
        for target in targets
    ]
    residues = max(len(each.features.aatype) for each in inputs)
    is_captured = len(inputs) > 1 and passes.captures(run, len(inputs), bucket_size(residues))
    if is_captured:
        residues = bucket_size(residues)
    draws = _Draws(inputs, preset, options, device, residues=residues, round_rows=bucket_size if is_captured else int)
    names = [target.name or preset.name for target in targets]
    prefix = f"{names[0]}: " if len(targets) == 1 else ""
    recycles, tolerance = options.recycles(preset), options.tolerance(preset)
    predictions: dict[int, Prediction] = {}
    earlier: list[tuple[Protein, dict[RepresentationName, np.ndarray]]] = []
    remaining = list(range(len(targets)))
    previous = _recycled_guesses(run, model, targets, residues, dtype)
    with dropping_out(model, inputs[0].name, preset, options):
        for cycle in range(recycles + 1):
            with stages.stage(f"{prefix}sampling"):
                ensemble = draws.ensemble(remaining, cycle)
            with stages.stage(f"{prefix}network"):
                folded = passes(model, run, ensemble, previous, dtype)
                if device.type in _DRAW_AHEAD and cycle < recycles:
                    draws.draw(remaining, cycle + 1)
                # The first iteration is not compared with an initial guess, which it may leave almost unchanged.
                converged = _converged(
                    previous if cycle > 0 and tolerance > 0 else None, folded, ensemble[0].seq_mask, tolerance
                )
                ended = _ended(model, folded, ensemble[0].seq_mask, converged, options, is_last=cycle == recycles)
            for row, index in enumerate(remaining):
                if not ended[row]:
                    continue
                with stages.stage(f"{prefix}confidence"):
                    predictions[index] = prediction_of(
                        model,
                        run,
                        folded if len(targets) == 1 else sample_of(folded, row, inputs[index], preset),
                        inputs[index],
                        options,
                        name=names[index],
                        num_recycles=cycle,
                        converged=converged[row],
                    )
            continuing = [row for row, has_ended in enumerate(ended) if not has_ended]
            if not continuing:
                break
            if options.save_passes:
                represented = {name: representation(run, folded, name) for name in options.representations}
                earlier.append((predicted_protein(model, folded, inputs[0]), represented))
            remaining = [remaining[row] for row in continuing]
            previous = _of_samples(folded.recycled(), continuing if len(continuing) < len(ended) else None)
            # Free the MSA stream before the next iteration allocates its own.
            del folded
    if options.save_passes:
        proteins, earlier_representations = tuple(zip(*earlier, strict=True)) or ((), ())
        predictions[0] = replace(
            predictions[0],
            recycling_iterations=(*proteins, predictions[0].protein),
            pass_representations=earlier_representations if options.representations else (),
        )
    return [predictions[index] for index in range(len(targets))]


def can_share_batch(targets: Sequence[FoldingTarget], options: FoldingOptions, dtype: torch.dtype) -> bool:
    """Return whether several targets can be computed as one batch; `dtype` is the trunk's precision.

    They cannot in float16, with dropout or saved iterations, or with cyclic chains, residue offsets or restraints.
    """
    # Padding produces the network's largest numbers, which float16 cannot hold. Dropout would be the same for all
    # targets of a batch. Structures of all iterations, and offsets and restraints of residue pairs, are supported for
    # one target only.
    has_pairs = options.cyclic is not None or any(
        target.offsets is not None or target.restraints is not None for target in targets
    )
    return not (dtype == torch.float16 or options.dropout or options.save_passes or has_pairs)


class _Draws:
    """Batches of randomly drawn samples of some targets, by recycling iteration.

    Batches are padded to `residues`, and their numbers of rows are rounded by `round_rows`. Targets are named by their
    indices in `inputs`.
    """

    def __init__(
        self,
        inputs: Sequence[ModelInput],
        preset: Preset,
        options: FoldingOptions,
        device: torch.device,
        *,
        residues: int,
        round_rows: Callable[[int], int],
    ) -> None:
        self._inputs, self._preset, self._options, self._device = inputs, preset, options, device
        self._residues, self._round_rows = residues, round_rows
        self._samples: dict[tuple[int, int], list[Sample]] = {}  # by target and iteration

    def draw(self, targets: Sequence[int], cycle: int) -> None:
        """Draw the ensembles of these targets for one iteration."""
        members = range(self._options.num_ensemble)
        for target in targets:
            keys = [[self._options.seed, cycle, member] for member in members]
            self._samples[target, cycle] = [draw(self._inputs[target], self._preset, key) for key in keys]

    def ensemble(self, targets: Sequence[int], cycle: int) -> list[Batch]:
        """Return the ensemble of one iteration: a list of batches, one per member, of these targets."""
        if (targets[0], cycle) not in self._samples:
            self.draw(targets, cycle)
        samples = [self._samples[target, cycle] for target in targets]
        self._samples.clear()
        return [
            batch_of(
                [each[member] for each in samples],
                self._preset,
                self._device,
                self._inputs[0].offsets,
                self._inputs[0].restraints,
                residues=self._residues,
                round_rows=self._round_rows,
                merge_slots=True,
            )
            for member in range(self._options.num_ensemble)
        ]


def _converged(before: Recycled | None, folded: Folded, mask: Float[Tensor, "b r"], tolerance: float) -> list[bool]:
    """Return for each sample whether its distances changed by less than the tolerance (Å)."""
    if before is None:
        return [False] * len(mask)
    # Differs from AlphaFold: DeepMind's program runs one more iteration. ColabFold ends here, too.
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
    """Return for each sample the root mean square change of the distances between C-alpha atoms (Å).

    `mask` is 1 for real residues and 0 for padding. AlphaFold-Multimer stops recycling by this criterion.
    """
    alpha = ATOM_ORDER["CA"]
    change = torch.cdist(after[:, :, alpha], after[:, :, alpha]) - torch.cdist(before[:, :, alpha], before[:, :, alpha])
    pairs = outer_mask(mask)
    return ((change.square() * pairs).sum((1, 2)) / pairs.sum((1, 2))).sqrt()


@contextmanager
def dropping_out(model: AlphaFold, target: str, preset: Preset, options: FoldingOptions) -> Iterator[None]:
    """Context in which the network uses the dropout of training, if `options.dropout` is set.

    It is in evaluation mode afterwards. The dropout masks depend on `target` (its name), the model and the seed, and
    not on the executor or earlier draws. Without the option, nothing changes.
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
    """Return recycling inputs with these atom positions (Å) and representations of zeros."""
    # Differs from ColabFold: its program rounds the guess, and everything that is recycled later, to float16: steps of
    # 1/64 Å beyond 16 Å from the origin. Nothing is rounded here, so that results do not depend on where the guess is.
    atoms = torch.from_numpy(positions).to(next(model.parameters()).device, torch.float32)
    return replace(nothing_recycled(run, model.config, atoms.new_ones(atoms.shape[:2]), dtype), positions=atoms)


def _recycled_guesses(
    run: Executor, model: AlphaFold, targets: Sequence[FoldingTarget], residues: int, dtype: torch.dtype
) -> Recycled | None:
    """Return the initial guesses of targets, padded to `residues`; a target without a guess recycles zeros."""
    if all(target.initial_guess is None for target in targets):
        return None
    positions = np.zeros((len(targets), residues, 37, 3), np.float32)
    for atoms, target in zip(positions, targets, strict=True):
        if target.initial_guess is not None:
            atoms[: len(target.initial_guess)] = target.initial_guess
    return recycled_guess(run, model, positions, dtype)


def _of_samples(recycled: Recycled, rows: list[int] | None) -> Recycled:
    """Return the recycling inputs of the samples at these indices of the batch; None means all."""
    if rows is None:
        return recycled
    return Recycled(
        msa_first_row=recycled.msa_first_row[rows],
        pair=as_tensor(recycled.pair)[rows],
        positions=recycled.positions[rows],
    )
