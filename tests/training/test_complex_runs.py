"""Runs on complexes: ranks that share them train what one trains, and runs that are killed end as if they were not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.training_sets import clustering
from data_pipeline.training_sets.build import BuildOptions, build_store
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.record_builder import RecordBuilder
from helixfold.cli.main import main
from tests.data_pipeline.training_sets.assembly_files import write_mmcif
from tests.training.command_runs import Run, check_kills, run_unbroken

OPTIONS = ("--preset=tiny_multimer",)


@pytest.fixture(scope="module")
def complexes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training set of two homodimers and a heterodimer."""
    directory = tmp_path_factory.mktemp("complexes")
    for name, sequences in (
        ("1abc", ("MKTAYIAKQRW", "MKTAYIAKQRW")),
        ("2abc", ("GSHMAEQLDV", "WWYFADLKHG")),
        ("3abc", ("DKLMNPQRST", "DKLMNPQRST")),
    ):
        chains = [(letter, letter, sequence) for letter, sequence in zip("AB", sequences, strict=True)]
        write_mmcif(directory / f"structures/{name}.cif", chains, [("1", "A,B")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "find_mmseqs", lambda: None)
        builder = RecordBuilder(filter=ChainFilter(), assemblies=True)
        build_store(BuildOptions(structures=directory / "structures", output=directory / "store"), builder)
    return directory / "store"


def test_ranks_train_on_complexes_what_one_trains(complexes: Path, tmp_path: Path) -> None:
    alone = Run(store=complexes, directory=tmp_path / "alone", options=OPTIONS)
    alone.finish(1, steps=2)
    for layout in ("dp=2", "dap=2"):
        shared = replace(alone, directory=tmp_path / layout, options=(*OPTIONS, f"--layout={layout}"))
        shared.finish(2, steps=2)
        np.testing.assert_allclose(shared.losses(), alone.losses(), rtol=1e-5, atol=1e-6, err_msg=layout)
        for ours, theirs in zip(shared.log(), alone.log(), strict=True):
            assert ours.names == theirs.names
            assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_twenty_kills_change_no_bit_of_a_run_on_complexes(ranks: int, complexes: Path, tmp_path: Path) -> None:
    unbroken = run_unbroken(complexes, tmp_path, OPTIONS)
    assert {name for step in unbroken.runs[ranks].log() for name in step.names} == {"1abc", "2abc", "3abc"}
    during_saves = check_kills(20, ranks, unbroken, tmp_path)
    print(f"on {ranks} ranks 20 kills, {during_saves} of them during a save")


def test_what_a_run_on_complexes_takes_is_said_beforehand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dry-run", "--device", "h200", *OPTIONS]) == 0
    assert "1 x 64 residues, 8 + 4 + 16 rows" in capsys.readouterr().out
    assert main(["plan", "--hardware", "h100x2", "--layouts", *OPTIONS]) == 0
    planned = capsys.readouterr().out
    assert all(layout in planned for layout in ("dp=2,bp=1,dap=1", "dp=1,bp=1,dap=2"))
