"""Sequences equal the ones of ProteinMPNN's own command, and residues that are kept stay."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import config

from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import protein_from_chains
from helixfold.apps.design.measures import interface_residues
from helixfold.apps.design.redraw import RedrawOptions, redrawn
from helixfold.cli.main import main
from helixfold.results.pdb import to_pdb

pytest.importorskip("protein_mpnn_utils", reason="needs the extra binders")

HAIRPIN = Path(__file__).parents[3] / "examples" / "structures" / "helical_hairpin.pdb"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "jaxtyping_disable", True)


@pytest.mark.integration
def test_sequences_are_those_of_the_command(tmp_path: Path) -> None:
    protein = protein_from_chains(read_structure(HAIRPIN).chains)
    (tmp_path / "x.pdb").write_text(to_pdb(protein))
    words = ["--pdb_path", str(tmp_path / "x.pdb"), "--out_folder", str(tmp_path / "out"), "--use_soluble_model"]
    words += ["--num_seq_per_target", "3", "--batch_size", "3", "--seed", "37", "--omit_AAs", "CX"]
    program = "from protein_mpnn_run import cli; cli()"
    subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True)
    lines = (tmp_path / "out" / "seqs" / "x.fa").read_text().splitlines()
    expected = lines[3::2]
    found = redrawn(protein, 0, RedrawOptions(count=3, seed=37, excluded="C"))
    assert [each.sequence for each in found] == expected
    for each, title in zip(found, lines[2::2], strict=True):
        assert f"score={each.score:.4f}" in title
        assert f"seq_recovery={each.recovery:.4f}" in title


def test_kept_residues_stay_and_excluded_ones_are_not_drawn() -> None:
    protein = protein_from_chains(read_structure(HAIRPIN).chains)
    (chain,) = read_structure(HAIRPIN).chains
    kept = [0, 3, 4, 11]
    found = redrawn(protein, 0, RedrawOptions(count=20, temperature=1.0, excluded="ACDEFGHIK"), kept=kept)
    assert len({each.sequence for each in found}) > 10
    for each in found:
        assert [each.sequence[place] for place in kept] == [chain.sequence[place] for place in kept]
        free = [letter for place, letter in enumerate(each.sequence) if place not in kept]
        assert not set(free) & set("ACDEFGHIK")
    with pytest.raises(InputError, match="ProteinMPNN has no soluble parameters best; they are v_48_002"):
        redrawn(protein, 0, RedrawOptions(count=1, model="best"))


def test_the_command_writes_sequences_that_keep_the_interface(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    protein = protein_from_chains(read_structure(HAIRPIN).chains)
    half = len(protein.aatype) // 2
    split = replace(protein, chain_index=(np.arange(len(protein.aatype)) >= half).astype(int))
    path = tmp_path / "complex.pdb"
    path.write_text(to_pdb(split))
    words = ["design", "redesign", str(path), "--sequences", "4", "--keep-interface", "-o", str(tmp_path / "out")]
    assert main(words) == 0
    lines = (tmp_path / "out" / "redesigned.fasta").read_text().splitlines()
    assert len(lines) == 8
    chains = read_structure(path).chains
    protein = protein_from_chains(chains)
    kept = interface_residues(protein, protein.chain_index == len(chains) - 1)
    assert kept
    for line in lines[1::2]:
        assert [line[place] for place in kept] == [chains[-1].sequence[place] for place in kept]
        assert "C" not in {letter for place, letter in enumerate(line) if place not in kept}
    capsys.readouterr()
    assert main(["design", "redesign", str(path), "--chain", "Q", "-o", str(tmp_path / "other")]) == 2
    assert "no chain Q; its chains are" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
