"""The command itself: help, version, and words instead of tracebacks."""

import subprocess
import sys

import pytest

import helixfold
from helixfold.cli.main import INTERRUPTED, main


def test_version_and_help_name_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("predict", "weights", "benchmark"))
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"helixfold {helixfold.__version__}\n"


def test_an_unknown_option_exits_with_2() -> None:
    with pytest.raises(SystemExit) as done:
        main(["predict", "--no-such-option"])
    assert done.value.code == 2


def test_an_interrupted_run_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("helixfold.cli.predict.predict", interrupted)
    assert main(["predict", "x.fasta"]) == INTERRUPTED
    assert "run the same command again" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["predict", "benchmark", "convert_weights"])
def test_scripts_are_the_same_commands(script: str) -> None:
    done = subprocess.run(
        [sys.executable, f"scripts/{script}.py", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("usage: helixfold ")
