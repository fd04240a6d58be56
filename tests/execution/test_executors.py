"""Every executor computes what `Whole` computes, whatever the network reads, and twice the same."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.execution import spilled
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.update import Executor, Stream
from tests.support.networks import random_batch, relative_error, tiny_config, with_every_parameter_random

EXECUTORS: dict[str, Callable[[Path], Executor]] = {
    "whole": lambda _: Whole(),
    "slabs": lambda _: Slabs(),
    "slabs of 64 KiB": lambda _: Slabs(budget=2**16),
    "slabs of 3 rows": lambda _: Slabs(rows=3),
    "slabs of a row": lambda _: Slabs(rows=1),
    "spilled": Spilled,
    "spilled, 3 rows": lambda directory: Spilled(directory, rows=3),
}
# Which of a batch's templates are real.
TEMPLATES = {
    "no template": (),
    "one template": (1,),
    "two templates": (1, 1),
    "four, two masked out": (0, 1, 0, 1),
    "two, none real": (0, 0),
}


@pytest.fixture(autouse=True)
def everything_is_large_enough_to_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled, "MIN_BYTES", 1)


@cache
def model() -> AlphaFold:
    """With one block in each stack."""
    config = tiny_config()
    small = replace(config.evoformer, blocks=1), replace(config.structure, layers=2)
    return with_every_parameter_random(replace(config, evoformer=small[0], structure=small[1]))


def draw(templates: str, seed: int, extra: int = 5) -> Batch:
    """One draw of a target that is the same for all seeds."""
    real = TEMPLATES[templates]
    sizes = {"residues": 7, "rows": 3, "extra": extra, "templates": len(real)}
    target, found = (random_batch(**sizes, seed=each) for each in (0, seed))
    mask = torch.tensor([real], dtype=torch.float32)
    return replace(found, aatype=target.aatype, target_feat=target.target_feat, template_mask=mask)


def tensors(run: Executor, part: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(part, Stream):
        # Its memory is given away to the next pass.
        yield name, run.gather(part).clone()
    if is_dataclass(part):
        for field in fields(part):
            yield from tensors(run, getattr(part, field.name), f"{name}.{field.name}")


@torch.no_grad()
def one_pass(run: Executor, templates: str, extra: int = 5) -> dict[str, Tensor]:
    return dict(tensors(run, model()(run, [draw(templates, 1, extra)])))


@torch.no_grad()
def two_passes(run: Executor) -> dict[str, Tensor]:
    """What a pass leaves, and everything that a second one on an ensemble of two computes from that."""
    recycled = model().fold(run, [draw("two templates", 1)]).recycled()
    found = dict(tensors(run, recycled, "recycled"))
    return found | dict(tensors(run, model()(run, [draw("two templates", seed) for seed in (2, 3)], recycled)))


@cache
def found_by(name: str) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as directory:
        return two_passes(EXECUTORS[name](Path(directory)))


def unlike(found: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
    assert len(other) > 15
    assert found.keys() == other.keys()
    # Angles of unit length: where the network's own are short, rounding turns them by any amount.
    compared = [name for name in other if not name.endswith(".torsions")]
    errors = {name: relative_error(found[name], other[name]) for name in compared}
    return {name: error for name, error in errors.items() if not error < 1e-5}


@pytest.mark.parametrize("name", list(EXECUTORS)[1:])
def test_all_outputs_are_those_of_whole(name: str) -> None:
    assert not unlike(found_by(name), found_by("whole"))


@pytest.mark.parametrize("templates", TEMPLATES)
def test_all_outputs_are_those_of_whole_with_any_templates(templates: str, tmp_path: Path) -> None:
    expected = one_pass(Whole(), templates)
    assert not unlike(one_pass(Spilled(tmp_path, rows=3), templates), expected)
    assert not unlike(one_pass(Slabs(rows=3), templates), expected)


@pytest.mark.parametrize("name", list(EXECUTORS)[1:])
def test_an_alignment_without_extra_rows_passes(name: str, tmp_path: Path) -> None:
    expected = one_pass(Whole(), "one template", extra=0)
    assert not unlike(one_pass(EXECUTORS[name](tmp_path), "one template", extra=0), expected)


@pytest.mark.parametrize("name", ["whole", "slabs of 3 rows", "spilled, 3 rows"])
def test_two_runs_are_equal_bit_for_bit(name: str, tmp_path: Path) -> None:
    again = two_passes(EXECUTORS[name](tmp_path))
    assert [key for key, value in found_by(name).items() if not torch.equal(again[key], value)] == []
