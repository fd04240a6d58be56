"""Features of a complex for every kind of model, and of any target, which is a single chain or a complex."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from data_pipeline.complexes.alignments import EntityAlignment, PairMode, chains_of
from data_pipeline.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.complexes.features import multimer_features, residue_gap_features
from data_pipeline.complexes.target import ComplexTarget
from data_pipeline.features.assembly import Chain, ComplexFeatures, complex_features
from data_pipeline.features.schema import Features


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
        """Return the features of a complex; see `multimer_features` and `residue_gap_features`.

        A model of single chains reads a complex of one chain as that chain, with its templates.
        """
        alignments = list(alignments)
        multimer = multimer_features(target, alignments, mode)
        if len(target.sequences) > 1:
            return cls(multimer=multimer, residue_gap=residue_gap_features(target, alignments, mode).features)
        (chain,) = chains_of(target, alignments, mode)
        return cls(multimer=multimer, residue_gap=replace(chain.features, domain_name=target.name))

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
