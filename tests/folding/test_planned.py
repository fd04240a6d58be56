"""Out of memory, a target is folded again with the next executor; targets share passes if they fit and can."""

import errno
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from data_pipeline.pipeline import Target, prepare
from helixfold.execution.iteration_runner import EAGER, IterationRunner
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.folding import planned as folding
from helixfold.folding.options import FoldingOptions
from helixfold.folding.planned import fold_planned, fold_together
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import STAGES, FoldingTarget
from helixfold.model.update import Executor
from helixfold.planning import estimate
from helixfold.planning.estimate import NotEnoughMemoryError, PredictionEstimate
from helixfold.weights.find import ReadyModel, find_models
from tests.support.folding import fold_one
from tests.support.plans import GIB, planned, simple_estimate

OPTIONS = FoldingOptions(num_recycles=1)
Attempt = Callable[[Any], object]
Fold = Callable[..., tuple[Prediction, list[str]]]


def target(name: str, length: int = 10) -> FoldingTarget:
    return FoldingTarget(features=prepare(Target(name=name, sequence="MKTAYIAKQRQISFVK"[:length])).features, name=name)


@pytest.fixture(scope="module")
def ready() -> ReadyModel:
    return find_models(["tiny"], None, seed=0)[0]


@pytest.fixture(scope="module")
def prediction(ready: ReadyModel) -> Prediction:
    return fold_one(ready.network, Whole(), target("one").features, ready.preset, OPTIONS)


@pytest.fixture(autouse=True)
def simple_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "prediction_memory", simple_estimate)


@pytest.fixture
def fold(ready: ReadyModel, prediction: Prediction, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fold:
    """Fold by a plan with a fake network; return the prediction and the printed lines."""

    def folded(
        attempt: Attempt, plan: PredictionEstimate, runner: IterationRunner = EAGER
    ) -> tuple[Prediction, list[str]]:
        said: list[str] = []

        def fake(_: Any, __: Any, ___: Any, ____: Any, run: Executor, *, stages: Stages, **_____: Any) -> Any:
            with stages.stage("network"):
                attempt(run)
            return [prediction]

        monkeypatch.setattr(folding, "fold", fake)
        found = fold_planned(
            ready, target("one"), plan, OPTIONS, stages=Stages(), spill=tmp_path, say=said.append, runner=runner
        )
        return found, said

    return folded


def cpu_allocator() -> None:
    torch.empty(2**60)


def memory_error() -> None:
    raise MemoryError


def system() -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def library() -> None:
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")


@pytest.mark.parametrize("fail", [cpu_allocator, memory_error, system, gpu, library])
def test_out_of_memory_a_target_is_folded_again_with_the_next_executor(fail: Callable[[], None], fold: Fold) -> None:
    tried: list[Executor] = []

    def attempt(run: Executor) -> None:
        tried.append(run)
        if len(tried) < 3:
            fail()

    plan = planned(100, residues=10)
    found, said = fold(attempt, plan)
    assert [type(each) for each in tried] == [Whole, Slabs, Spilled]
    assert said == [
        "out of memory with the executor 'whole'; starting again with 'slabs'",
        "out of memory with the executor 'slabs'; starting again with 'spilled'",
    ]
    assert found.provenance is not None
    assert found.provenance.executor == "spilled"
    assert found.measurements["predicted_peak_gib"] == round([*plan.fallbacks][-1].memory.peak / 2**30, 3)


def test_graphs_are_not_used_without_memory_for_their_pool(fold: Fold, prediction: Prediction) -> None:
    cleared = list[bool]()

    class Captured(IterationRunner):
        def clear(self) -> bool:
            cleared.append(True)
            return True

    plan = planned(100, residues=10)
    assert plan.has_room_for_graphs
    # Room for a pass, but not for a second one beside the reserve.
    small = replace(plan, device=replace(plan.device, memory=2 * plan.memory.peak))
    assert small.fits
    for each, count in ((plan, 0), (small, 1)):
        fold(lambda _: None, each, Captured())
        assert len(cleared) == count


def test_graphs_are_freed_before_another_executor_is_tried(fold: Fold) -> None:
    tried = list[Executor]()
    held = [True, False, False]

    class Captured(IterationRunner):
        def clear(self) -> bool:
            return held.pop(0)

    def attempt(run: Executor) -> None:
        tried.append(run)
        if len(tried) < 3:
            gpu()

    found, said = fold(attempt, planned(100, residues=10), Captured())
    assert found.provenance is not None
    assert found.provenance.executor == "slabs"
    assert [type(each) for each in tried] == [Whole, Whole, Slabs]
    assert said == [
        "out of memory; trying again without CUDA graphs",
        "out of memory with the executor 'whole'; starting again with 'slabs'",
    ]


def test_large_slabs_that_do_not_fit_are_made_smaller_first(fold: Fold) -> None:
    tried: list[Slabs] = []

    def attempt(run: Slabs) -> None:
        tried.append(run)
        if len(tried) < 3:
            gpu()

    found, said = fold(attempt, planned(100, forced="slabs", device_model="h200"))
    assert [(type(each), each.budget) for each in tried] == [(Slabs, 8 * GIB), (Slabs, None), (Spilled, None)]
    assert found.provenance is not None
    assert (found.provenance.executor, found.provenance.slab_budget) == ("spilled", None)
    assert said == [
        "out of memory with the executor 'slabs'; starting again with smaller slabs",
        "out of memory with the executor 'slabs'; starting again with 'spilled'",
    ]


def test_what_a_failed_attempt_held_is_gone_before_the_next(fold: Fold) -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def attempt(run: Executor) -> None:
        assert all(each() is None for each in held)
        tensor = torch.zeros(8)
        held.append(weakref.ref(tensor))
        cycle: list[object] = [tensor]
        cycle.append(cycle)
        try:
            torch.empty(2**60)
        except RuntimeError as error:
            raise torch.OutOfMemoryError("again") from error

    gc.disable()
    try:
        with pytest.raises(NotEnoughMemoryError):
            fold(attempt, planned(100))
    finally:
        gc.enable()
    assert len(held) == 2


def test_the_last_executor_fails_with_what_would_fit(fold: Fold) -> None:
    with pytest.raises(NotEnoughMemoryError) as caught:
        fold(lambda _: cpu_allocator(), planned(100))
    # The forecast was too low, so the advice assumes less memory.
    assert str(caught.value).startswith("out of memory with the executor 'spilled'; 1,000 residues need 2.2 GiB")
    assert "at most 909 residues" in str(caught.value)
    assert caught.value.__context__ is None


def test_without_room_on_the_disk_nothing_is_spilled(fold: Fold) -> None:
    tried: list[Executor] = []

    def attempt(run: Executor) -> None:
        tried.append(run)
        cpu_allocator()

    with pytest.raises(NotEnoughMemoryError, match="GiB to spill to"):
        fold(attempt, planned(100, disk=GIB))
    assert [type(each) for each in tried] == [Slabs]


def test_other_errors_are_not_for_the_next_executor(fold: Fold) -> None:
    tried: list[Executor] = []

    def attempt(run: Executor) -> None:
        tried.append(run)
        raise RuntimeError("the chain is broken")

    with pytest.raises(RuntimeError, match="broken"):
        fold(attempt, planned(100))
    assert len(tried) == 1


def together(
    ready: ReadyModel, options: FoldingOptions, stages: Sequence[Stages], spill: Path, say: Callable[[str], object]
) -> list[Prediction] | None:
    plans = [planned(100, residues=16)] * 2
    return fold_together(ready, [target("a", 12), target("b", 16)], plans, options, stages=stages, spill=spill, say=say)


def test_targets_that_share_passes_share_their_time(ready: ReadyModel, tmp_path: Path) -> None:
    stages, said = [Stages(), Stages()], list[str]()
    found = together(ready, OPTIONS, stages, tmp_path, said.append)
    assert found is not None
    assert [len(prediction.plddt) for prediction in found] == [12, 16]
    for prediction in found:
        assert prediction.provenance is not None
        assert (prediction.provenance.executor, prediction.provenance.targets_at_once) == ("whole", 2)
    for name, own in zip("ab", stages, strict=True):
        assert [stage.name for stage in own.finished] == [f"{name}: {stage}" for stage in STAGES]
    for one, other in zip(*(own.finished for own in stages), strict=True):
        assert one.seconds == other.seconds
    assert not said


@pytest.mark.parametrize("options", [{"cyclic": ()}, {"dropout": True}, {"dtype": "float16"}, {"save_passes": True}])
def test_targets_that_cannot_share_passes_are_left_to_be_folded_alone(
    options: dict[str, Any], ready: ReadyModel, tmp_path: Path
) -> None:
    stages, said = [Stages(), Stages()], list[str]()
    assert together(ready, FoldingOptions(num_recycles=0, **options), stages, tmp_path, said.append) is None
    assert not said
    assert not any(own.finished for own in stages)


def test_targets_that_do_not_fit_together_are_left_to_be_folded_alone(ready: ReadyModel, tmp_path: Path) -> None:
    plan = planned(0.25, residues=16, forced="whole")
    assert plan.fits
    targets, stages = [target("a"), target("b")], [Stages(), Stages()]
    assert fold_together(ready, targets, [plan, plan], OPTIONS, stages=stages, spill=tmp_path) is None
