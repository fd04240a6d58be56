"""Folding one target with one model: draws, recycling, early stop, confidence."""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from data_pipeline.errors import InputError
from data_pipeline.features.schema import Features
from data_pipeline.pipeline import Target, prepare
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.transforms.sample import draw_sample
from helixfold.batch import Batch
from helixfold.execution.slabs import Slabs
from helixfold.execution.stages import Stages
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.evoformer import outer_mask
from helixfold.model.outputs import Folded, Recycled
from helixfold.model.update import Executor
from helixfold.prediction import Distances, Prediction
from helixfold.presets import Preset
from helixfold.weights.find import find_models

_MOST = 2**62  # what random streams can be told apart by
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class FoldingOptions:
    """How hard to try. `recycle_tolerance` stops recycling once distances change by less (Angstrom, 0 never), and
    `stop_at_score` once the mean pLDDT is at least that (None: never). Without `num_recycles`, the model's preset says
    how many passes follow the first.

    `logits` keeps those of all heads, which else are never there for all pairs at once.
    """

    num_recycles: int | None = None
    recycle_tolerance: float = 0.0
    num_ensemble: int = 1
    seed: int = 0
    dtype: str = "float32"
    logits: bool = False
    stop_at_score: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("num_recycles", 0), ("num_ensemble", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value <= _MOST:
                raise InputError(f"{name} must be at least {least} and at most {_MOST}, got {value}")
        if not 0 <= self.recycle_tolerance < math.inf:
            raise InputError(f"recycle_tolerance must be a distance in Angstrom, got {self.recycle_tolerance}")
        if self.stop_at_score is not None and not 0 < self.stop_at_score <= 100:
            raise InputError(f"stop_at_score is a mean pLDDT, above 0 and at most 100, got {self.stop_at_score}")
        if self.dtype not in DTYPES:
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")

    def recycles(self, preset: Preset) -> int:
        """How many passes of this model follow the first."""
        return preset.num_recycles if self.num_recycles is None else self.num_recycles


@dataclass(frozen=True, kw_only=True)
class LastPass:
    """What the last pass found, how many recycles led to it, and whether the structure had settled by then."""

    folded: Folded
    num_recycles: int
    converged: bool


def recycle(
    step: Callable[[Sequence[Batch], Recycled | None], Folded],
    draw: Callable[[int], Sequence[Batch]],
    num_recycles: int,
    recycle_tolerance: float = 0.0,
    is_good_enough: Callable[[Folded], bool] = lambda _: False,
) -> LastPass:
    """Run `num_recycles + 1` passes, each on a fresh draw and on what the pass before found (Suppl. Alg. 30).

    `draw(k)` gives pass k its ensemble, `step` runs the network on it; no pass follows one that `is_good_enough`.
    """
    previous = None
    for cycle in range(num_recycles + 1):
        ensemble = draw(cycle)
        folded = step(ensemble, previous)
        if previous is not None and recycle_tolerance > 0:
            change = distance_change(previous.positions, folded.structure.positions, ensemble[0].seq_mask)
            if bool((change < recycle_tolerance).all()):
                return LastPass(folded=folded, num_recycles=cycle, converged=True)
        if is_good_enough(folded):
            return LastPass(folded=folded, num_recycles=cycle, converged=False)
        if cycle < num_recycles:
            previous = folded.recycled()
            # Its MSA is not held while the next pass makes one.
            del folded
    return LastPass(folded=folded, num_recycles=num_recycles, converged=False)


def distance_change(
    before: Float[Tensor, "b r 37 3"], after: Float[Tensor, "b r 37 3"], mask: Float[Tensor, "b r"]
) -> Float[Tensor, " b"]:
    """Root mean square change of the distances between C-alpha atoms, in Angstrom (AlphaFold-Multimer's criterion)."""
    alpha = ATOM_ORDER["CA"]
    change = torch.cdist(after[:, :, alpha], after[:, :, alpha]) - torch.cdist(before[:, :, alpha], before[:, :, alpha])
    pairs = outer_mask(mask)
    return ((change.square() * pairs).sum((1, 2)) / pairs.sum((1, 2))).sqrt()


def predict(
    target: Target,
    models: Sequence[str] = (),
    weights: Path | None = None,
    options: FoldingOptions | None = None,
) -> list[Prediction]:
    """Fold one target with what it brings, and without searches: what `helixfold predict` does, in one call.

    Models and weights are found as there, so without either the small untrained network may stand in: `notes` of a
    prediction say so. Best first.
    """
    features, options = prepare(target).features, options or FoldingOptions()
    predictions = [
        fold(each.network, Slabs(), features, each.preset, options, stages=Stages(), notes=each.notes)
        for each in find_models(models, weights, seed=options.seed)
    ]
    return sorted(predictions, key=lambda prediction: -prediction.ranking_confidence)


@torch.no_grad()
def fold(
    model: AlphaFold,
    run: Executor,
    features: Features,
    preset: Preset,
    options: FoldingOptions,
    *,
    stages: Stages,
    notes: tuple[str, ...] = (),
    name: str | None = None,
) -> Prediction:
    """Predict one target with one model; the prediction has the model's name if it is not given another.

    The result depends only on features, parameters, options and the device's arithmetic.
    """
    device = next(model.parameters()).device
    name = name or preset.name

    def draw(cycle: int) -> list[Batch]:
        with stages.stage(f"{name}: sampling"):
            return [
                _draw(features, preset, [options.seed, cycle, index], device) for index in range(options.num_ensemble)
            ]

    def step(ensemble: Sequence[Batch], previous: Recycled | None) -> Folded:
        with stages.stage(f"{name}: network"):
            return model.fold(run, ensemble, previous, DTYPES[options.dtype])

    def is_good_enough(folded: Folded) -> bool:
        return options.stop_at_score is not None and _mean_plddt(model, folded) >= options.stop_at_score

    last = recycle(step, draw, options.recycles(preset), options.recycle_tolerance, is_good_enough)
    with stages.stage(f"{name}: confidence"):
        return _prediction(model, run, last, features=features, name=name, options=options, notes=notes)


def _mean_plddt(model: AlphaFold, folded: Folded) -> float:
    plddt = confidence.plddt(model.heads.lddt(folded.structure.single))
    return float(confidence.ranking_confidence(plddt, torch.ones_like(plddt))[0])


def _draw(features: Features, preset: Preset, position: Sequence[int], device: torch.device) -> Batch:
    """One draw; its random stream is a function of what it is for, never of what ran before."""
    names = [zlib.crc32(name.encode()) for name in (features.domain_name, preset.name)]
    return Batch.from_sample(draw_sample(features, preset.sampling, np.random.default_rng([*names, *position])), device)


def _prediction(
    model: AlphaFold,
    run: Executor,
    last: LastPass,
    *,
    features: Features,
    name: str,
    options: FoldingOptions,
    notes: tuple[str, ...],
) -> Prediction:
    folded, heads = last.folded, model.heads
    structure = folded.structure
    mask = torch.ones_like(structure.mask[..., 0])
    plddt = confidence.plddt(heads.lddt(structure.single))
    ptm, pae, max_pae = None, None, None
    if heads.aligned_error is not None:
        error = confidence.aligned_error(run, heads.aligned_error, folded.representations.pair, mask)
        pae, max_pae, ptm = error.expected[0].cpu().numpy(), error.largest, float(error.ptm[0])
    distances = confidence.expected_distances(run, heads.distogram, folded.representations.pair)
    logits = heads(run, folded) if options.logits else None
    residue_plddt = plddt[0].cpu().numpy()
    atom_mask = structure.mask[0].cpu().numpy()
    return Prediction(
        model=name,
        protein=Protein(
            aatype=features.aatype,
            atom_positions=structure.positions[0].cpu().numpy(),
            atom_mask=atom_mask,
            residue_index=features.residue_index + 1,
            chain_index=np.zeros_like(features.residue_index),
            b_factors=residue_plddt[:, None] * atom_mask,
        ),
        plddt=residue_plddt,
        pae=pae,
        max_pae=max_pae,
        ptm=ptm,
        ranking_confidence=float(confidence.ranking_confidence(plddt, mask)[0]),
        num_recycles=last.num_recycles,
        converged=last.converged,
        distances=Distances(expected=distances.expected[0].cpu().numpy(), contact=distances.contact[0].cpu().numpy()),
        logits=None if logits is None else logits.arrays(),
        notes=notes,
        seed=options.seed,
    )
