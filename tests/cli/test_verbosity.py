"""--quiet prints errors and what was asked for; --verbose prints where things come from, and tracebacks."""

import os
from pathlib import Path

import pytest

from data_pipeline.search.process import run_program
from helixfold.cli.main import main
from helixfold.runtime.standard_streams import restored_verbosity, set_verbosity

PREDICT = ["predict", "MKTAYIAKQR", "--models", "tiny", "--num-recycles", "0", "--device", "cpu", "--output", "out"]


@pytest.fixture(autouse=True)
def _in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.integration
def test_a_quiet_prediction_prints_nothing_and_writes_the_same_files(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*PREDICT, "--quiet"]) == 0
    assert tuple(capfd.readouterr()) == ("", "")
    assert "UNTRAINED" in next(Path("out").glob("*/*.pdb")).read_text()
    assert main([*PREDICT, "--overwrite"]) == 0
    usual = capfd.readouterr()
    assert "mean pLDDT" in usual.out
    assert "UNTRAINED" in usual.err


def test_a_quiet_command_prints_errors_and_what_it_is_asked_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "none.fasta", "-q"]) == 2
    assert "helixfold: error: none.fasta" in capsys.readouterr().err
    assert main(["train", "--show-settings", "-q"]) == 0
    assert "steps=" in capsys.readouterr().out
    assert main([*PREDICT, "--dry-run", "-q"]) == 0
    assert "executor" in capsys.readouterr().out


@pytest.mark.integration
def test_a_verbose_prediction_prints_executor_and_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PREDICT, "-v"]) == 0
    assert "helixfold: tiny, 10 residues: executor whole, estimated at " in capsys.readouterr().err
    assert main([*PREDICT, "--overwrite"]) == 0
    assert "estimated at" not in capsys.readouterr().err
    assert "HELIXFOLD_VERBOSITY" not in os.environ


def test_a_verbose_error_has_a_traceback_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "none.fasta", "-v"]) == 2
    first, _, traceback = capsys.readouterr().err.partition("\n")
    assert first.startswith("helixfold: error: none.fasta")
    assert "Traceback" in traceback
    assert "InputError" in traceback


def test_search_commands_are_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:

    for verbosity in ("normal", "verbose"):
        with restored_verbosity():
            set_verbosity(verbosity)  # type: ignore[arg-type]
            run_program(["true", "a b"], timeout=None, directory=tmp_path)
        printed = capsys.readouterr().err
        assert printed == ("helixfold: search command: true 'a b'\n" if verbosity == "verbose" else "")
