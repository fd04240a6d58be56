"""Features of a complex for every kind of model, and of any target, which is a single chain or a complex."""

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

# Residue numbers that are left out between two chains. A monomer's model sees no distance above 32; 200 is usual.
RESIDUE_GAP = 200


def _residue_gap_features(name: str, copies: Sequence[Chain], has_others: Mapping[str, bool]) -> Features:
    """Return the features of a complex for a monomer's model, which takes it for one chain with missing residues.

    Residue numbers jump from chain to chain; chains of the same sequence are neighbours.

    As in ColabFold (`alphafold2_ptm`), the MSA holds the complex, paired rows, and the other rows of each chain with
    gaps in all other chains; chains of the same sequence are not side by side but below each other. Rows that occur
    twice are left out, as in AlphaFold. Each template covers one chain and has gaps in all others, so templates carry
    no information on how the chains are arranged. `has_others` says, by sequence, whether there are rows to be left
    unpaired.
    """
    groups: dict[str, list[Chain]] = {}
    for chain in copies:
        groups.setdefault(chain.features.sequence, []).append(chain)
    chains = [chain for copies in groups.values() for chain in copies]
    edges = np.cumsum([0, *(len(chain.features.aatype) for chain in chains)])
    columns = [slice(start, stop) for start, stop in pairwise(edges.tolist())]
    by_entity = paired_rows([copies[0] for copies in groups.values()])
    pairs = [rows for rows, copies in zip(by_entity, groups.values(), strict=True) for _ in copies]
    # The rows of one sequence have no others to be paired with.
    height = len(pairs[0].msa) if len(groups) > 1 else 0
    others = [len(chain.features.msa) if has_others[chain.features.sequence] else 0 for chain in chains]
    msa = np.full((1 + height + sum(others), edges[-1]), GAP, np.int8)
    types = (*(rows.deletion_matrix for rows in pairs), *(chain.features.deletion_matrix for chain in chains))
    deletions = np.zeros(msa.shape, np.result_type(*types))
    top = 1 + height
    for number, (chain, span) in enumerate(zip(chains, columns, strict=True)):
        msa[0, span] = chain.features.msa[0]
        msa[1 : 1 + height, span] = pairs[number].msa[:height]
        deletions[1 : 1 + height, span] = pairs[number].deletion_matrix[:height]
        block = slice(top, top + others[number])
        msa[block, span] = chain.features.msa[: others[number]]
        deletions[block, span] = chain.features.deletion_matrix[: others[number]]
        top = block.stop
    first = _first_of_equals(msa)
    sequence = "".join(chain.features.sequence for chain in chains)
    numbers = np.concatenate([RESIDUE_GAP * each + np.arange(*span) for each, span in enumerate(pairwise(edges))])
    return Features(
        domain_name=name,
        sequence=sequence,
        aatype=aatype_from_sequence(sequence),
        residue_index=numbers.astype(np.int32),
        msa=msa[first],
        deletion_matrix=deletions[first],
        **_templates(chains, columns),
    )


def _templates(chains: Sequence[Chain], columns: Sequence[slice]) -> TemplateFeatures:
    """Return the templates of all chains, the best of each chain first, up to the number that published models read."""
    # Differs from ColabFold, where models of single chains read no templates of a complex.
    ranked = sorted(
        (rank, number) for number, chain in enumerate(chains) for rank in range(len(chain.features.template_aatype))
    )
    length, found = columns[-1].stop, list[AlignedTemplate]()
    for rank, number in ranked[:MAX_TEMPLATES]:
        own, span = chains[number].features, columns[number]
        aatype = np.full(length, GAP, np.int32)
        positions, masks = np.zeros((length, 37, 3), np.float32), np.zeros((length, 37), np.float32)
        aatype[span] = own.template_aatype[rank]
        positions[span] = own.template_all_atom_positions[rank]
        masks[span] = own.template_all_atom_masks[rank]
        found.append(
            AlignedTemplate(
                name=own.template_domain_names[rank],
                sum_probs=float(own.template_sum_probs[rank, 0]),
                aatype=aatype,
                positions=positions,
                masks=masks,
            )
        )
    return stack_templates(found, length)


def _first_of_equals(msa: Int[np.ndarray, "n r"]) -> Int[np.ndarray, "m"]:
    """Return the indices of the rows that come nowhere before."""
    first: dict[bytes, int] = {}
    for index, row in enumerate(msa):
        first.setdefault(row.tobytes(), index)
    return np.fromiter(first.values(), np.intp)


@dataclass(frozen=True, kw_only=True)
class ComplexFeatureSet:
    """Features of a complex for models of complexes, and for models of single chains, which read it as one chain.

    The residues have the same order in both; chains of the same sequence are neighbours.
    """

    multimer: ComplexFeatures
    residue_gap: Features  # residue numbers jump from chain to chain

    @classmethod
    def of(
        cls, target: ComplexTarget, alignments: Iterable[EntityAlignment], mode: PairMode = "unpaired_paired"
    ) -> "ComplexFeatureSet":
        """Return the features of a complex; see `chains_of` and `complex_features`.

        A model of single chains reads a complex of one chain as that chain, with its templates.
        """
        alignments = list(alignments)
        chains = chains_of(target, alignments, mode)
        multimer = complex_features(chains)
        if len(chains) == 1:
            return cls(multimer=multimer, residue_gap=replace(chains[0].features, domain_name=target.name))
        has_others = {each.sequence: each.in_mode(mode).unpaired is not None for each in alignments}
        return cls(multimer=multimer, residue_gap=_residue_gap_features(target.name, chains, has_others))

    @property
    def domain_name(self) -> str:
        """Return the complex's name."""
        return self.residue_gap.domain_name

    @property
    def chain_sequences(self) -> tuple[str, ...]:
        """Return the sequence of each chain, in the order of `multimer.chain_names`."""
        edges = np.cumsum(np.bincount(self.multimer.asym_id)).tolist()
        return tuple(self.residue_gap.sequence[start:stop] for start, stop in pairwise(edges))

    @property
    def sequence(self) -> str:
        """Return the sequences of all chains with colons between."""
        return CHAIN_SEPARATOR.join(self.chain_sequences)


TargetFeatures = Features | ComplexFeatureSet


def alignment_of(features: TargetFeatures) -> Features | ComplexFeatures:
    """Return the features with the alignment by which a target is described: of a complex, that with paired rows."""
    return features.multimer if isinstance(features, ComplexFeatureSet) else features


def as_complex(features: Features) -> ComplexFeatures:
    """Return the features of a single chain as those of a complex that has no other chain."""
    return complex_features([Chain(name=ONLY_CHAIN, features=features)])
