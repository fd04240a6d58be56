"""Models that nobody names are those of the targets' kind, as far as there are parameters of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from helixfold.config import Method
from helixfold.presets import Preset
from helixfold.weights import demonstration, find
from helixfold.weights.find import find_models

BOTH = ("model_1_ptm", "model_2_ptm", "model_1_multimer_v3", "model_2_multimer_v3")


@pytest.mark.parametrize(
    ("there", "method", "found"),
    [
        (BOTH, "monomer", ["model_1_ptm"]),
        (BOTH, "multimer", ["model_1_multimer_v3"]),
        (BOTH[:2], "multimer", ["model_1_ptm"]),
        (BOTH[2:], "monomer", ["model_1_multimer_v3"]),
        ((), "multimer", [demonstration.NAME]),
    ],
)
def test_downloaded_parameters_of_the_targets_kind_come_first(
    there: Sequence[str], method: Method, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "parameters_directory", lambda: tmp_path)
    monkeypatch.setattr(find, "_load", named)
    for name in there:
        (tmp_path / f"params_{name}.npz").touch()
    assert find_models([], None, seed=0, method=method) == found
    assert find_models(["model_2_ptm"], None, seed=0, method=method) == ["model_2_ptm"] if there == BOTH else True


@pytest.mark.parametrize(("method", "found"), [("monomer", list(BOTH[:2])), ("multimer", list(BOTH[2:]))])
def test_a_directory_gives_all_models_of_the_targets_kind(
    method: Method, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "_load", named)
    for name in BOTH:
        (tmp_path / f"{name}.npz").touch()
    assert find_models([], tmp_path, seed=0, method=method) == found
    for name in found:
        (tmp_path / f"{name}.npz").unlink()
    assert find_models([], tmp_path, seed=0, method=method) == [name for name in BOTH if name not in found]


def named(chosen: Preset, *_: object) -> str:
    """In place of a loaded model, its name."""
    return chosen.name
