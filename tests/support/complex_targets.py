"""Small complexes that tests share."""

from data_pipeline.features.complexes.alignments import EntityAlignment, PairMode
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.parse.a3m import Alignment, parse_a3m

# MSA rows of each sequence; row n of both has the same species, so that rows can be paired.
ROWS = {
    "MKTAYIAK": ("MKTAYIAK", "MRTAYLAK", "MKSAYIgAR", "M-TAYIAK"),
    "GSHMAEQL": ("GSHMAEQL", "GTHMADQL", "G-HMAEQI"),
}


def alignment_of_species(sequence: str) -> Alignment:
    """Return an alignment with names as in UniProt; row n of every sequence has the same species."""
    rows = "".join(
        f">tr|A0A00{index:05d}|A0A00{index:05d}_SPEC{index}\n{row}\n" for index, row in enumerate(ROWS[sequence])
    )
    return parse_a3m(f">query\n{sequence}\n{rows}".encode(), sequence)


def feature_set(chains: str = "ABA", mode: PairMode = "unpaired_paired") -> ComplexFeatureSet:
    """Return the features of a complex; each letter of `chains` is a chain: A has the first sequence, B the second."""
    sequences = dict(zip("AB", ROWS, strict=True))
    target = ComplexTarget.of("complex", [sequences[letter] for letter in chains])
    alignments = {
        sequence: EntityAlignment(
            sequence=sequence, unpaired=alignment_of_species(sequence), uniprot=alignment_of_species(sequence)
        )
        for sequence in target.sequences
    }
    return ComplexFeatureSet.of(target, alignments.values(), mode)
