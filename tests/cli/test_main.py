"""The command itself: help, version, and words instead of tracebacks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import helixfold
from helixfold.cli.main import INTERRUPTED, TERMINATED, main

EXAMPLE = Path(__file__).parents[2] / "examples" / "ubiquitin.fasta"


def test_version_and_help_name_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("predict", "features", "doctor", "weights", "benchmark"))
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
    assert main(["predict", str(EXAMPLE)]) == INTERRUPTED
    assert "run the same command again" in capsys.readouterr().err


def test_a_terminated_run_leaves_as_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []

    def terminated(*_: object, **__: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            left.append("cleaned up")
        return 0

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("helixfold.cli.predict.predict", terminated)
    with pytest.raises(SystemExit) as done:
        main(["predict", str(EXAMPLE)])
    assert (done.value.code, left) == (TERMINATED, ["cleaned up"])
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("script", ["predict", "make_features", "benchmark", "convert_weights"])
def test_scripts_are_the_same_commands(script: str) -> None:
    done = subprocess.run(
        [sys.executable, f"scripts/{script}.py", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("usage: helixfold ")
