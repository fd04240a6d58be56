"""Commands let threads sleep while they wait, unless the user's environment says otherwise or it is too late."""

import os
import subprocess
import sys

import pytest

from helixfold.runtime.openmp import _USER_SETTINGS, sleep_while_waiting

# Prints whether PyTorch is loaded when the command begins, and what its OpenMP library would find.
_COMMAND = """
import os, sys
from helixfold.cli import app, main
def run(words):
    print("torch" in sys.modules, os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))
app.run = run
sys.exit(main.main(["doctor"]))
"""


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _USER_SETTINGS} | more


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["passive", "1000"]),
        ({"OMP_WAIT_POLICY": "active"}, ["active", "None"]),
        ({"KMP_BLOCKTIME": "200"}, ["None", "None"]),
    ],
)
def test_a_command_chooses_before_pytorch_is_loaded(given: dict[str, str], expected: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _COMMAND], env=environment(**given), capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["False", *expected]


def test_it_is_too_late_once_pytorch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _USER_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", sys)
    sleep_while_waiting()
    assert not set(_USER_SETTINGS) & set(os.environ)


_LIBRARY = """
import os, sys, warnings
{first}
{second}
import torch
torch.set_num_threads(2)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    helixfold.FoldingOptions, helixfold.FoldingOptions, helixfold.Prediction
print(os.environ.get("OMP_WAIT_POLICY"), torch.get_num_threads(), [str(each.message)[:39] for each in caught])
"""


@pytest.mark.parametrize(
    ("order", "given", "expected"),
    [
        (("import helixfold", "import torch"), {}, "passive 2 []"),
        (
            ("import torch", "import helixfold"),
            {},
            "None 2 ['torch was imported before helixfold, so']",
        ),
        (("import torch", "import helixfold"), {"OMP_WAIT_POLICY": "active"}, "active 2 []"),
    ],
)
def test_the_library_chooses_too_or_warns_once_and_leaves_the_number_of_threads(
    order: tuple[str, str], given: dict[str, str], expected: str
) -> None:
    program = _LIBRARY.format(first=order[0], second=order[1])
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment(**given), capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == expected
