"""Fragments of a chain are predicted as one chain, with the residue numbers of the whole chain."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.feature_file import load_features, save_features
from data_pipeline.features.complexes.feature_set import RESIDUE_GAP
from data_pipeline.features.complexes.pipeline import prepare_complex
from data_pipeline.features.complexes.pulldown import read_pulldown
from data_pipeline.features.complexes.target_files import read_targets
from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import Target, prepare
from helixfold.folding.model_input import model_input
from helixfold.model.presets import tiny, tiny_multimer

CHAIN = "MKTAYIAKQRQISFVKSHFS"
NUMBERS = [2, 3, 4, 11, 12, 13, 14]
PIECES = CHAIN[1:4] + CHAIN[10:14]


def write(directory: Path, name: str, text: str) -> Path:
    (directory / name).write_text(text)
    return directory / name


def test_a_header_or_a_column_names_the_residues(tmp_path: Path) -> None:
    fasta = write(tmp_path, "x.fasta", f">one kinase fragment=2-4,11-14 (human)\n{CHAIN}\n>two kinase\n{CHAIN}\n")
    table = write(tmp_path, "x.csv", f'id,sequence,fragment\nthree,{CHAIN},"2-4,11-14"\nfour,{CHAIN},\n')
    found = read_targets([fasta, table])
    assert [each.sequence for each in found] == [PIECES, CHAIN] * 2
    assert found[0].description == "kinase (human)"
    for target, numbers in zip(found, [NUMBERS, range(1, 21)] * 2, strict=True):
        assert isinstance(target, Target)
        features = prepare(target).features
        features.save(tmp_path / "features.npz")
        for each in (features, load_features(tmp_path / "features.npz")):
            for preset in (tiny(), tiny_multimer()):
                given = model_input(each, preset)
                assert given.residue_number.tolist() == list(numbers)
                assert given.features.residue_index.tolist() == [number - 1 for number in numbers]


def test_chains_of_a_complex_keep_their_numbers(tmp_path: Path) -> None:
    records = f">a fragment=2-4,11-14\n{CHAIN}\n>b\nGSHMAEQL\n>c fragment=11-13\n{CHAIN}\n"
    (target,) = read_targets([write(tmp_path, "x.fasta", records)], records_as_chains=True)
    assert isinstance(target, ComplexInput)
    features = prepare_complex(target).features
    save_features(tmp_path / "x.npz", features)
    for each in (features, load_features(tmp_path / "x.npz")):
        given = model_input(each, tiny_multimer())
        assert given.residue_number.tolist() == [*NUMBERS, *range(1, 9), 11, 12, 13]
        by_gap = model_input(each, tiny())
        assert by_gap.residue_number.tolist() == given.residue_number.tolist()
        index = by_gap.features.residue_index
        second, third = 14 + RESIDUE_GAP, 14 + 8 + 2 * RESIDUE_GAP
        expected = [*[number - 1 for number in NUMBERS], *range(second, second + 8), *range(third + 10, third + 13)]
        np.testing.assert_array_equal(index, expected)


def test_proteins_of_a_pulldown_may_be_fragments(tmp_path: Path) -> None:
    baits = write(tmp_path, "baits.fasta", f">bait\n{CHAIN}\n>part fragment=2-4,11-14\n{CHAIN}\n")
    preys = write(tmp_path, "preys.fasta", f">prey fragment=11-13\n{CHAIN}\n")
    whole, part = read_pulldown(baits, preys)
    assert whole.target.sequences == (CHAIN, CHAIN[10:13])
    assert whole.target.fragments == ("", "11-13")
    assert part.name == "part__prey"
    assert part.target.sequences == (PIECES, CHAIN[10:13])
    assert part.target.fragments == ("2-4,11-14", "11-13")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f">x fragment=2-4,3-9\n{CHAIN}\n", "line 1, record 'x': fragment must be residues of one chain in ascending"),
        (f">x fragment=A:2-4\n{CHAIN}\n", "fragment must be residues of one chain in ascending order"),
        (f">x fragment=2-21\n{CHAIN}\n", "fragment ends at residue 21, but the sequence has 20 residues"),
        (f">x fragment=first\n{CHAIN}\n", "fragment must be residues from 1, such as"),
        (f">x fragment=2-4\n{CHAIN}:{CHAIN}\n", "fragment= is for a record of one chain; pass the chains as records"),
    ],
)
def test_other_residues_are_errors(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        read_targets([write(tmp_path, "x.fasta", text)])
