"""Example files are in the package, and are those of the repository."""

import pytest

import helixfold
from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.parse.fasta import read_fasta
from tests.support.sources import ROOT


def test_the_peptide_is_the_one_of_the_repository() -> None:
    peptide = helixfold.example_file("strand_helix.pdb")
    assert peptide.read_bytes() == (ROOT / "examples/structures/strand_helix.pdb").read_bytes()


def test_the_alignment_is_of_the_sequence() -> None:
    (record,) = read_fasta(helixfold.example_file("src_sh3.fasta"))
    alignment = parse_a3m(helixfold.example_file("src_sh3.a3m").read_bytes())
    assert len(alignment.names) == 112
    assert alignment.letters[0].tobytes().decode() == record.sequence


def test_another_name_is_an_error_that_lists_the_files() -> None:
    with pytest.raises(InputError, match=r"unknown example file 1abc.pdb; choose one of 1shg.pdb, src_sh3.a3m"):
        helixfold.example_file("1abc.pdb")
