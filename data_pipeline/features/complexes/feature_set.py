"""Features of a complex for all kinds of models, and of any target (a single chain or a complex).

`RESIDUE_GAP` is the gap in residue numbers between chains in the features for monomer models. `TargetFeatures` are the
features of a single chain or of a complex.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from jaxtyping import Int

from data_pipeline.features.assembly import MAX_TEMPLATES, Chain, ComplexFeatures, complex_features, paired_rows
from data_pipeline.features.complexes.alignments import EntityAlignment, PairMode, chains_of
from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.schema import Features
from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.features.templates import AlignedTemplate, TemplateFeatures, stack_templates
from data_pipeline.residues import GAP

# Gap in residue numbers between two chains. Monomer models clip distances above 32; 200 is the usual gap.
RESIDUE_GAP = 200


# The template arrays of a complex, and the attributes of a chain's template that fill them.
_ATTRIBUTE_OF_TEMPLATE_ARRAY = {
    "template_aatype": "aatype",
    "template_all_atom_positions": "positions",
    "template_all_atom_masks": "masks",
}


def _residue_gap_features(name: str, copies: Sequence[Chain], has_others: Mapping[str, bool]) -> Features:
    """Return the features of a complex for a monomer model, as one chain with missing residues.

    Residue numbers have a gap between chains; chains with the same sequence are neighbours.

    As in ColabFold (`alphafold2_ptm`), the MSA has the complex, paired rows, and the other rows of each chain with gaps
    in all other chains; rows of chains with the same sequence are not side by side but below each other. Duplicate rows
    are left out, as in AlphaFold. Each template covers one chain and has gaps in the others, so templates contain no
    information about the arrangement of the chains. `has_others` is, by sequence, whether there are unpaired rows.
    """
    groups: dict[str, list[Chain]] = {}
    for chain in copies:
        groups.setdefault(chain.features.sequence, []).append(chain)
    chains = [chain for copies in groups.values() for chain in copies]
    edges = np.cumsum([0, *(len(chain.features.aatype) for chain in chains)])
    columns = [slice(start, stop) for start, stop in pairwise(edges.tolist())]
    by_entity = paired_rows([copies[0] for copies in groups.values()])
    pairs = [rows for rows, copies in zip(by_entity, groups.values(), strict=True) for _ in copies]
    # Rows of a single sequence cannot be paired.
    height = len(pairs[0].msa) if len(groups) > 1 else 0
    others = [len(chain.features.msa) if has_others[chain.features.sequence] else 0 for chain in chains]
    msa = np.full((1 + height + sum(others), edges[-1]), GAP, np.int8)
    types = (*(rows.deletion_matrix for rows in pairs), *(chain.features.deletion_matrix for chain in chains))
    deletions = np.zeros(msa.shape, np.result_type(*types))
    top = 1 + height
    for index, (chain, span) in enumerate(zip(chains, columns, strict=True)):
        msa[0, span] = chain.features.msa[0]
        msa[1 : 1 + height, span] = pairs[index].msa[:height]
        deletions[1 : 1 + height, span] = pairs[index].deletion_matrix[:height]
        block = slice(top, top + others[index])
        msa[block, span] = chain.features.msa[: others[index]]
        deletions[block, span] = chain.features.deletion_matrix[: others[index]]
        top = block.stop
    first = _first_of_equals(msa)
    sequence = "".join(chain.features.sequence for chain in chains)
    numbers, end = [], 0
    for chain in chains:
        numbers.append(end + chain.features.residue_index)
        end = int(numbers[-1][-1]) + 1 + RESIDUE_GAP
    return Features(
        domain_name=name,
        sequence=sequence,
        aatype=aatype_from_sequence(sequence),
        residue_index=np.concatenate(numbers).astype(np.int32),
        msa=msa[first],
        deletion_matrix=deletions[first],
        **_templates(chains, columns),
    )


def _templates(chains: Sequence[Chain], columns: Sequence[slice]) -> TemplateFeatures:
    """Return the templates of all chains, with the best of each chain first, up to the limit of published models."""
    # Differs from ColabFold, where monomer models use no templates for a complex.
    ranked = sorted(
        (rank, index) for index, chain in enumerate(chains) for rank in range(len(chain.features.template_aatype))
    )
    length, templates = columns[-1].stop, list[AlignedTemplate]()
    for rank, index in ranked[:MAX_TEMPLATES]:
        own, span = chains[index].features, columns[index]
        aatype = np.full(length, GAP, np.int32)
        positions, masks = np.zeros((length, 37, 3), np.float32), np.zeros((length, 37), np.float32)
        aatype[span] = own.template_aatype[rank]
        positions[span] = own.template_all_atom_positions[rank]
        masks[span] = own.template_all_atom_masks[rank]
        templates.append(
            AlignedTemplate(
                name=own.template_domain_names[rank],
                sum_probs=float(own.template_sum_probs[rank, 0]),
                aatype=aatype,
                positions=positions,
                masks=masks,
            )
        )
    return stack_templates(templates, length)


def _first_of_equals(msa: Int[np.ndarray, "n r"]) -> Int[np.ndarray, "m"]:
    """Return the indices of the rows that do not occur earlier."""
    first: dict[bytes, int] = {}
    for index, row in enumerate(msa):
        first.setdefault(row.tobytes(), index)
    return np.fromiter(first.values(), np.intp)


@dataclass(frozen=True, kw_only=True)
class ComplexFeatureSet:
    """Features of a complex for multimer models, and for monomer models, which see it as one chain.

    The residues have the same order in both; chains with the same sequence are neighbours. `residue_gap` has the
    features for monomer models, with gaps in the residue numbers between chains.
    """

    multimer: ComplexFeatures
    residue_gap: Features  # with gaps in the residue numbers between chains

    @classmethod
    def of(
        cls, target: ComplexTarget, alignments: Iterable[EntityAlignment], mode: PairMode = "unpaired_paired"
    ) -> "ComplexFeatureSet":
        """Return the features of a complex; see `chains_of` and `complex_features`.

        For a complex of one chain, the features for monomer models are the features of this chain.
        """
        alignments = list(alignments)
        chains = chains_of(target, alignments, mode)
        multimer = complex_features(chains)
        if len(chains) == 1:
            return cls(multimer=multimer, residue_gap=replace(chains[0].features, domain_name=target.name))
        has_others = {each.sequence: each.in_mode(mode).unpaired is not None for each in alignments}
        return cls(multimer=multimer, residue_gap=_residue_gap_features(target.name, chains, has_others))

    def with_templates_across_chains(self, templates: Sequence[Mapping[str, AlignedTemplate]]) -> "ComplexFeatureSet":
        """Return the features with templates that show how chains are arranged, in the first slots for multimer models.

        Each item of `templates` fills one slot, and maps names of chains to their part of the template. The templates
        that were there move to later slots, or out. The features for monomer models are unchanged.
        """
        features, new_count = self.multimer, len(templates)
        arrays = {name: getattr(features, name).copy() for name in _ATTRIBUTE_OF_TEMPLATE_ARRAY}
        names = list(features.template_names or ((("",) * MAX_TEMPLATES),) * len(features.chain_names))
        for number, chain in enumerate(features.chain_names):
            own = features.asym_id == number + 1
            for name, attribute in _ATTRIBUTE_OF_TEMPLATE_ARRAY.items():
                array = arrays[name]
                array[new_count:, own], array[:new_count, own] = array[:-new_count, own], 0
                for slot, each in enumerate(templates):
                    if chain in each:
                        array[slot, own] = getattr(each[chain], attribute)
            added = (each[chain].name if chain in each else "" for each in templates)
            names[number] = (*added, *names[number])[:MAX_TEMPLATES]
        multimer = replace(
            features,
            template_names=tuple(names),
            template_spans_chains=tuple(slot < new_count for slot in range(MAX_TEMPLATES)),
            **arrays,
        )
        return replace(self, multimer=multimer)

    @property
    def domain_name(self) -> str:
        """Name of the complex."""
        return self.residue_gap.domain_name

    @property
    def chain_sequences(self) -> tuple[str, ...]:
        """Sequence of each chain, in the order of `multimer.chain_names`."""
        edges = np.cumsum(np.bincount(self.multimer.asym_id)).tolist()
        return tuple(self.residue_gap.sequence[start:stop] for start, stop in pairwise(edges))

    @property
    def sequence(self) -> str:
        """Sequences of all chains, separated by colons."""
        return CHAIN_SEPARATOR.join(self.chain_sequences)


TargetFeatures = Features | ComplexFeatureSet


def alignment_of(features: TargetFeatures) -> Features | ComplexFeatures:
    """Return the features with the alignment to describe in reports; for a complex, the one with paired rows."""
    return features.multimer if isinstance(features, ComplexFeatureSet) else features


def as_complex(features: Features) -> ComplexFeatures:
    """Return the features of a single chain as features of a complex of one chain, named A."""
    return complex_features([Chain(name=ONLY_CHAIN, features=features)])
