"""`helixfold benchmark kernels` compiles a block's kernels without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helixfold.cli.main import main

ROOT = Path(__file__).parents[2]


# Runs commands one after the other, and prints exit code and output of each.
_COMMANDS = """
import contextlib, io, json, sys
from helixfold.cli.main import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["benchmark", "kernels", *words])
    print(json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()}))
"""


def run(*commands: list[str]) -> list[dict[str, Any]]:
    """Run these commands in a process that compiles kernels; in this one they are interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", _COMMANDS, json.dumps(commands)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_kernels_of_an_update_are_compiled_and_counted(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="kernels are compiled where triton is installed")
    path = tmp_path / "kernels.json"
    size = ["--preset", "tiny", "--residues", "16", "--rows", "4", "--only", "pair transition"]
    done, unknown = run(
        ["--static", "--arch", "sm_80", "sm_75", *size, "--json", str(path)],
        ["--static", "--only", "column transition"],
    )
    assert done["code"] == 0, done["err"]
    ampere, turing = json.loads(path.read_text())
    forward, backward = ampere["passes"]
    (kernel,) = forward["kernels"]
    assert kernel["kernel"] == "transition.forward"
    assert kernel["launches"] == 1
    assert kernel["code"]["spilled"] == kernel["code"]["spills"] == 0
    assert set(kernel["code"]["matrix"]) == {"HMMA"}
    assert 16 <= kernel["code"]["registers"] <= 255
    # The pair is read and written. Nothing else is launched, and of the update's inputs the mask alone is not read.
    pair = 16 * 16 * 32 * 2
    assert forward["moved"] == kernel["moved"] == forward["floor"] - 16 * 16 * 4
    assert 2 * pair < kernel["moved"] < 4 * pair
    # A transition keeps its input and no more.
    assert forward["kept"] == backward["kept"] == pair
    assert "transition.hidden_gradients" in [each["kernel"] for each in backward["kernels"]]
    assert sum(backward["operators"].values()) > 0
    assert backward["moved"] == backward["operators_moved"] + sum(each["moved"] for each in backward["kernels"])
    reason = "its kernels and bfloat16 need compute capability 8.0, the GPU has 7.5"
    assert turing["refusals"]["transition"] == reason
    assert not turing["passes"][0]["kernels"]
    assert "transition.forward " in done["out"]
    assert f"helixfold has no kernel for transition: {reason}" in done["out"]
    assert unknown["code"] == 2
    assert "no part's name contains 'column transition'; they are row attention, column attention" in unknown["err"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "kernels are compiled and counted, not timed: pass --static, or measure on a GPU"),
        (["--static"], "kernels are interpreted, not compiled, because TRITON_INTERPRET is set: unset it"),
    ],
)
def test_what_is_not_possible_is_said_in_a_sentence(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton", reason="without triton another sentence comes first")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert main(["benchmark", "kernels", *words]) == 2
    assert sentence in capsys.readouterr().err
