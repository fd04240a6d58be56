"""Fold one target with one model: draw samples, run the network with recycling, read off the confidence."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline.complexes.feature_set import TargetFeatures
from data_pipeline.config import MAX_ENSEMBLE, MAX_RECYCLES, MAX_SEED
from data_pipeline.errors import InputError
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from helixfold.batch import Batch
from helixfold.execution.device import AUTO, DTYPES, dtype_on
from helixfold.execution.recorded_passes import LAUNCHED, Passes
from helixfold.execution.stages import Stages
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.evoformer import outer_mask
from helixfold.model.outputs import Folded, Recycled, nothing_recycled
from helixfold.model.stream import Stream
from helixfold.model.update import Executor, as_tensor
from helixfold.model_input import ModelInput, batch_of, draw, generator, model_input
from helixfold.ops.card import card_of
from helixfold.options import RepresentationName
from helixfold.prediction import Distances, Prediction
from helixfold.presets import Preset


@dataclass(frozen=True, kw_only=True)
class FoldingOptions:
    """Options of folding a target with one model: recycling, ensemble, seed and precision."""

    num_recycles: int | None = None  # iterations after the first; None: as many as the model's preset says
    # Angstrom: stop recycling once distances change by less; 0 never stops, None: as the model's preset says.
    recycle_tolerance: float | None = None
    num_ensemble: int = 1  # draws of each iteration, whose representations are averaged
    seed: int = 0
    dtype: str = AUTO  # of the trunk's arithmetic: one of `DTYPES`, or "auto" for the one that suits the device
    logits: bool = False  # return those of all heads; they are large, and else are never held for all pairs at once
    dropout: bool = False  # as in training; predictions then differ from seed to seed, most where they are unsure
    save_passes: bool = False  # return the structures of all passes, and their representations if any are asked for
    representations: tuple[RepresentationName, ...] = ()  # that predictions return; "pair" takes r x r x c_z numbers
    stop_at_score: float | None = None  # stop recycling once the mean pLDDT is at least this; None never stops
    cyclic: tuple[str, ...] | None = None  # chains whose ends are bonded, by name; () all of them, None none

    def __post_init__(self) -> None:
        bounds = (("num_recycles", 0, MAX_RECYCLES), ("num_ensemble", 1, MAX_ENSEMBLE), ("seed", 0, MAX_SEED))
        for name, least, most in bounds:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InputError(f"{name} must be at least {least} and at most {most:,}, got {value}")
        if self.recycle_tolerance is not None and not 0 <= self.recycle_tolerance < math.inf:
            raise InputError(f"recycle_tolerance must be a distance in Angstrom, got {self.recycle_tolerance}")
        if self.stop_at_score is not None and not 0 < self.stop_at_score <= 100:
            raise InputError(f"stop_at_score is a mean pLDDT, above 0 and at most 100, got {self.stop_at_score}")
        if unknown := [name for name in self.representations if name not in get_args(RepresentationName)]:
            raise InputError(f"representations are {', '.join(get_args(RepresentationName))}, got {unknown[0]!r}")
        if self.dtype not in (AUTO, *DTYPES):
            raise InputError(f"dtype must be one of {', '.join((AUTO, *DTYPES))}, got {self.dtype!r}")

    def recycles(self, preset: Preset) -> int:
        """Return the number of recycling iterations of a model after the first."""
        return preset.num_recycles if self.num_recycles is None else self.num_recycles

    def tolerance(self, preset: Preset) -> float:
        """Return the change of distances in Angstrom below which recycling of a model ends; 0 never ends it."""
        return preset.recycle_tolerance if self.recycle_tolerance is None else self.recycle_tolerance


@dataclass(frozen=True, kw_only=True)
class RecyclingResult:
    """The outputs of the last recycling iteration."""

    folded: Folded
    num_recycles: int  # iterations before it
    converged: bool  # recycling stopped because distances changed by less than the tolerance


def recycle(
    step: Callable[[Sequence[Batch], Recycled | None], Folded],
    draw: Callable[[int], Sequence[Batch]],
    num_recycles: int,
    recycle_tolerance: float = 0.0,
    is_good_enough: Callable[[Folded], bool] = lambda _: False,
    *,
    first: Recycled | None = None,
) -> RecyclingResult:
    """Run `num_recycles + 1` iterations, each on a fresh draw and the outputs of the one before (Suppl. Alg. 30).

    The first iteration recycles `first`, or nothing. `draw(k)` returns the ensemble of iteration k, `step` runs the
    network on it; an iteration that `is_good_enough` is the last. With a tolerance, the host waits for a GPU once after
    each iteration, to read whether to go on.
    """
    previous = first
    del first  # its memory is given back, or used again, in the first iteration
    for cycle in range(num_recycles + 1):
        ensemble = draw(cycle)
        folded = step(ensemble, previous)
        # A guess may be as good as what comes of it; only what the network has predicted converges.
        if previous is not None and cycle > 0 and recycle_tolerance > 0:
            change = distance_change(previous.positions, folded.structure.positions, ensemble[0].seq_mask)
            # Differs from AlphaFold: DeepMind's program makes one more pass. ColabFold's ends here, as this one does.
            if bool((change < recycle_tolerance).all()):
                return RecyclingResult(folded=folded, num_recycles=cycle, converged=True)
        if is_good_enough(folded):
            return RecyclingResult(folded=folded, num_recycles=cycle, converged=False)
        if cycle < num_recycles:
            previous = folded.recycled()
            # Its MSA is not held while the next iteration makes one.
            del folded
    return RecyclingResult(folded=folded, num_recycles=num_recycles, converged=False)


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


@torch.no_grad()
def fold(
    model: AlphaFold,
    run: Executor,
    features: TargetFeatures,
    preset: Preset,
    options: FoldingOptions,
    *,
    stages: Stages,
    name: str | None = None,
    passes: Passes = LAUNCHED,
    initial_guess: Float[np.ndarray, "r 37 3"] | None = None,
    offsets: Int[np.ndarray, "r r"] | None = None,
) -> Prediction:
    """Predict one target with one model by an executor; `name` of the prediction is the model's by default.

    The first iteration recycles the atoms of `initial_guess` (Angstrom), or nothing; see `helixfold.initial_guess`.
    `offsets` says how far residues are apart along the chain; see `helixfold.residue_offsets`.
    Whether the target is a single chain or a complex, and what the model reads of it, is for `model_input` to say.
    `passes` launches the network's passes, or replays recorded ones. The result depends only on features, parameters,
    options and the device's arithmetic.
    """
    device = next(model.parameters()).device
    dtype, name = dtype_on(options.dtype, card_of(device)), name or preset.name
    given = model_input(features, preset, cyclic=options.cyclic, offsets=offsets)

    def draw_ensemble(cycle: int) -> list[Batch]:
        with stages.stage(f"{name}: sampling"):
            samples = (draw(given, preset, [options.seed, cycle, index]) for index in range(options.num_ensemble))
            return [batch_of(sample, preset, device, given.offsets) for sample in samples]

    made: list[Protein] = []
    represented: list[dict[RepresentationName, np.ndarray]] = []

    def step(ensemble: Sequence[Batch], previous: Recycled | None) -> Folded:
        with stages.stage(f"{name}: network"):
            folded = passes(model, run, ensemble, previous, dtype)
        if options.save_passes:
            made.append(predicted_protein(model, folded, given))
            represented.append({each: representation(run, folded, each) for each in options.representations})
        return folded

    def is_good_enough(folded: Folded) -> bool:
        if options.stop_at_score is None:
            return False
        mask = torch.ones_like(folded.structure.mask[..., 0])
        return float(mean_plddt(model, folded, mask)[0]) >= options.stop_at_score

    with dropping_out(model, given.name, preset, options):
        last = recycle(
            step,
            draw_ensemble,
            options.recycles(preset),
            options.tolerance(preset),
            is_good_enough,
            first=None if initial_guess is None else recycled_guess(run, model, initial_guess[None], dtype),
        )
    with stages.stage(f"{name}: confidence"):
        last_prediction = prediction_of(model, run, last, given=given, name=name, options=options)
    if not options.save_passes:
        return last_prediction
    earlier = tuple(represented[:-1]) if options.representations else ()
    return replace(last_prediction, passes=tuple(made[:-1]), pass_representations=earlier)


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


def mean_plddt(model: AlphaFold, folded: Folded, mask: Float[Tensor, "b r"]) -> Float[Tensor, " b"]:
    """Return the mean pLDDT of each sample's real residues, 0 to 100."""
    return confidence.ranking_confidence(confidence.plddt(model.heads.lddt_logits(folded.structure)), mask)


def prediction_of(
    model: AlphaFold,
    run: Executor,
    last: RecyclingResult,
    *,
    given: ModelInput,
    name: str,
    options: FoldingOptions,
) -> Prediction:
    """Return the prediction of the first sample of the last recycling iteration, with its confidences."""
    folded, heads = last.folded, model.heads
    structure = folded.structure
    if options.dtype == "float16" and not structure.positions.isfinite().all():
        raise InputError(
            f"{name}: a number of the network is beyond 65,504, the largest of float16; use --dtype bfloat16 or float32"
        )
    mask = torch.ones_like(structure.mask[..., 0])
    plddt = confidence.plddt(heads.lddt_logits(structure))
    protein = predicted_protein(model, folded, given)
    error = None
    if heads.aligned_error is not None:
        asym_id = torch.from_numpy(given.chain_index + 1)[None].to(mask.device) if len(given.chain_ids) > 1 else None
        error = confidence.aligned_error(run, heads.aligned_error, folded.representations.pair, mask, asym_id)
    distances = confidence.expected_distances(run, heads.distogram, folded.representations.pair)
    logits = heads(run, folded) if options.logits else None
    representations = {name: representation(run, folded, name) for name in options.representations}
    return Prediction(
        model=name,
        protein=protein,
        plddt=plddt[0].cpu().numpy(),
        pae=None if error is None else error.expected[0].cpu().numpy(),
        max_pae=None if error is None else error.largest,
        ptm=None if error is None else float(error.ptm[0]),
        iptm=None if error is None or error.iptm is None else float(error.iptm[0]),
        tm_by_chain=None if error is None or error.by_chain is None else error.by_chain[0].cpu().numpy(),
        ranking_confidence=float(_ranking_confidence(model, plddt, mask, error)[0]),
        num_recycles=last.num_recycles,
        converged=last.converged,
        distances=Distances(expected=distances.expected[0].cpu().numpy(), contact=distances.contact[0].cpu().numpy()),
        logits=None if logits is None else logits.arrays(),
        representations=representations or None,
        notes=(*model.notes, *given.notes),
        seed=options.seed,
        chain_ids=given.chain_ids,
    )


def predicted_protein(model: AlphaFold, folded: Folded, given: ModelInput) -> Protein:
    """Return the structure of the first sample, whose B-factors are pLDDT."""
    structure = folded.structure
    atom_mask = structure.mask[0].cpu().numpy()
    plddt = confidence.plddt(model.heads.lddt_logits(structure))[0].cpu().numpy()
    return Protein(
        aatype=given.features.aatype,
        atom_positions=structure.positions[0].cpu().numpy(),
        atom_mask=atom_mask,
        residue_index=given.residue_number,
        chain_index=given.chain_index,
        b_factors=plddt[:, None] * atom_mask,
        cyclic_chains=frozenset(given.rings),
    )


def representation(run: Executor, folded: Folded, name: RepresentationName) -> np.ndarray:
    """Return a representation of the first sample, float32; the shapes are those of `RepresentationName`."""
    found = folded.representations
    streams: dict[RepresentationName, Stream] = {
        "msa_first_row": found.msa_first_row,
        "single": found.single,
        "pair": found.pair,
        "structure": folded.structure.single,
    }
    stream = run.gather(streams[name]) if name == "pair" else as_tensor(streams[name])
    return stream[0].float().cpu().numpy()


def _ranking_confidence(
    model: AlphaFold,
    plddt: Float[Tensor, "b r"],
    mask: Float[Tensor, "b r"],
    error: confidence.AlignedError | None,
) -> Float[Tensor, " b"]:
    """Return what predictions of a target are ranked by: 0.8 ipTM + 0.2 pTM of a complex, 0 to 1.

    A model of complexes ranks a single chain by pTM, and all others by mean pLDDT, 0 to 100. So does a model without
    predicted errors rank a complex.
    """
    if error is not None and error.iptm is not None:
        return confidence.complex_ranking_confidence(error.ptm, error.iptm)
    if error is not None and model.config.method == "multimer":
        return error.ptm
    return confidence.ranking_confidence(plddt, mask)
