"""Choose what a model reads of a target: a model of complexes and a model of single chains have different features."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from jaxtyping import Int

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures, as_complex
from data_pipeline.features.sample import SAMPLE_AXES, Sample
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.restraints import DistanceRestraints
from data_pipeline.sampling import complex_sample
from data_pipeline.sampling.sample import draw_sample
from helixfold.folding.residue_offsets import check_offsets, offsets_with_rings, rings_of
from helixfold.model.batch import Batch, MultimerBatch
from helixfold.model.config import Method
from helixfold.model.presets import Preset

_BATCHES: dict[Method, type[Batch]] = {"monomer": Batch, "multimer": MultimerBatch}
_RESIDUE_GAP_NOTE: Final = (
    "COMPLEX BY RESIDUE GAP: made by '{model}', which was trained on single chains and takes the complex for one chain "
    "with missing residues; how it places chains beside each other is often wrong, so look at ipTM and at the errors "
    "between chains, or use a model of complexes, such as model_1_multimer_v3"
)
_NO_RESTRAINTS_NOTE: Final = "NO RESTRAINTS: '{model}' reads distance restraints, and the target has none"


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """Features of a target as one model reads them, its chains, and notes about what a prediction is worth."""

    name: str  # the target's
    features: Features | ComplexFeatures
    chain_ids: tuple[str, ...]
    chain_index: Int[np.ndarray, "r"]  # the chain's place in `chain_ids`
    residue_number: Int[np.ndarray, "r"]  # from 1 in each chain
    rings: tuple[int, ...] = ()  # places in `chain_ids` of the chains whose ends are bonded
    # How far residues are apart along the chain, where that is not the difference of their numbers.
    offsets: Int[np.ndarray, "r r"] | None = None
    restraints: DistanceRestraints | None = None
    notes: tuple[str, ...] = ()


def model_input(
    features: TargetFeatures,
    preset: Preset,
    *,
    cyclic: Sequence[str] | None = None,
    offsets: Int[np.ndarray, "r r"] | None = None,
    restraints: DistanceRestraints | None = None,
) -> ModelInput:
    """Return what the model of a preset reads of a target.

    A model of complexes reads a single chain as a complex of one, and a model of single chains reads a complex as one
    chain in which residue numbers jump. `cyclic` names the chains whose ends are bonded, all of them without a name.
    `offsets` says how far residues are apart along the chain, in place of their numbers and of rings. Raise
    `InputError` if the target lacks a chain, for offsets of another shape, or for restraints that the model does not
    read.
    """
    given = _as_read(features, preset)
    rings = rings_of(given.chain_ids, cyclic, given.name)
    if offsets is not None:
        check_offsets(offsets, len(given.chain_index))
    elif rings:
        offsets = offsets_with_rings(given.features.residue_index, given.chain_index, rings)
    if (problem := restraints_problem(preset, restraints, len(given.chain_ids))) is not None:
        raise InputError(f"'{printable(given.name)}': {problem}")
    notes = input_notes(preset, len(given.chain_ids), restrained=restraints is not None)
    return replace(given, rings=rings, offsets=offsets, restraints=restraints, notes=notes)


def restraints_problem(preset: Preset, restraints: DistanceRestraints | None, chains: int) -> str | None:
    """Return why the model of a preset cannot read restraints of a target with so many chains; None if it can."""
    if restraints is None or (restraints.kind == preset.model.restraints and chains == 1):
        return None
    if chains > 1:
        return f"restraints are for targets of one chain, and it has {chains}"
    reads = "does not read restraints" if preset.model.restraints is None else f"reads {preset.model.restraints}"
    advice = f"pass --models alphalink_{restraints.kind} and its --weights"
    return f"its restraints are {restraints.kind}, and '{preset.name}' {reads}; {advice}"


def _as_read(features: TargetFeatures, preset: Preset) -> ModelInput:
    """Return what the model of a preset reads of a target whose chains have ends."""
    is_multimer = preset.model.method == "multimer"
    if not isinstance(features, ComplexFeatureSet):
        return ModelInput(
            name=features.domain_name,
            features=as_complex(features) if is_multimer else features,
            chain_ids=(ONLY_CHAIN,),
            chain_index=np.zeros_like(features.residue_index),
            residue_number=features.residue_index + 1,
        )
    multimer = features.multimer
    return ModelInput(
        name=features.domain_name,
        features=multimer if is_multimer else features.residue_gap,
        chain_ids=multimer.chain_names,
        chain_index=multimer.asym_id - 1,
        residue_number=multimer.residue_index + 1,
    )


def input_notes(preset: Preset, chains: int, *, restrained: bool) -> tuple[str, ...]:
    """Return notes about what a prediction of so many chains by the model of a preset is worth."""
    by_gap = preset.model.method == "monomer" and chains > 1
    templates = [_RESIDUE_GAP_NOTE] if by_gap else []
    templates += [_NO_RESTRAINTS_NOTE] if preset.model.restraints and not restrained else []
    return tuple(template.format(model=preset.name) for template in templates)


def depends_on_seed(features: TargetFeatures, preset: Preset, *, dropout: bool) -> bool:
    """Return whether the model of a preset predicts something else with another seed."""
    rows = len(_as_read(features, preset).features.msa)
    return dropout or preset.sampling.depends_on_chance(rows)


def draw(given: ModelInput, preset: Preset, position: Sequence[int]) -> Sample:
    """Draw one sample; its random stream depends on the target, the model and the position, never on earlier draws."""
    rng, sampling = generator(given.name, preset, position), preset.sampling
    if isinstance(given.features, Features):
        return draw_sample(given.features, sampling, rng)
    choices = complex_sample.draw(given.features, sampling, rng)
    return complex_sample.complex_sample(given.features, sampling, choices)


def generator(target: str, preset: Preset, position: Sequence[int]) -> np.random.Generator:
    """Return the random stream of a target, a model and a position, such as a seed and a number of an iteration."""
    return np.random.default_rng([*(zlib.crc32(name.encode()) for name in (target, preset.name)), *position])


def batch_of(
    samples: Sequence[Sample],
    preset: Preset,
    device: torch.device | str = "cpu",
    offsets: Int[np.ndarray, "r r"] | None = None,
    restraints: DistanceRestraints | None = None,
    *,
    residues: int | None = None,
    round_rows: Callable[[int], int] = lambda rows: rows,
    merge_slots: bool = False,
) -> Batch:
    """Return the batch of samples that the model of a preset takes; see `Batch.from_samples` for the padding.

    A batch of one sample has the sample's `offsets` and `restraints`, if it has any. With `merge_slots`, empty template
    slots of complexes are one slot that counts as all of them; the caller must not fill it.
    """
    method, merged = preset.model.method, 1
    if merge_slots and method == "multimer":
        samples, merged = _with_merged_slots(samples)
    batch = _BATCHES[method].from_samples(samples, residues, device, round_rows=round_rows)
    if isinstance(batch, MultimerBatch) and merged > 1:
        slots = torch.ones_like(batch.template_mask)
        slots[:, -1] = merged
        batch = replace(batch, template_slots=slots)
    if restraints is not None:
        pairs, values = (torch.from_numpy(each).to(device) for each in (restraints.pairs, restraints.values))
        batch = replace(batch, restrained_pairs=pairs, restraint_values=values)
    if offsets is None:
        return batch
    # Embeddings tell no offsets beyond 32 apart; a byte for each pair of residues is little memory.
    least, most = np.iinfo(np.int8).min, np.iinfo(np.int8).max
    return replace(batch, offsets=torch.from_numpy(offsets.clip(least, most).astype(np.int8))[None].to(device))


def _with_merged_slots(samples: Sequence[Sample]) -> tuple[list[Sample], int]:
    """Return samples of which at most the last template slot is empty, and how many slots it stands for.

    AlphaFold-Multimer averages over four slots, whether they hold templates or not. Equal slots are embedded once.
    """
    slots = len(samples[0].template_mask)
    last = 0
    for each in samples:
        holds = each.template_all_atom_masks.any((1, 2)) | (each.template_aatype != each.template_aatype[-1:]).any(1)
        last = max([last, *(np.flatnonzero(holds) + 1).tolist()])
    kept = min(slots, last + 1)
    names = [name for name, axes in SAMPLE_AXES.items() if axes.startswith("t")]
    merged = [replace(each, **{name: getattr(each, name)[:kept] for name in names}) for each in samples]
    return merged, slots - kept + 1
