"""Islands that train apart are equal when they have met, whatever ended the run; one island is ordinary training."""

import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from data_pipeline.io.config import ConfigError
from helixfold.optim.config import OuterConfig
from helixfold.optim.flat import StepReport
from helixfold.results.training_log import read_log
from helixfold.training.checkpoint_files import checkpoint_steps, read_manifest
from helixfold.training.outer_sync import CompletedStep, StepStats, merged_stats, merged_steps, summed
from helixfold.training.stopping import StopRequest
from tests.training.island_ranks import stop, train
from tests.training.ranks import Ranks
from tests.training.runs import small_config, small_run

STEPS = 4


def state(directory: Path, steps: int = STEPS) -> dict[str, torch.Tensor]:
    """The last checkpoint's tensors, bit for bit."""
    files = (directory / f"checkpoints/step_{steps:08d}").glob("*.safetensors")
    return {name: tensor.view(torch.uint8) for path in files for name, tensor in load_file(path).items()}


@pytest.mark.integration
def test_one_island_is_training_without_the_option(tmp_path: Path) -> None:
    for name, outer in (("without", OuterConfig()), ("one", OuterConfig(every=4, average="plain", momentum=0.0))):
        assert small_run(tmp_path / name, small_config(outer=outer, steps=3)).run(StopRequest())
    one, without = state(tmp_path / "one", 3), state(tmp_path / "without", 3)
    assert one.keys() == without.keys()
    assert all(torch.equal(one[name], tensor) for name, tensor in without.items())


def test_statistics_of_ranks_are_merged_each_in_its_own_way() -> None:
    """Ranks that share an example count it once; the slowest and the largest rank stand for all."""
    ranks = [
        StepStats(
            losses={"fape": float(rank)},
            names=[f"chain{rank}"],
            refused=[f"bad{rank}"],
            data_seconds=seconds,
            memory=10 * rank,
            stop=rank == 2,
            metrics={"lddt": (0.25 * rank, rank), "contacts": (0.0, 0)},
        )
        for rank, seconds in enumerate((0.5, 2.0, 1.0, 0.25))
    ]
    found = merged_stats(ranks[::2], ranks)
    assert (found.losses, found.names, found.refused) == ({"fape": 2.0}, ["chain0", "chain2"], ["bad0", "bad2"])
    assert (found.data_seconds, found.memory, found.stop) == (2.0, 30, True)
    assert found.metrics == {"lddt": (0.5, 2), "contacts": (0.0, 0)}
    assert found.mean_metrics() == {"lddt": 0.25}
    assert not merged_stats(ranks[:2], ranks[:2]).stop


def test_an_example_that_lacks_a_metric_counts_in_its_losses_only() -> None:
    nan = float("nan")
    losses, metrics = summed(
        {"fape": [torch.tensor([1.0]), torch.tensor([nan])], "native_contacts": [torch.tensor([nan]), torch.ones(1)]}
    )
    assert str(losses) == "{'fape': nan}"
    assert metrics == {"native_contacts": (1.0, 1)}


def test_steps_of_islands_have_mean_norms_and_the_longest_time() -> None:
    stats = StepStats(losses={"fape": 1.5}, names=["a"], refused=[], data_seconds=0.0, memory=0, stop=False)
    steps = [
        CompletedStep(
            step=3,
            stats=stats,
            report=StepReport(gradient_norm=norm, clipped=clipped, skipped=skipped),
            seconds=norm,
        )
        for norm, clipped, skipped in ((1.0, 0.5, False), (3.0, 0.0, True))
    ]
    merged = merged_steps(steps)
    assert merged.report == StepReport(gradient_norm=2.0, clipped=0.25, skipped=True)
    assert (merged.step, merged.seconds, merged.stats.losses) == (3, 3.0, {"fape": 3.0})


@pytest.mark.integration
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_islands_meet_and_a_killed_run_ends_as_the_unbroken_one(ranks: int, tmp_path: Path) -> None:
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    with Ranks(ranks, tmp_path / "out.txt", train, unbroken, STEPS) as processes:
        assert processes.finish() == [0] * ranks, processes.printed()
    with Ranks(ranks, tmp_path / "killed.txt", train, killed, STEPS) as processes:
        while not (killed / "checkpoints").is_dir() or not checkpoint_steps(killed / "checkpoints"):
            assert not processes.wait(0.001), processes.printed()
        time.sleep(0.02)
        processes.kill(processes.processes)
    with Ranks(ranks, tmp_path / "again.txt", train, killed, STEPS) as processes:
        assert processes.finish() == [0] * ranks, processes.printed()
    assert "resuming after" in (killed / "log.jsonl").read_text()
    one, other = state(unbroken), state(killed)
    kept = {"outer_momentum", "outer_mean", "outer_variance", "outer_seen", "first_moment", "second_moment"}
    assert one.keys() == other.keys()
    assert {name.partition("[")[0] for name in one} >= kept
    assert [name for name, tensor in one.items() if not torch.equal(tensor, other[name])] == []
    assert read_manifest(unbroken / "checkpoints", STEPS).record == read_manifest(killed / "checkpoints", STEPS).record
    logs = [read_log(directory / "log.jsonl").steps for directory in (unbroken, killed)]
    assert [step.step for step in logs[0]] == list(range(STEPS))
    assert [(step.losses, step.names) for step in logs[0]] == [(step.losses, step.names) for step in logs[1]]
    assert all(len(step.names) == 4 for step in logs[0])


@pytest.mark.integration
def test_a_request_to_end_waits_until_islands_meet(tmp_path: Path) -> None:
    with Ranks(2, tmp_path / "out.txt", stop, tmp_path / "run") as processes:
        assert processes.finish() == [0, 0], processes.printed()
    assert checkpoint_steps(tmp_path / "run/checkpoints") == [2]


def test_what_needs_all_islands_is_done_when_they_meet() -> None:
    two = OuterConfig(islands=2, every=4)
    for wrong, settings in (("save_every", {"steps": 8}), ("steps", {"save_every": 4}), ("divide", {"batch_size": 3})):
        with pytest.raises(ConfigError, match=wrong):
            small_config(outer=two, **settings)
    small_config(outer=two, steps=8, save_every=4)
