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
    """A known structure that the network read, as it is aligned to one chain."""

    name: str  # entry and chain, "1abc_A"
    chain_id: str  # of the target
    residues: str  # a letter for each residue of the target's chain: the template's residue there, "-" for none
    label: str  # names it among the templates of all chains: "1abc_A", or of a complex "chain B: 1abc_A"
    slot: int = 0  # its place in the features


def templates_read(features: TargetFeatures, preset: Preset) -> tuple[AlignedTemplate, ...]:
    """Return the templates of a target that the model of a preset reads."""
    if preset.model.template is None:
        return ()
    most = preset.sampling.max_templates
    if isinstance(features, ComplexFeatureSet) and preset.model.method == "monomer":
        return tuple(_by_gap(features, most))
    return templates_in(alignment_of(features), most)


def templates_in(features: Features | ComplexFeatures, most: int | None = None) -> tuple[AlignedTemplate, ...]:
    """Return the first `most` templates (None: all) of each chain, without those that have no residue.

    Of a complex whose features do not name its templates, there are none.
    """
    if isinstance(features, ComplexFeatures):
        return tuple(_of_complex(features, most))
    rows = zip(features.template_domain_names[:most], features.template_aatype[:most], strict=True)
    return tuple(
        AlignedTemplate(name=name, chain_id=ONLY_CHAIN, residues=_letters(types), label=name, slot=slot)
        for slot, (name, types) in enumerate(rows)
        if (types != GAP).any()
    )


def _of_complex(features: ComplexFeatures, most: int | None) -> Iterator[AlignedTemplate]:
    for number, names in enumerate(features.template_names):
        chain, own = features.chain_names[number], features.asym_id == number + 1
        for slot, name in islice(enumerate(names), most):
            types = features.template_aatype[slot, own]
            if name and (types != GAP).any():
                yield AlignedTemplate(
                    name=name, chain_id=chain, residues=_letters(types), label=f"chain {chain}: {name}", slot=slot
                )


def _by_gap(features: ComplexFeatureSet, most: int) -> Iterator[AlignedTemplate]:
    """Yield the templates that a model of single chains reads of a complex; each covers one chain."""
    asym_id, gap = features.multimer.asym_id, features.residue_gap
    for name, types in zip(gap.template_domain_names[:most], gap.template_aatype[:most], strict=True):
        if (types != GAP).any():
            number = asym_id[types != GAP][0]
            chain = features.multimer.chain_names[number - 1]
            residues = _letters(types[asym_id == number])
            yield AlignedTemplate(name=name, chain_id=chain, residues=residues, label=f"chain {chain}: {name}")


def _letters(types: np.ndarray) -> str:
    return "".join(RESTYPES_WITH_X_AND_GAP[kind] for kind in types.tolist())
