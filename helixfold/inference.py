"""Folding one target with one model: draws, recycling, early stop, confidence."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from data_pipeline.errors import InputError
from data_pipeline.features.schema import Features
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.transforms.sample import draw_sample
from helixfold import confidence
from helixfold.batch import Batch
from helixfold.model.alphafold import AlphaFold
from helixfold.model.evoformer import outer_mask
from helixfold.model.outputs import Outputs, Recycled
from helixfold.model.update import Executor
from helixfold.presets import Preset
from helixfold.stages import Stages
from helixfold.write.results import Prediction

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class FoldingOptions:
    """How hard to try. `recycle_tolerance` stops recycling once distances change by less (Angstrom, 0 never)."""

    num_recycles: int = 3
    recycle_tolerance: float = 0.0
    num_ensemble: int = 1
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.num_recycles < 0 or self.num_ensemble < 1 or self.recycle_tolerance < 0 or self.seed < 0:
            raise InputError(
                "num_recycles, recycle_tolerance and seed must not be negative and num_ensemble at least 1, got "
                f"{self.num_recycles}, {self.recycle_tolerance}, {self.seed} and {self.num_ensemble}"
            )
        if self.dtype not in DTYPES:
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")


@dataclass(frozen=True, kw_only=True)
class Folded:
    """The last pass, how many recycles led to it, and whether the structure had settled by then."""

    outputs: Outputs
    num_recycles: int
    converged: bool


def recycle(
    step: Callable[[Sequence[Batch], Recycled | None], Outputs],
    draw: Callable[[int], Sequence[Batch]],
    options: FoldingOptions,
) -> Folded:
    """Run `num_recycles + 1` passes, each on a fresh draw and on what the pass before found (Suppl. Alg. 30).

    `draw(k)` gives pass k its ensemble, `step` runs the network on it.
    """
    previous = None
    for cycle in range(options.num_recycles + 1):
        ensemble = draw(cycle)
        outputs = step(ensemble, previous)
        if previous is not None and options.recycle_tolerance > 0:
            change = distance_change(previous.positions, outputs.structure.positions, ensemble[0].seq_mask)
            if bool((change < options.recycle_tolerance).all()):
                return Folded(outputs=outputs, num_recycles=cycle, converged=True)
        previous = outputs.recycled()
    return Folded(outputs=outputs, num_recycles=options.num_recycles, converged=False)


def distance_change(
    before: Float[Tensor, "b r 37 3"], after: Float[Tensor, "b r 37 3"], mask: Float[Tensor, "b r"]
) -> Float[Tensor, " b"]:
    """Root mean square change of the distances between C-alpha atoms, in Angstrom (AlphaFold-Multimer's criterion)."""
    alpha = ATOM_ORDER["CA"]
    change = torch.cdist(after[:, :, alpha], after[:, :, alpha]) - torch.cdist(before[:, :, alpha], before[:, :, alpha])
    pairs = outer_mask(mask)
    return ((change.square() * pairs).sum((1, 2)) / pairs.sum((1, 2))).sqrt()


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
) -> Prediction:
    """Predict one target with one model.

    The result depends only on features, parameters, options and the device's arithmetic.
    """
    device = next(model.parameters()).device

    def draw(cycle: int) -> list[Batch]:
        with stages.stage(f"{preset.name}: sampling"):
            draws = range(options.num_ensemble)
            return [_draw(features, preset, [options.seed, cycle, index], device) for index in draws]

    def step(ensemble: Sequence[Batch], previous: Recycled | None) -> Outputs:
        with stages.stage(f"{preset.name}: network"):
            outputs: Outputs = model(run, ensemble, previous, DTYPES[options.dtype])
        return outputs

    folded = recycle(step, draw, options)
    with stages.stage(f"{preset.name}: confidence"):
        return _prediction(folded, features, preset, notes)


def _draw(features: Features, preset: Preset, position: Sequence[int], device: torch.device) -> Batch:
    """One draw; its random stream is a function of what it is for, never of what ran before."""
    names = [zlib.crc32(name.encode()) for name in (features.domain_name, preset.name)]
    return Batch.from_sample(draw_sample(features, preset.sampling, np.random.default_rng([*names, *position])), device)


def _prediction(folded: Folded, features: Features, preset: Preset, notes: tuple[str, ...]) -> Prediction:
    logits, structure = folded.outputs.logits, folded.outputs.structure
    mask = torch.ones_like(structure.mask[..., 0])
    plddt = confidence.plddt(logits.lddt)
    ptm, pae, max_pae = None, None, None
    if logits.aligned_error is not None:
        pae_tensor, max_pae = confidence.predicted_aligned_error(logits.aligned_error)
        pae, ptm = pae_tensor[0].cpu().numpy(), float(confidence.predicted_tm_score(logits.aligned_error, mask)[0])
    residue_plddt = plddt[0].cpu().numpy()
    atom_mask = structure.mask[0].cpu().numpy()
    return Prediction(
        model=preset.name,
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
        num_recycles=folded.num_recycles,
        converged=folded.converged,
        notes=notes,
    )
