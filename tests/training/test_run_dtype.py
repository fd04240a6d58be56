"""A run computes in the dtype that suits its device, and goes on as it began on any other."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helixfold.model.config import ConfigError
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.parallel.mesh import Mesh
from helixfold.training import run_dtype
from helixfold.training.checkpoint_files import MANIFEST, checkpoint_path
from helixfold.training.run_dtype import with_settled_dtype
from helixfold.training.stopping import StopRequest
from tests.training.runs import small_config, small_run


def run_to(directory: Path, steps: int, **settings: Any) -> Any:
    run = small_run(directory, small_config(steps=steps, save_every=1, **settings))
    assert run.run(StopRequest())
    return run


def notes(directory: Path) -> list[str]:
    lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    return [line["text"] for line in lines if line.get("kind") == "dtype"]


def test_a_run_that_began_on_a_gpu_goes_on_elsewhere_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(run_dtype, "properties_of", lambda device: DEVICE_MODELS["h200"])
        begun = run_to(tmp_path, 2)
    assert begun.config.dtype == "bfloat16"
    assert {each.dtype for each in begun.model.evoformer.parameters()} == {torch.bfloat16}
    # The newest record cannot be read, and the one before can.
    (checkpoint_path(tmp_path / "checkpoints", 2) / MANIFEST).write_text("{")
    resumed = run_to(tmp_path, 3)
    assert (resumed.config.dtype, resumed.progress.step) == ("bfloat16", 3)
    assert run_to(tmp_path, 4, dtype="bfloat16").progress.step == 4
    with pytest.raises(ConfigError, match="dtype bfloat16, now float32"):
        run_to(tmp_path, 5, dtype="float32")
    assert notes(tmp_path) == [
        "computes in bfloat16, which suits NVIDIA H200; start with --set dtype=float32 for full precision",
        "computes in bfloat16, in which the run began",
    ]


def test_on_a_cpu_a_run_computes_in_float32_and_says_nothing(tmp_path: Path) -> None:
    assert run_to(tmp_path, 1).config.dtype == "float32"
    assert notes(tmp_path) == []


def test_ranks_on_different_cards_compute_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Several(Mesh):
        others = ("bfloat16",)

        def all_gather(self, value: Any) -> list[Any]:
            return [value, *self.others]

    monkeypatch.setattr(run_dtype, "properties_of", lambda device: DEVICE_MODELS["h200"])
    mesh = Several(rank=0, size=1, device=torch.device("cpu"))
    assert with_settled_dtype(small_config(), mesh, tmp_path).dtype == "bfloat16"
    monkeypatch.setattr(Several, "others", ("bfloat16", "float32"))
    assert with_settled_dtype(small_config(), mesh, tmp_path).dtype == "float32"
