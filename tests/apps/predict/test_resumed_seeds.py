"""A run that goes on folds each target with the seeds that it lacks, whatever others lack."""

import json
from pathlib import Path

import pytest

from helixfold.cli.main import main

pytestmark = pytest.mark.usefixtures("undrawn")


def test_targets_that_lack_different_seeds_get_their_own(tmp_path: Path) -> None:
    fasta, output = tmp_path / "two.fasta", tmp_path / "out"
    fasta.write_text(">a\nMKTAYIAKQR\n>b\nGSHMKTAYIA\n")
    options = ["--models", "tiny", "--num-recycles", "0", "--models-to-relax", "none", "--device", "cpu"]
    command = ["predict", str(fasta), *options, "--num-seeds", "2", "--targets-at-once", "8", "--output", str(output)]
    assert main(command) == 0
    files = [output / "a/confidence_tiny_seed_0.json", output / "b/confidence_tiny_seed_1.json"]
    expected = [json.loads(path.read_text())["plddt"] for path in files]
    other = json.loads((output / "b/confidence_tiny_seed_0.json").read_text())["plddt"]
    assert expected[1] != pytest.approx(other, abs=0.02)
    for path in files:
        path.unlink()
        (path.parent / "ranking_debug.json").unlink()
    assert main(command) == 0
    for path, before in zip(files, expected, strict=True):
        assert json.loads(path.read_text())["plddt"] == pytest.approx(before, abs=0.02)
