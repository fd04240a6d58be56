"""Example files are in the package, and are those of the repository."""

import numpy as np
import pytest

import helixfold
from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.parse.fasta import read_fasta
from data_pipeline.parse.structures import read_structure
from tests.support.sources import ROOT


def test_the_peptide_is_the_one_of_the_repository() -> None:
    peptide = helixfold.example_file("strand_helix.pdb")
    assert peptide.read_bytes() == (ROOT / "examples/structures/strand_helix.pdb").read_bytes()


def test_the_alignment_and_the_experiment_are_of_the_sequence() -> None:
    (record,) = read_fasta(helixfold.example_file("src_sh3.fasta"))
    alignment = parse_a3m(helixfold.example_file("src_sh3.a3m").read_bytes())
    (chain,) = read_structure(helixfold.example_file("1srl.pdb")).chains
    assert len(alignment.names) == 112
    assert chain.sequence == record.sequence
    assert np.flatnonzero(chain.observed).tolist() == list(range(8, 64))


def test_another_name_is_an_error_that_lists_the_files() -> None:
    with pytest.raises(InputError, match=r"no example file 1abc.pdb; choose among 1shg.pdb, 1srl.pdb, src_sh3.a3m"):
        helixfold.example_file("1abc.pdb")
