"""A run says what it will take, settles what it recomputes before it begins, and computes the same whatever that is."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helixfold.execution.recompute import RecomputeConfig, Recomputed
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import ConfigError
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties, properties_of
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.mesh import Mesh
from helixfold.planning.estimate import Device, estimate
from helixfold.training import estimate as subject
from helixfold.training import trainer
from helixfold.training.config import TrainingConfig
from helixfold.training.estimate import memory_per_rank, memory_table, with_settled_recompute, workload
from helixfold.training.presets import finetuning, initial_training
from helixfold.training.stopping import StopRequest
from tests.training.runs import small_config, small_run

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")

CPU = DEVICE_MODELS["cpu"]
AUTO, NONE, BLOCK = (RecomputeConfig.everywhere(keep) for keep in ("auto", "none", "block"))


def needed(config: TrainingConfig, keep: RecomputeConfig, properties: DeviceProperties = CPU) -> int:
    return estimate(
        workload(replace(config, recompute=keep), properties), Device(properties=properties, memory=0)
    ).needed


@pytest.mark.long
def test_the_large_presets_leave_the_choice_to_the_memory_there_is() -> None:
    assert initial_training().recompute == finetuning().recompute == AUTO
    config = initial_training().with_settings(["model.structure.layers=1"])
    assert with_settled_recompute(config, 2 * needed(config, NONE), CPU)[0].recompute == NONE
    less, _ = with_settled_recompute(config, needed(config, NONE) - 1, CPU)
    assert less.recompute != NONE
    assert replace(less, recompute=AUTO) == config
    with pytest.raises(ConfigError, match=r"needs .* whatever is recomputed, and there are 1.0 MiB"):
        small = small_config(recompute=AUTO).with_settings(["example.sampling.max_templates=0"])
        with_settled_recompute(small, 2**20, CPU)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("clipping", ["sample", "global"])
def test_the_state_is_what_the_optimizer_holds(dtype: Any, clipping: Any) -> None:
    config = small_config(dtype=dtype, optimizer=OptimizerConfig(clipping=clipping))
    model = AlphaFold(config.model)
    optimizer = FlatOptimizer(model, config.optimizer, working_dtype=getattr(torch, dtype))
    held = [*optimizer.tensors().values(), optimizer.gradient_sum]
    held += [each for parameter in model.parameters() for each in (parameter.data, parameter.grad)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in held if each is not None}
    # Parameters begin at the start of a line, and small ones are mostly padding: it is bytes for each that count.
    count = sum(parameter.numel() for parameter in model.parameters())
    padded = optimizer.gradient_sum.numel()
    assert workload(config).state / count == pytest.approx(sum(storages.values()) / padded, rel=0.2)


def test_ranks_of_one_host_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "available_memory", lambda device: 1200)
    assert memory_per_rank(Mesh.alone()) == 1200

    class Several(Mesh):
        def all_gather(self, value: Any) -> list[Any]:
            return [value, {**value, "free": 900}, {"host": "another", "free": 5000}]

    def several(device: str) -> Mesh:
        return Several(rank=0, size=3, device=torch.device(device))

    assert memory_per_rank(several("cpu")) == 450
    assert memory_per_rank(several("cuda")) == 900


def run_with(directory: Path, recompute: RecomputeConfig, steps: int = 2, config: TrainingConfig | None = None) -> Any:
    run = small_run(directory, replace(config or small_config(), recompute=recompute, steps=steps, save_every=1))
    assert run.run(StopRequest())
    return run


def test_a_run_settles_its_recompute_tells_it_and_goes_on_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run_with(tmp_path / "plain", NONE)
    wanted = needed(replace(small_config(), steps=1), NONE, properties_of(torch.device("cpu")))
    monkeypatch.setattr(trainer, "memory_per_rank", lambda mesh: wanted)
    first = run_with(tmp_path / "run", AUTO, steps=1)
    assert first.config.recompute == NONE
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    (told,) = [line["text"] for line in lines if line.get("kind") == "recompute"]
    assert told.startswith(
        "recomputes evoformer none, extra_msa none, template none, structure none: estimated to take"
    )
    # On a smaller machine.
    monkeypatch.setattr(trainer, "memory_per_rank", lambda mesh: wanted - 1)
    second = run_with(tmp_path / "run", AUTO)
    assert second.config.recompute != NONE
    assert second.progress.step == 2
    third = run_with(tmp_path / "run", BLOCK)
    assert isinstance(vars(third.model.evoformer.blocks[0])["forward"], Recomputed)
    for name, tensor in expected.optimizer.tensors().items():
        assert torch.equal(second.optimizer.tensors()[name], tensor), name


@pytest.mark.long
def test_a_dry_run_says_what_each_policy_takes_and_which_is_chosen() -> None:
    config = initial_training().with_settings(["model.structure.layers=1", "example.sampling.max_templates=0"])
    memory = (needed(config, NONE) + needed(config, BLOCK)) // 2
    lines = list(memory_table(config, memory, CPU))
    assert lines[0].startswith("one micro-batch, 1 x 256 residues, 124 + 0 + 1,024 rows, float32")
    rows = {line.split()[0]: line.split() for line in lines[2:]}
    assert list(rows) == ["none", "operators", "inputs", "block", "chosen"]
    assert rows["none"][-1] == "no"
    assert rows["block"][-1] == "yes"
    assert float(rows["none"][-2]) > float(rows["operators"][-2]) > float(rows["inputs"][-2])
    assert float(rows["none"][-2]) > 2 * float(rows["block"][-2])
    assert "evoformer operators" in lines[-1]
    (as_set,) = [
        line for line in memory_table(replace(config, recompute=BLOCK), memory, CPU) if line.startswith("as set")
    ]
    assert as_set.split()[2:] == rows["block"][1:]
