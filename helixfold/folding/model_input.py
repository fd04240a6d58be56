"""Convert a target's features to the input of one model: multimer and monomer models read different features."""

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
from data_pipeline.sampling.complex_sample import ComplexSample
from data_pipeline.sampling.sample import draw_sample
from helixfold.folding.residue_offsets import check_offsets, offsets_with_rings, rings_of
from helixfold.model.batch import Batch, MultimerBatch
from helixfold.model.config import Method
from helixfold.model.presets import Preset

_BATCH_TYPES: dict[Method, type[Batch]] = {"monomer": Batch, "multimer": MultimerBatch}
_RESIDUE_GAP_NOTE: Final = (
    "COMPLEX BY RESIDUE GAP: made by '{model}', which was trained on single chains and takes the complex for one chain "
    "with missing residues; how it places chains next to each other is often wrong, so look at ipTM and at the errors "
    "between chains, or use a model of complexes, such as model_1_multimer_v3"
)
_NO_RESTRAINTS_NOTE: Final = "NO RESTRAINTS: '{model}' reads distance restraints, and the target has none"


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """Features of a target as one model reads them, its chains, and notes about how reliable a prediction is.

    `name` is the name of the target. `chain_index` has for each residue the index of its chain in `chain_ids`, and
    `rings` the indices of the cyclic chains. `residue_number` counts from 1 in each chain. `offsets` are the sequence
    offsets of residue pairs; None means differences of residue numbers.
    """

    name: str
    features: Features | ComplexFeatures
    chain_ids: tuple[str, ...]
    chain_index: Int[np.ndarray, "r"]
    residue_number: Int[np.ndarray, "r"]
    rings: tuple[int, ...] = ()
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
    """Return the input of the model of a preset for a target.

    A multimer model reads a single chain as a complex of one chain. A monomer model reads a complex as one chain, with
    a gap in the residue numbers between chains. `cyclic` names the chains whose ends are bonded; an empty sequence
    means all of them. `offsets` replaces the sequence offsets of all residue pairs, also within cyclic chains.

    Raise `InputError` for a cyclic chain that the target does not have, `offsets` of a wrong shape, or `restraints`
    that the model does not read. Also raise it for templates across chains with a monomer model.
    """
    inputs = _linear_input(features, preset)
    rings = rings_of(inputs.chain_ids, cyclic, inputs.name)
    if offsets is not None:
        check_offsets(offsets, len(inputs.chain_index))
    elif rings:
        offsets = offsets_with_rings(inputs.features.residue_index, inputs.chain_index, rings)
    if (problem := restraints_problem(preset, restraints, len(inputs.chain_ids))) is not None:
        raise InputError(f"'{printable(inputs.name)}': {problem}")
    notes = input_notes(preset, len(inputs.chain_ids), restrained=restraints is not None)
    return replace(inputs, rings=rings, offsets=offsets, restraints=restraints, notes=notes)


def restraints_problem(preset: Preset, restraints: DistanceRestraints | None, chains: int) -> str | None:
    """Return why the model of a preset cannot read the restraints of a target, or None if it can.

    `chains` is the number of the target's chains. A target without restraints is never a problem.
    """
    if restraints is None or (restraints.kind == preset.model.restraints and chains == 1):
        return None
    if chains > 1:
        return f"restraints are for targets of one chain, and it has {chains}"
    reads = "does not read restraints" if preset.model.restraints is None else f"reads {preset.model.restraints}"
    advice = f"pass --models alphalink_{restraints.kind} and its --weights"
    return f"its restraints are {restraints.kind}, and '{preset.name}' {reads}; {advice}"


def _linear_input(features: TargetFeatures, preset: Preset) -> ModelInput:
    """Return the input of the model of a preset for a target without cyclic chains."""
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
    if any(multimer.template_spans_chains):
        require_multimer(preset)
    return ModelInput(
        name=features.domain_name,
        features=multimer if is_multimer else features.residue_gap,
        chain_ids=multimer.chain_names,
        chain_index=multimer.asym_id - 1,
        residue_number=multimer.residue_index + 1,
    )


def require_multimer(preset: Preset) -> None:
    """Raise `InputError` for a monomer model, which cannot read templates across chains."""
    if preset.model.method != "multimer":
        raise InputError(
            f"{preset.name} was trained on single chains and cannot read templates across chains; pass models of "
            "complexes, such as --preset multimer, or omit --cross-chain-templates"
        )


def input_notes(preset: Preset, chains: int, *, restrained: bool) -> tuple[str, ...]:
    """Return warnings about predictions of a target with this number of chains by the model of a preset.

    There is one for a complex with a monomer model. Another is for a model that reads restraints if the target is not
    `restrained`.
    """
    by_gap = preset.model.method == "monomer" and chains > 1
    texts = [_RESIDUE_GAP_NOTE] if by_gap else []
    texts += [_NO_RESTRAINTS_NOTE] if preset.model.restraints and not restrained else []
    return tuple(text.format(model=preset.name) for text in texts)


def depends_on_seed(features: TargetFeatures, preset: Preset, *, dropout: bool) -> bool:
    """Return whether predictions of a target by the model of a preset depend on the seed.

    They do with dropout, and if MSA rows are drawn at random because there are more than the model reads.
    """
    rows = len(_linear_input(features, preset).features.msa)
    return dropout or preset.sampling.depends_on_chance(rows)


def draw(inputs: ModelInput, preset: Preset, key: Sequence[int]) -> Sample:
    """Draw one random sample of a target's features.

    It depends on the target, the model and `key` (seed, iteration and ensemble member), but not on earlier draws.
    """
    rng, sampling = generator(inputs.name, preset, key), preset.sampling
    if isinstance(inputs.features, Features):
        return draw_sample(inputs.features, sampling, rng)
    choices = complex_sample.draw(inputs.features, sampling, rng)
    return complex_sample.complex_sample(inputs.features, sampling, choices)


def generator(target: str, preset: Preset, key: Sequence[int]) -> np.random.Generator:
    """Return the random number generator for a target, a model and a key of integers, such as seed and iteration."""
    return np.random.default_rng([*(zlib.crc32(name.encode()) for name in (target, preset.name)), *key])


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
    """Return samples as a batch for the model of a preset; see `Batch.from_samples` for `residues` and `round_rows`.

    `offsets` and `restraints` are for a batch of one sample. With `merge_slots`, the empty template slots of complexes
    are merged into one, which has the weight of all of them; the caller must not fill it.
    """
    method, merged_count = preset.model.method, 1
    if merge_slots and method == "multimer":
        samples, merged_count = _with_merged_slots(samples)
    batch = _BATCH_TYPES[method].from_samples(samples, residues, device, round_rows=round_rows)
    if isinstance(batch, MultimerBatch) and merged_count > 1:
        slots = torch.ones_like(batch.template_mask)
        slots[:, -1] = merged_count
        batch = replace(batch, template_slots=slots)
    if restraints is not None:
        pairs, values = (torch.from_numpy(each).to(device) for each in (restraints.pairs, restraints.values))
        batch = replace(batch, restrained_pairs=pairs, restraint_values=values)
    spans = [each.template_spans_chains for each in samples if isinstance(each, ComplexSample)]
    if isinstance(batch, MultimerBatch) and any(map(any, spans)):
        count = batch.template_mask.shape[1]
        rows = [(each or (False,) * count)[:count] for each in spans]
        batch = replace(batch, template_spans_chains=torch.tensor(rows, device=device))
    if offsets is None:
        return batch
    # The embedding clips offsets at 32, so int8 suffices and saves memory.
    limits = np.iinfo(np.int8)
    clipped = offsets.clip(limits.min, limits.max).astype(np.int8)
    return replace(batch, offsets=torch.from_numpy(clipped)[None].to(device))


def _with_merged_slots(samples: Sequence[Sample]) -> tuple[list[Sample], int]:
    """Return samples in which at most the last template slot is empty, and the number of slots that it represents.

    AlphaFold-Multimer averages over all slots, usually four, whether they hold templates or not. Equal slots are
    embedded once.
    """
    slots = len(samples[0].template_mask)
    filled = 0
    for each in samples:
        is_other = each.template_aatype != each.template_aatype[-1:]
        is_filled = each.template_all_atom_masks.any((1, 2)) | is_other.any(1)
        filled = max([filled, *(np.flatnonzero(is_filled) + 1).tolist()])
    count = min(slots, filled + 1)
    names = [name for name, axes in SAMPLE_AXES.items() if axes.startswith("t")]
    merged = [replace(each, **{name: getattr(each, name)[:count] for name in names}) for each in samples]
    return merged, slots - count + 1
