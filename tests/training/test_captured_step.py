"""Training with captured steps equals eager training, bit for bit; what cannot be captured is eager, and noted once."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from helixfold.execution.recompute import RecomputeConfig
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.results.training_log import read_log
from helixfold.training import evaluate as evaluation
from helixfold.training import step
from helixfold.training.config import TrainingConfig
from helixfold.training.step import capture_unsupported_reason
from helixfold.training.stopping import StopRequest
from helixfold.training.trainer import Trainer
from tests.support.networks import tiny_multimer_config
from tests.support.operator_graphs import OperatorCapturer
from tests.training.runs import small_config, small_run
from tests.training.test_trainer import StopAfter, assert_same, events, state

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")

Capture = Callable[[OperatorCapturer], None]


@pytest.fixture(autouse=True, scope="module")
def as_on_a_gpu() -> Iterator[None]:
    """Let the host wait for nothing, and add gradients as on a GPU."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for module in ("ops.mask_bias", "optim.flat", "execution.whole"):
            monkeypatch.setattr(f"helixfold.{module}.properties_of", lambda device: DEVICE_MODELS["h100"])
        yield


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Capture:
    """Have all trainers from now on capture their steps with this capturer."""

    def by(capturer: OperatorCapturer) -> None:
        monkeypatch.setattr(step, "GraphCapturer", lambda device: capturer)
        monkeypatch.setattr(step, "capture_unsupported_reason", lambda *_: None)

    return by


def config(**settings: Any) -> TrainingConfig:
    return small_config(**({"steps": 4, "save_every": 4} | settings))


def finished(directory: Path, settings: TrainingConfig, **options: Any) -> Trainer:
    trainer = small_run(directory, settings, **options)
    with forced("reference"):
        assert trainer.run(StopRequest())
    return trainer


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run with the usual settings whose steps were launched; `finished` loads it."""
    directory = tmp_path_factory.mktemp("launched")
    assert finished(directory, config()).progress.step == config().steps
    return directory


def assert_same_log(one: Path, two: Path) -> None:
    logs = [read_log(directory / "log.jsonl") for directory in (one, two)]
    for ours, theirs in zip(*(log.steps for log in logs), strict=True):
        assert replace(ours, seconds=0, data_seconds=0, examples_per_second=0, memory_gib=0) == replace(
            theirs, seconds=0, data_seconds=0, examples_per_second=0, memory_gib=0
        )


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="by sample", marks=pytest.mark.long),
        pytest.param(
            {
                "dtype": "bfloat16",
                "optimizer": OptimizerConfig(warmup_steps=3, clipping="adagc"),
                "recompute": RecomputeConfig.everywhere("inputs"),
            },
            id="bfloat16",
        ),
        pytest.param(
            {
                "micro_batch": 2,
                "optimizer": OptimizerConfig(clipping="global"),
                "recompute": RecomputeConfig.everywhere("block"),
                "example": replace(small_config().example, max_passes=3),
            },
            id="two at once",
            marks=pytest.mark.long,
        ),
    ],
)
def test_captured_steps_equal_eager_steps(
    tmp_path: Path, launched: Path, capture: Capture, settings: dict[str, Any]
) -> None:
    given, capturer = config(**settings), OperatorCapturer()
    directory = tmp_path / "launched" if settings else launched
    eager = finished(directory, given)
    passes = [eager.dataset.num_passes(step) for step in range(given.steps)]
    capture(capturer)
    replayed = finished(tmp_path / "replayed", given)
    assert_same(state(replayed), state(eager))
    assert_same_log(tmp_path / "replayed", directory)
    assert set(passes) == {1, given.example.max_passes}  # with and without recycling
    count = given.micro_batches
    assert (capturer.launched, capturer.captured) == (2, 2)
    assert capturer.replayed == count * sum(passes) - 2


def test_a_resumed_run_captures_again(tmp_path: Path, launched: Path, capture: Capture) -> None:
    expected = state(finished(launched, config()))
    capture(OperatorCapturer())
    with forced("reference"):
        assert not small_run(tmp_path / "broken", config()).run(StopAfter(2))
        resumed = small_run(tmp_path / "broken", config())
        assert resumed.progress.step == 2
        assert resumed.run(StopRequest())
    assert_same(state(resumed), expected)


def test_evaluations_find_no_graphs_and_change_nothing(
    tmp_path: Path, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = config(evaluation=replace(config().evaluation, every=2))
    held_out = (small_run(tmp_path / "names").store.entries[0].name,)
    expected = state(finished(tmp_path / "launched", given, held_out=held_out))
    capturer, held = OperatorCapturer(), list[int]()
    capture(capturer)
    evaluate = evaluation.evaluate

    def watched(*given: Any, **named: Any) -> Any:
        held.append(capturer.cleared)
        return evaluate(*given, **named)

    monkeypatch.setattr(evaluation, "evaluate", watched)
    assert_same(state(finished(tmp_path / "replayed", given, held_out=held_out)), expected)
    assert held == [1, 2]


@pytest.mark.parametrize("obstacle", ["memory", "wait"])
def test_a_run_continues_where_a_capture_fails(
    tmp_path: Path, launched: Path, capture: Capture, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    expected = state(finished(launched, config()))
    capture(OperatorCapturer(limit=200_000 if obstacle == "memory" else None))
    trainer = small_run(tmp_path / "replayed", config())
    if obstacle == "wait":

        def wait(module: nn.Module, given: Any, found: Tensor) -> None:
            found.sum().item()

        trainer.model.single.register_forward_hook(wait)
    with forced("reference"):
        assert trainer.run(StopRequest())
    assert_same(state(trainer), expected)
    told = [event["text"] for event in events(tmp_path / "replayed") if event["kind"] == "graphs"]
    assert len(told) == 1
    assert ("too little memory" if obstacle == "memory" else "capturing one failed") in told[0]


def test_steps_are_eager_where_graphs_would_not_fit_them() -> None:
    given, properties = config(), DEVICE_MODELS["h100"]
    assert capture_unsupported_reason(given, properties, "auto", ranks=1) is None
    assert "share a sample" in str(capture_unsupported_reason(given, properties, "auto", ranks=2))
    own_shapes = replace(given, example=replace(given.example, fixed_shapes=False))
    assert "fixed_shapes" in str(capture_unsupported_reason(own_shapes, properties, "auto", ranks=1))
    complexes = replace(given)
    object.__setattr__(complexes, "model", tiny_multimer_config())  # which no setting has so far
    assert "equal chains" in str(capture_unsupported_reason(complexes, properties, "auto", ranks=1))
    assert "off" in str(capture_unsupported_reason(given, properties, "off", ranks=1))
    assert "NVIDIA" in str(capture_unsupported_reason(given, DEVICE_MODELS["cpu"], "auto", ranks=1))
