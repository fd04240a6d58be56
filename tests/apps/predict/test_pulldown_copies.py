"""The table of a pulldown names all copies and chains of baits and preys, each on its own side."""

import csv
from pathlib import Path

import pytest

from helixfold.cli.main import main

pytestmark = pytest.mark.usefixtures("undrawn")


def test_copies_of_a_bait_are_no_preys(tmp_path: Path) -> None:
    (tmp_path / "baits.fasta").write_text(">b1\nMKTAYIAKQR\n>b2\nGSHMLEDPVA\n")
    (tmp_path / "preys.fasta").write_text(">p1\nMAEEWLDKVR\n")
    (tmp_path / "table.csv").write_text("id,bait,prey\nmine,b1*2:b2,p1*2\n")
    words = ["--pulldown", *(str(tmp_path / name) for name in ("baits.fasta", "preys.fasta"))]
    words += ["--pulldown-table", str(tmp_path / "table.csv"), "--output", str(tmp_path / "out")]
    quick = ["--models", "tiny_multimer", "--models-to-relax", "none", "--num-recycles", "0", "--device", "cpu"]
    assert main(["predict", *words, *quick]) == 0
    with (tmp_path / "out/pulldown.tsv").open() as file:
        (line,) = csv.DictReader(file, delimiter="\t")
    assert (line["bait"], line["prey"], line["residues"]) == ("b1*2:b2", "p1*2", "50")
