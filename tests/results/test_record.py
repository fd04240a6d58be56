"""Differences between the records of two runs, and the error for them."""

from pathlib import Path

import pytest

from data_pipeline.io.config import ConfigError
from data_pipeline.io.errors import InputError
from helixfold.results.record import RunRecord, require_same_settings

EARLIER = RunRecord(
    inputs={"sequence": "a", "templates": [{"file": "x.cif", "sha256": "1"}], "initial_guess": {"sha256": "2"}},
    options={"num_recycles": 3, "tolerance": 0.5, "dtype": "float32"},
    weights={"model_1": "w1", "model_2": "w2"},
)


def changed(**parts: dict[str, object]) -> RunRecord:
    """Return the earlier record with some values replaced."""
    values = {name: {**getattr(EARLIER, name), **change} for name, change in parts.items()}
    return RunRecord(**{**vars(EARLIER), **values})


@pytest.mark.parametrize(
    ("parts", "differences"),
    [
        ({}, []),
        ({"inputs": {"sequence": "b"}}, ["another sequence"]),
        ({"inputs": {"templates": [{"file": "moved.cif", "sha256": "1"}]}}, []),
        ({"inputs": {"templates": [{"file": "x.cif", "sha256": "9"}]}}, ["other templates"]),
        ({"inputs": {"templates": []}}, ["other templates"]),
        ({"inputs": {"initial_guess": {"sha256": "2", "file": "y"}}}, []),
        ({"inputs": {"initial_guess": None}}, ["another initial guess"]),
        ({"inputs": {"alignments": []}}, []),  # the same as none
        ({"options": {"num_recycles": 1}}, ["num_recycles 3, now 1"]),
        ({"options": {"tolerance": 2.0}}, ["tolerance 0.5, now 2"]),
        ({"options": {"tolerance": 0.50000001}}, ["tolerance 0.5, now 0.50000001"]),
        ({"options": {"cyclic": [1]}}, ["cyclic not set, now [1]"]),
        ({"weights": {"model_2": "w9", "model_3": "w3"}}, ["other weights of model_2"]),
        (
            {"inputs": {"sequence": "b"}, "options": {"dtype": "bfloat16", "num_recycles": 1}},
            ["another sequence", "dtype float32, now bfloat16", "num_recycles 3, now 1"],
        ),
    ],
)
def test_differences(parts: dict[str, dict[str, object]], differences: list[str]) -> None:
    assert EARLIER.differences(changed(**parts)) == differences


def test_values_of_a_damaged_file_are_printable() -> None:
    damaged = RunRecord(options={"dtype": "\x1b[2J" + "x" * 100})
    assert damaged.differences(RunRecord()) == [rf"dtype \x1b[2J{'x' * 43}..., now not set"]


def test_error_names_what_differs_and_what_to_do() -> None:
    require_same_settings(Path("out"), [])
    with pytest.raises(InputError) as caught:
        require_same_settings(Path("out"), ["another sequence", "seed 0, now 1"])
    sentence = "out: made before with other settings (another sequence; seed 0, now 1); "
    assert str(caught.value) == sentence + "pass --overwrite or another --output"
    with pytest.raises(ConfigError, match=r"^out: begun before with other settings \(seed\); repeat them$"):
        require_same_settings(Path("out"), ["seed"], verb="begun", remedy="repeat them", error=ConfigError)
