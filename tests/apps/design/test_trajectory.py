"""A saved design state is read back as it was written; any other file gives one `InputError`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.design.trajectory import Trajectory

KNOWN = {"step": 1, "losses": [{"loss": 1.5, "con": 2.0}], "best": ["AAA", 1.5]}


def write(path: Path, known: Any, dtype: str = "f8") -> None:
    zeros = np.zeros((3, 20), dtype)
    text = known if isinstance(known, str) else json.dumps(known)
    np.savez(path, numbers=zeros, mean=zeros, square=zeros, known=np.array(text))


def test_a_written_state_is_read(tmp_path: Path) -> None:
    write(tmp_path / "state.npz", KNOWN)
    found = Trajectory.load(tmp_path / "state.npz", 3)
    assert (found.step, found.losses, found.best_sequence, found.best_loss) == (
        1,
        ({"loss": 1.5, "con": 2},),
        "AAA",
        1.5,
    )


@pytest.mark.parametrize(
    ("known", "dtype"),
    [
        (KNOWN | {"best": []}, "f8"),
        (KNOWN | {"best": ["AAA", [1]]}, "f8"),
        (KNOWN | {"best": ["AAA", 10**400]}, "f8"),
        (KNOWN | {"losses": [1.5]}, "f8"),
        (KNOWN | {"losses": [{"loss": "high"}]}, "f8"),
        (KNOWN | {"losses": [{"con": 1.5}]}, "f8"),
        (KNOWN | {"step": "first"}, "f8"),
        ("[" * 100_000, "f8"),
        ("[]", "f8"),
        (KNOWN, "U3"),
    ],
)
def test_anything_else_is_one_sentence(known: Any, dtype: str, tmp_path: Path) -> None:
    write(tmp_path / "state.npz", known, dtype)
    with pytest.raises(InputError, match=r"state\.npz: it is not a state of a design"):
        Trajectory.load(tmp_path / "state.npz", 3)
