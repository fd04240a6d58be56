"""Fine-tunings begin with usual settings, which options, files of jobs and `--set` change; their memory is counted."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from data_pipeline.io.config import ConfigError
from data_pipeline.io.errors import InputError
from helixfold.model.presets import preset, tiny, tiny_multimer
from helixfold.ops.constants import LINE
from helixfold.training.finetune.jobs import config_of, read_tasks
from helixfold.training.finetune.memory import parameter_bytes, state_bytes
from helixfold.training.finetune.options import FinetuneOptions
from helixfold.training.finetune.settings import FinetuneConfig, finetuning
from helixfold.training.finetune.task_table import TaskRow, read_table
from helixfold.weights.load import model_shapes
from helixfold.weights.low_rank import LowRankConfig


@pytest.mark.parametrize(
    ("adapter", "rate", "patience"), [("lora", 2.5e-4, 5), ("full", 2.5e-5, 5), ("heads", 1e-3, None)]
)
def test_usual_settings_depend_on_what_is_trained(adapter: Any, rate: float, patience: int | None) -> None:
    run = finetuning(tiny(), adapter).run
    assert (run.optimizer.learning_rate, run.optimizer.warmup_steps, run.optimizer.decay_after) == (rate, 20, None)
    assert (run.evaluation.patience, run.evaluation.every, run.steps, run.batch_size) == (patience, 50, 1000, 4)
    assert (run.example.crop_size, run.example.block_deletion.blocks, run.example.fixed_shapes) == (256, 0, False)
    assert run.example.sampling.target_as_extra
    assert run.loss.violation == pytest.approx(0.1)
    assert run.example.spatial_crop_probability == 0.0
    assert finetuning(tiny_multimer(), adapter).run.example.spatial_crop_probability == 0.5


@pytest.mark.parametrize(("recycles", "passes"), [(0, 1), (3, 4), (20, 4)])
def test_recycling_is_the_models_up_to_four_iterations(recycles: int, passes: int) -> None:
    run = finetuning(replace(tiny(), num_recycles=recycles), "lora").run
    assert (run.example.max_passes, run.evaluation.num_recycles) == (passes, passes - 1)


def test_what_cannot_be_trained_is_refused() -> None:
    config = finetuning(tiny(), "lora")
    with pytest.raises(ConfigError, match="low-rank matrices are trained with Adam"):
        replace(config, run=config.run.with_settings(["optimizer.method=muon"]))
    with pytest.raises(ConfigError, match="fine-tuning does not support several islands"):
        replace(config, run=config.run.with_settings(["outer.islands=2", "outer.every=50"]))


def test_options_change_what_is_usual() -> None:
    options = FinetuneOptions(
        adapter="lora",
        rank=6,
        rank_stabilised=True,
        decomposed=True,
        targets="heads.*",
        steps=7,
        learning_rate=0.5,
        seed=3,
        settings=("batch_size=8", "seed=9"),
    )
    config = config_of(tiny(), vars(options))
    # alpha is twice the rank unless it is named; options come after --set.
    assert config.low_rank == LowRankConfig(rank=6, alpha=12, targets="heads.*", rank_stabilised=True, decomposed=True)
    run = config.run
    assert (run.steps, run.optimizer.learning_rate, run.seed, run.batch_size) == (7, 0.5, 3, 8)
    usual = config_of(tiny(), {})
    assert (usual.adapter, usual.low_rank.rank, usual.low_rank.alpha) == ("lora", 4, 8)
    assert config_of(tiny(), {"rank": 6, "alpha": 1.5}).low_rank.alpha == 1.5
    assert config_of(tiny(), {"adapter": "heads"}).run.optimizer.learning_rate == 1e-3


def test_jobs_have_their_own_values_and_those_of_all(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[defaults]\nsteps = 9\nrank = 2\nheld_out = "list"\n'
        '[[job]]\nname = "a"\ntraining_set = "sets/a"\nrank = 3\ndeadline = 60\n'
        '[[job]]\nname = "b"\ntraining_set = "/b"\nadapter = "heads"\nseed = 4\n'
    )
    first, second = read_tasks(path, tiny(), tmp_path / "out")
    assert (first.name, first.training_set, first.held_out) == ("a", tmp_path / "sets/a", tmp_path / "list")
    assert (first.output, first.deadline) == (tmp_path / "out" / "a", 60)
    assert (first.config.run.steps, first.config.low_rank.rank, first.config.low_rank.alpha) == (9, 3, 6)
    assert (second.training_set, second.deadline) == (Path("/b"), None)
    assert (second.config.adapter, second.config.run.seed, second.config.run.steps) == ("heads", 4, 9)
    job = '[[job]]\nname = "a"\ntraining_set = "b"\n'
    for text, message in (
        ("", "has no fine-tunings"),
        (f"{job}{job}", "two jobs have the name 'a'"),
        (f"{job}steps = true", "job 'a': steps cannot be True"),
        (f"{job}decomposed = 1", "job 'a': decomposed cannot be 1"),
        (f"{job}deadline = 0", "deadline must be a number of seconds greater than 0, got 0"),
        (f"{job}speed = 1", "job 'a': unknown speed; it can hold training_set,"),
        (f'{job}adapter = "x"', "adapter must be one of lora, full, heads"),
        (f"{job}settings = [1]", "settings cannot be"),
        ('[[job]]\nname = "a"', "job 'a' has no training_set"),
        ('[[job]]\ntraining_set = "b"', "job 1: must have a name"),
        (f"more = 1\n{job}", "unknown more; it can hold defaults, job"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_tasks(path, tiny(), tmp_path)


@pytest.mark.parametrize("decomposed", [False, True])
def test_numbers_of_an_adapter_are_counted(decomposed: bool) -> None:
    shapes = model_shapes(tiny().model)
    low_rank = LowRankConfig(rank=3, targets="evoformer.*attention*", decomposed=decomposed)
    config = finetuning(tiny(), "lora", low_rank)
    count = 0
    for name in low_rank.matching_maps(shapes):
        outputs, inputs = shapes[f"{name}.weight"]
        sizes = [3 * inputs, 3 * outputs, *([outputs] if decomposed else [])]
        count += sum(math.ceil(size / LINE) * LINE for size in sizes)
    assert count
    clipped = config.run.optimizer.clipping == "sample"
    for dtype in (torch.float32, torch.bfloat16):
        assert state_bytes(config, dtype) == (4 * count, 4 * count * (5 if clipped else 4))


def test_parameters_have_a_copy_in_the_dtype_of_the_trunk() -> None:
    count = sum(math.prod(shape) for shape in model_shapes(tiny().model).values())
    assert parameter_bytes(tiny().model) == 4 * count
    assert parameter_bytes(tiny().model, torch.bfloat16) == 6 * count


def test_every_fifth_row_of_a_table_is_held_out_without_a_column(tmp_path: Path) -> None:
    path = tmp_path / "values.csv"
    path.write_text("name,sequence,value\n" + "".join(f"r{row},a cd,{row}\n" for row in range(10)))
    rows = read_table(path, "regression")
    assert [row.name for row in rows if row.split == "test"] == ["r4", "r9"]
    assert rows[3] == TaskRow(name="r3", sequence="ACD", value=3.0, split="train")
    path = tmp_path / "values.tsv"
    lines = [
        "name\tsequence\tvalue\tsplit",
        *(
            f"{row}\tA:C\t{value}\t{split}"
            for row, (value, split) in enumerate(
                [("yes", "train"), ("no", ""), ("TRUE", "held_out"), ("0", "Test"), ("", "predict")]
            )
        ),
    ]
    path.write_text("\n".join(lines))
    found = [(row.value, row.split) for row in read_table(path, "binder")]
    assert found == [(1.0, "train"), (0.0, "train"), (1.0, "test"), (0.0, "test"), (None, "predict")]


def test_settings_are_read_as_they_were_written() -> None:
    config = finetuning(preset("model_1_ptm"), "heads")
    assert FinetuneConfig.from_dict(config.to_dict()) == config
