"""Small complexes that tests share."""

from data_pipeline.features.complexes.alignments import EntityAlignment, PairMode
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.parse.a3m import Alignment, parse_a3m

# Sequences of the same alignment, with species by which their rows are paired.
ROWS = {
    "MKTAYIAK": ("MKTAYIAK", "MRTAYLAK", "MKSAYIgAR", "M-TAYIAK"),
    "GSHMAEQL": ("GSHMAEQL", "GTHMADQL", "G-HMAEQI"),
}


def alignment_of_species(sequence: str) -> Alignment:
    """Rows whose names are those of UniProt; row n of every sequence is of the same species."""
    rows = "".join(
        f">tr|A0A00{number:05d}|A0A00{number:05d}_SPEC{number}\n{row}\n" for number, row in enumerate(ROWS[sequence])
    )
    return parse_a3m(f">query\n{sequence}\n{rows}".encode(), sequence)


def feature_set(chains: str = "ABA", mode: PairMode = "unpaired_paired") -> ComplexFeatureSet:
    """Features of a complex; `chains` has a letter for each, A for the first of the sequences and B for the second."""
    sequences = dict(zip("AB", ROWS, strict=True))
    target = ComplexTarget.of("complex", [sequences[letter] for letter in chains])
    given = {
        sequence: EntityAlignment(
            sequence=sequence, unpaired=alignment_of_species(sequence), uniprot=alignment_of_species(sequence)
        )
        for sequence in target.sequences
    }
    return ComplexFeatureSet.of(target, given.values(), mode)
