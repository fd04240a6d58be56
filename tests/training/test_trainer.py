"""A run is a function of its settings and its training set, whatever interrupts it; what goes wrong is said."""

import errno
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from data_pipeline.io.config import ConfigError
from data_pipeline.io.errors import InputError
from helixfold.execution.whole import Whole
from helixfold.losses.config import LossConfig
from helixfold.losses.total import Losses
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer, StepReport
from helixfold.parallel.mesh import Group, Layout, Mesh
from helixfold.report.training_curves import plot_curves
from helixfold.results.training_log import LOG_FILE, read_log
from helixfold.training import evaluate as evaluation
from helixfold.training import run_files
from helixfold.training import step as training_step
from helixfold.training import trainer as training
from helixfold.training.evaluate import HeldOutScores
from helixfold.training.step import forward_losses
from helixfold.training.stopping import StopRequest
from helixfold.training.trainer import DivergedError, Trainer
from helixfold.weights.checkpoint import read_header
from helixfold.weights.find import find_models
from tests.data_pipeline.training_sets.memory_store import small_store
from tests.training.runs import small_config, small_run


class StopAfter(StopRequest):
    """Asked to end once it was looked at so many times."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def is_requested(self) -> bool:
        self.left -= 1
        return self.left <= 0


def state(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.optimizer.tensors().items()}


def assert_same(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name


def events(directory: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["type"] == "event"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dtype": "bfloat16", "optimizer": OptimizerConfig(warmup_steps=3, clipping="adagc")},
        pytest.param({"micro_batch": 2, "optimizer": OptimizerConfig(clipping="global")}, marks=pytest.mark.long),
    ],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_weights(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = small_config(steps=4, save_every=2, **settings)
    unbroken = small_run(tmp_path / "unbroken", config)
    start = state(unbroken)
    assert unbroken.run(StopRequest())
    final = state(unbroken)
    assert not torch.equal(start["master"], final["master"])

    stop_after = 1 if settings else 2  # which of these is the step of an ordinary checkpoint
    broken = small_run(tmp_path / "broken", config)
    assert not broken.run(StopAfter(stop_after))
    assert broken.progress.step == stop_after
    resumed = small_run(tmp_path / "broken", config)
    assert resumed.progress.step == stop_after
    assert resumed.run(StopRequest())
    assert_same(state(resumed), final)
    steps = [read_log(tmp_path / name / "log.jsonl").steps for name in ("unbroken", "broken")]
    for one, two in zip(*steps, strict=True):
        assert (one.losses, one.names, one.learning_rate) == (two.losses, two.names, two.learning_rate)


def test_a_batch_may_be_cut_into_other_parts(tmp_path: Path) -> None:
    one, two = (
        small_run(
            tmp_path / str(size),
            small_config(batch_size=4, micro_batch=size, optimizer=OptimizerConfig(clipping="none")),
        )
        for size in (1, 2)
    )
    for trainer in (one, two):
        trainer.model.eval()  # dropout is drawn for each part
        for part in range(trainer.config.micro_batches):
            (batch,) = training.TrainingLoader(trainer.dataset, first_step=0, last_step=1, micro_batches=[part])
            forward_losses(trainer.model, batch, trainer.config, Whole()).total.sum().backward()
            trainer.optimizer.collect()
    # The start is a heap of atoms in one place, whose violations have gradients of a million.
    largest = one.optimizer.gradient_sum.abs().max()
    assert (one.optimizer.gradient_sum - two.optimizer.gradient_sum).abs().max() < 1e-3 * largest


def test_a_finished_run_that_is_started_again_changes_nothing(tmp_path: Path) -> None:
    first = small_run(tmp_path)
    assert first.run(StopRequest())
    again = small_run(tmp_path)
    assert_same(state(again), state(first))
    assert again.run(StopRequest())
    assert_same(state(again), state(first))
    assert "completed after 6 steps" in events(tmp_path)[-1]["text"]
    longer = small_run(tmp_path, small_config(steps=7))
    assert longer.run(StopRequest())
    assert longer.progress.step == 7


def test_what_is_not_finite_is_skipped_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(model: Any, batch: Any, config: Any, run: Any) -> Losses:
        losses = forward_losses(model, batch, config, run)
        losses = replace(losses, unweighted={**losses.unweighted, "torsion": torch.full_like(losses.weighted, 3.0)})
        if batch.step == 1 and batch.micro_batch == 1:
            return replace(losses, total=losses.total + math.inf)  # its gradient is finite
        return replace(losses, total=losses.total * math.nan) if batch.step == 3 else losses

    monkeypatch.setattr(training_step, "forward_losses", faulty)
    trainer = small_run(tmp_path)
    assert trainer.run(StopRequest())
    assert (trainer.progress.skipped, trainer.progress.skipped_in_a_row) == (2, 0)
    assert int(trainer.optimizer.tensors()["updates"]) == 4
    assert all(bool(tensor.isfinite().all()) for tensor in state(trainer).values())
    history = read_log(tmp_path / "log.jsonl")
    assert [record.step for record in history.steps if record.skipped] == [1, 3]
    assert {record.losses["torsion"] for record in history.steps} == {3.0}  # means over the samples of a batch
    told = [event for event in events(tmp_path) if event["kind"] == "skipped"]
    assert [event["step"] for event in told] == [1, 3]
    assert all(set(event["details"]["chains"]) == set(history.steps[event["step"]].names) for event in told)
    assert all(name in told[0]["text"] for name in history.steps[1].names)


def test_a_run_that_diverges_ends_with_the_batch_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(model: Any, batch: Any, config: Any, run: Any) -> Losses:
        losses = forward_losses(model, batch, config, run)
        return replace(losses, total=losses.total * math.nan) if batch.step >= 2 else losses

    monkeypatch.setattr(training_step, "forward_losses", faulty)
    trainer = small_run(tmp_path, small_config(steps=30, max_skipped=3))
    with pytest.raises(DivergedError, match=r"3 steps in a row, up to step 4 \(seed 0, chains chain\d, chain\d\)"):
        trainer.run(StopRequest())
    assert len(read_log(tmp_path / "log.jsonl").steps) == 5


def test_other_settings_than_the_run_began_with_are_refused(tmp_path: Path) -> None:
    small_run(tmp_path).run(StopAfter(2))
    with pytest.raises(ConfigError, match=r"optimizer.learning_rate 0.001, now 0.5"):
        small_run(tmp_path, small_config().with_settings(["optimizer.learning_rate=0.5"]))
    assert small_run(tmp_path, small_config(steps=4, save_every=1, keep=1)).run(StopRequest())


def test_another_training_set_is_told(tmp_path: Path) -> None:
    small_run(tmp_path).run(StopAfter(2))
    small_run(tmp_path, store=small_store(7)).run(StopAfter(1))
    assert any("training set has changed" in event["text"] for event in events(tmp_path))


def test_a_damaged_checkpoint_is_passed_over_and_told(tmp_path: Path) -> None:
    config = small_config(save_every=2)
    unbroken = small_run(tmp_path / "unbroken", config)
    unbroken.run(StopRequest())
    small_run(tmp_path / "broken", config).run(StopAfter(5))
    newest = max((tmp_path / "broken/checkpoints").glob("step_*"))
    assert newest.name == "step_00000005"
    (shard,) = newest.glob("model-*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-20] ^= 1
    shard.write_bytes(content)
    resumed = small_run(tmp_path / "broken", config)
    assert resumed.progress.step == 4
    resumed.run(StopRequest())
    assert_same(state(resumed), state(unbroken))
    assert any("step_00000005" in event["text"] for event in events(tmp_path / "broken"))


def test_a_loss_whose_head_is_off_is_noted_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = small_config().model
    without = replace(model, heads=replace(model.heads, aligned_error=False))
    for number, (network, weight) in enumerate(((without, 0.1), (without, 0.0), (model, 0.1))):
        config = small_config(model=network, loss=LossConfig(aligned_error=weight), steps=1)
        assert small_run(tmp_path / str(number), config).run(StopRequest())
        notes = [event["text"] for event in events(tmp_path / str(number)) if event["kind"] == "loss"]
        assert len(notes) == (number == 0)
        assert ("loss.aligned_error has no effect" in capsys.readouterr().err) == (number == 0)


def test_held_out_chains_are_judged_and_the_best_weights_predict(tmp_path: Path) -> None:
    trainer = small_run(tmp_path, held_out=("chain1", "chain4"), draw=plot_curves)
    trainer.run(StopRequest())
    history = read_log(tmp_path / "log.jsonl")
    assert [record.step for record in history.evaluations] == [3, 5]
    assert [chain["name"] for chain in history.evaluations[0].chains] == ["chain1", "chain4"]
    assert not {"chain1", "chain4"} & {name for record in history.steps for name in record.names}
    assert [path.name for path in (tmp_path / "structures/step_00000006").iterdir()] == ["chain1.pdb"]
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert trainer.checkpoints.best() == trainer.progress.best_step

    for name in ("last", "best"):
        (model,) = find_models([], tmp_path / "weights" / f"{name}.safetensors", seed=0)
        assert model.preset == trainer.config.prediction_preset("small")
    (last,) = find_models([], tmp_path / "weights/last.safetensors", seed=0)
    averaged = trainer.optimizer.averaged()
    assert all(torch.equal(parameter, averaged[name]) for name, parameter in last.network.named_parameters())


def test_the_best_weights_are_those_of_the_best_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three evaluations is the best, also when the run is resumed after it."""
    scores, judged = iter((0.3, 0.5, 0.4)), []
    others = ("lddt", "tm_score", "gdt_ts", "gdt_ha", "rmsd", "plddt", "violations")

    def scripted(model: Any, *_: Any, **__: Any) -> list[HeldOutScores]:
        judged.append({name: parameter.clone() for name, parameter in model.named_parameters()})
        return [HeldOutScores(name="chain1", residues=9, lddt_ca=next(scores), losses={}, **dict.fromkeys(others, 0.7))]

    monkeypatch.setattr(evaluation, "evaluate", scripted)
    config = small_config(evaluation=replace(small_config().evaluation, every=1), steps=3, save_every=10)
    for stop in (StopAfter(2), StopRequest()):
        trainer = small_run(tmp_path, config, held_out=("chain1",))
        trainer.files = replace(trainer.files, draw=lambda *_, **__: None)
        trainer.run(stop)
        assert (trainer.progress.best_score, trainer.progress.best_step) == (0.5, 2)
    assert (len(judged), trainer.progress.step, trainer.checkpoints.best()) == (3, 3, 2)
    (best,) = find_models([], tmp_path / "weights/best.safetensors", seed=0)
    assert_same(dict(best.network.named_parameters()), judged[1])
    assert not torch.equal(judged[0]["single.weight"], judged[1]["single.weight"])
    assert not torch.equal(judged[1]["single.weight"], judged[2]["single.weight"])


def test_training_starts_from_given_weights(tmp_path: Path) -> None:
    given = {name: torch.full_like(value, 0.25) for name, value in small_run(tmp_path / "a").model.state_dict().items()}
    trainer = small_run(tmp_path / "b", initial=given)
    assert all(torch.equal(parameter, given[name]) for name, parameter in trainer.model.named_parameters())


def test_weights_say_from_which_packaged_model_they_descend(tmp_path: Path) -> None:
    config = small_config(steps=4, save_every=2, evaluation=replace(small_config().evaluation, every=2))
    began = "starts from 3 parameters of a file"
    first = small_run(tmp_path, config, descends_from="small", began_with=began, held_out=("chain1",))
    assert not first.run(StopAfter(3))
    again = small_run(tmp_path, config, held_out=("chain1",))
    assert again.run(StopRequest())
    for name in ("best", "last"):
        header = read_header(tmp_path / f"weights/{name}.safetensors")
        assert (header.descends_from, header.began_with) == ("small", began)
    assert (tmp_path / LOG_FILE).read_text().count(began) == 1


def test_equal_runs_leave_equal_bytes(tmp_path: Path) -> None:
    for directory in ("one", "two"):
        small_run(tmp_path / directory).run(StopRequest())
    files = [path.relative_to(tmp_path / "one") for path in sorted((tmp_path / "one").rglob("*.safetensors"))]
    assert len(files) == 3
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_the_seed_decides_how_parameters_begin(tmp_path: Path) -> None:
    one, same, other = (small_run(tmp_path / str(i), small_config(seed=seed)) for i, seed in enumerate((1, 1, 2)))
    assert_same(state(one), state(same))
    assert not torch.equal(one.optimizer.tensors()["master"], other.optimizer.tensors()["master"])


def test_each_step_has_the_rate_of_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[float, int]] = []
    step = FlatOptimizer.step

    def watched(optimizer: FlatOptimizer, rate: float, *, micro_batches: int) -> StepReport:
        made.append((rate, micro_batches))
        return step(optimizer, rate, micro_batches=micro_batches)

    monkeypatch.setattr(FlatOptimizer, "step", watched)
    config = small_config(steps=3, batch_size=2, micro_batch=1)
    for stop in (StopAfter(1), StopRequest()):
        small_run(tmp_path, config).run(stop)
    rates = [config.optimizer.rate(number) for number in range(3)]
    assert made == [(rate, 2) for rate in rates]
    assert len(set(rates)) == 3
    assert [record.learning_rate for record in read_log(tmp_path / "log.jsonl").steps] == rates


def test_more_samples_at_once_than_a_batch_has_are_refused(tmp_path: Path) -> None:
    mesh = Mesh(rank=0, size=3, device=torch.device("cpu"), layout=Layout(dp=3), data=Group(size=3))
    with pytest.raises(ConfigError, match="batch_size 2 has 2; set batch_size to 3, or dp to 2"):
        small_run(tmp_path, mesh=mesh)


def test_refused_chains_are_told(tmp_path: Path) -> None:
    trainer = small_run(tmp_path, store=small_store(6, damaged=frozenset({"chain0", "chain1", "chain2"})))
    trainer.run(StopRequest())
    assert any("is damaged" in event["text"] for event in events(tmp_path) if event["kind"] == "refused")


def test_a_full_disk_at_an_evaluation_is_told_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    trainer = small_run(tmp_path, held_out=("chain1",))
    with monkeypatch.context() as patch:
        trainer.files = replace(trainer.files, draw=full)
        patch.setattr(run_files, "save_checkpoint", full)
        with pytest.raises(InputError, match=r"last.safetensors: cannot be written: .*No space left"):
            trainer.run(StopRequest())
    assert trainer.progress.step == 6
    assert [event["kind"] for event in events(tmp_path)] == ["save", "save"]
    assert small_run(tmp_path, held_out=("chain1",)).run(StopRequest())
    assert (tmp_path / "weights/last.safetensors").exists()
