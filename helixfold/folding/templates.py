"""The templates of a target, and which of them a model reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures, alignment_of
from data_pipeline.features.schema import Features
from data_pipeline.residues import GAP, RESTYPES_WITH_X_AND_GAP
from helixfold.model.presets import Preset


@dataclass(frozen=True, kw_only=True)
class AlignedTemplate:
    """A template structure in the features of a target, aligned to one of its chains.

    `name` is its entry and chain, such as "1abc_A", and `chain_id` the name of the target's chain. `residues` has for
    each residue of this chain the letter of the aligned template residue, or "-". `label` is unique among the templates
    of all chains: "1abc_A", or for a complex "chain B: 1abc_A". `slot` is the index of the template in the arrays of
    the features.
    """

    name: str
    chain_id: str
    residues: str
    label: str
    slot: int = 0


def templates_read(features: TargetFeatures, preset: Preset) -> tuple[AlignedTemplate, ...]:
    """Return the templates of a target that the model of a preset reads; none if it reads no templates.

    A model reads only the first templates, up to the maximum in its preset.
    """
    if preset.model.template is None:
        return ()
    max_count = preset.sampling.max_templates
    if isinstance(features, ComplexFeatureSet) and preset.model.method == "monomer":
        return tuple(_by_gap(features, max_count))
    return templates_in(alignment_of(features), max_count)


def templates_in(features: Features | ComplexFeatures, max_count: int | None = None) -> tuple[AlignedTemplate, ...]:
    """Return the first `max_count` templates (None: all) of each chain, without templates that have no residue.

    Returns none for a complex whose features do not name its templates.
    """
    if isinstance(features, ComplexFeatures):
        return tuple(_of_complex(features, max_count))
    rows = zip(features.template_domain_names[:max_count], features.template_aatype[:max_count], strict=True)
    return tuple(
        AlignedTemplate(name=name, chain_id=ONLY_CHAIN, residues=_letters(types), label=name, slot=slot)
        for slot, (name, types) in enumerate(rows)
        if (types != GAP).any()
    )


def _of_complex(features: ComplexFeatures, max_count: int | None) -> Iterator[AlignedTemplate]:
    """Yield the first `max_count` templates (None: all) of each chain of a complex that have a name and a residue."""
    for index, names in enumerate(features.template_names):
        chain, own = features.chain_names[index], features.asym_id == index + 1
        for slot, name in islice(enumerate(names), max_count):
            types = features.template_aatype[slot, own]
            if name and (types != GAP).any():
                yield AlignedTemplate(
                    name=name, chain_id=chain, residues=_letters(types), label=f"chain {chain}: {name}", slot=slot
                )


def _by_gap(features: ComplexFeatureSet, max_count: int) -> Iterator[AlignedTemplate]:
    """Yield the templates of a complex that a monomer model reads; each covers one chain."""
    asym_id, gap = features.multimer.asym_id, features.residue_gap
    for name, types in zip(gap.template_domain_names[:max_count], gap.template_aatype[:max_count], strict=True):
        if (types != GAP).any():
            chain_number = asym_id[types != GAP][0]
            chain = features.multimer.chain_names[chain_number - 1]
            residues = _letters(types[asym_id == chain_number])
            yield AlignedTemplate(name=name, chain_id=chain, residues=residues, label=f"chain {chain}: {name}")


def _letters(types: np.ndarray) -> str:
    """Return residue types as letters, with "-" for gaps and "X" for unknown residues."""
    return "".join(RESTYPES_WITH_X_AND_GAP[kind] for kind in types.tolist())
