"""Targets that are folded as one batch come out as they do alone, each with its own end of recycling."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from helixfold.execution.graphs import GraphCache
from helixfold.execution.iteration_runner import EAGER, IterationRunner
from helixfold.execution.slabs import Slabs
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.folding import recycling
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import STAGES, FoldingTarget, fold
from helixfold.model.alphafold import AlphaFold
from helixfold.model.presets import tiny
from helixfold.model.update import Executor
from helixfold.ops.dispatch import forced
from tests.data_pipeline.sampling.samples import random_features
from tests.support.folding import fold_one
from tests.support.networks import tiny_model
from tests.support.operator_graphs import OperatorCapturer

PRESET = replace(tiny(), model=tiny_model().config)


def targets(*sizes: tuple[int, int, int]) -> list[FoldingTarget]:
    """Targets of these numbers of alignment rows, residues and templates."""
    return [
        FoldingTarget(features=named(random_features(*each), f"target {number}"), name=f"name_{number}")
        for number, each in enumerate(sizes)
    ]


def named(features: Features, name: str) -> Features:
    return replace(features, domain_name=name)


def alone(
    target: FoldingTarget, options: FoldingOptions, model: AlphaFold, runner: IterationRunner = EAGER
) -> Prediction:
    return fold_one(model, Whole(), target.features, PRESET, options, name=target.name, runner=runner)


def together(
    given: Sequence[FoldingTarget],
    options: FoldingOptions,
    model: AlphaFold,
    run: Executor | None = None,
    runner: IterationRunner = EAGER,
) -> list[Prediction]:
    return fold(model, PRESET, given, options, run or Whole(), stages=Stages(), passes=runner)


def assert_near(found: object, expected: object, name: str, within: float = 1e-5) -> None:
    if isinstance(expected, np.ndarray | float):
        assert np.shape(found) == np.shape(expected), name
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found, expected, rtol=0, atol=within * scale, err_msg=name)
    elif isinstance(expected, dict) or hasattr(expected, "__dataclass_fields__"):
        ours, theirs = (each if isinstance(each, dict) else vars(each) for each in (found, expected))
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert_near(ours[key], value, f"{name}.{key}", within)
    else:
        assert found == expected, name


@pytest.mark.parametrize("ensemble", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_batch_gives_what_each_target_gives_alone(ensemble: int) -> None:
    model = tiny_model()
    given = targets((1, 20, 0), (40, 9, 1), (3, 13, 4))
    options = FoldingOptions(num_recycles=1, num_ensemble=ensemble, logits=True, seed=3)
    expected = [alone(target, options, model) for target in given]
    for run in (Whole(), Slabs(rows=4)):
        found = together(given, options, model, run)
        assert [prediction.model for prediction in found] == [target.name for target in given]
        for one, prediction in zip(expected, found, strict=True):
            assert_near(prediction, one, f"{one.model}, {run}")


def test_captured_graphs_serve_all_targets_of_about_one_size() -> None:
    """Padding to the size of a graph changes nothing, nor do replays; a target may end before the others."""
    model, capturer = tiny_model(), OperatorCapturer()
    runner, options = IterationRunner(GraphCache(capturer)), FoldingOptions(num_recycles=2, logits=True)
    with forced("reference"):
        for sizes in (((5, 13, 2), (1, 11, 0)), ((3, 9, 1), (14, 14, 2)), ((2, 16, 2), (6, 3, 0))):
            given = targets(*sizes)
            for target, prediction in zip(given, together(given, options, model, runner=runner), strict=True):
                assert_near(prediction, alone(target, options, model), target.name)
        # One by one, nothing is padded; samples of a target have one size.
        for seed in range(2):
            one = replace(options, seed=seed)
            found, expected = alone(given[0], one, model, runner), alone(given[0], one, model)
            assert (found.protein.atom_positions == expected.protein.atom_positions).all()
            assert_near(found, expected, "alone")
    assert (capturer.captured, runner.replays) == (2, 7 + 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_batch_on_a_gpu_gives_what_each_target_gives_alone() -> None:
    """Products of other shapes are summed in another order there, so a little more may differ."""
    model, given = tiny_model().cuda(), targets((5, 64, 2), (1, 61, 0), (400, 40, 1))
    options = FoldingOptions(num_recycles=2, dtype="float32")
    for target, prediction in zip(given, together(given, options, model), strict=True):
        assert_near(prediction, alone(target, options, model), target.name, within=1e-4)


@pytest.mark.parametrize(
    ("criterion", "never", "measure"),
    [("recycle_tolerance", 1e-9, "distance_change"), ("stop_at_score", 100.0, "mean_plddt")],
)
def test_each_target_ends_its_own_recycling(
    criterion: str, never: float, measure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = tiny_model(), targets((5, 13, 0), (8, 20, 1), (2, 11, 0), (12, 16, 0))
    options = FoldingOptions(num_recycles=4)
    compute, measured = getattr(recycling, measure), list[list[float]]()

    def noted(*arguments: object) -> torch.Tensor:
        found: torch.Tensor = compute(*arguments)
        measured[-1].append(float(found[0]))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(recycling, measure, noted)
        for target in given:
            measured.append([])
            alone(target, replace(options, **{criterion: never}), model)

    def meets(value: float, bound: float) -> bool:
        return value >= bound if criterion == "stop_at_score" else value < bound

    def ends(bound: float) -> set[int]:
        found = [[number for number, value in enumerate(each) if meets(value, bound)] for each in measured]
        return {numbers[0] if numbers else options.num_recycles or 0 for numbers in found}

    # A bound that targets meet after different numbers of iterations.
    values = sorted(value for each in measured for value in each)
    bound = max((np.mean(pair) for pair in itertools.pairwise(values)), key=lambda bound: len(ends(bound)))
    options = replace(options, **{criterion: float(bound)})
    expected = [alone(target, options, model) for target in given]
    assert len({prediction.num_recycles for prediction in expected}) > 1
    for prediction, one in zip(together(given, options, model), expected, strict=True):
        assert_near(prediction, one, one.model)


def test_samples_that_are_drawn_ahead_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = tiny_model(), targets((5, 13, 0), (600, 8, 1))
    options = FoldingOptions(num_recycles=2, num_ensemble=2)
    before = together(given, options, model)
    monkeypatch.setattr(recycling, "_DRAW_AHEAD", ("cpu",))
    for found, expected in zip(together(given, options, model), before, strict=True):
        assert (found.protein.atom_positions == expected.protein.atom_positions).all()
        assert found.num_recycles == expected.num_recycles


def test_every_stage_is_recorded() -> None:
    stages = Stages()
    two, options = targets((2, 5, 0), (3, 7, 0)), FoldingOptions(num_recycles=1)
    fold(tiny_model(), PRESET, two, options, Whole(), stages=stages)
    assert [stage.name for stage in stages.finished] == [*STAGES[:2], *STAGES, STAGES[2]]
    stages.finished.clear()
    fold(tiny_model(), PRESET, two[:1], options, Whole(), stages=stages)
    assert [stage.name for stage in stages.finished] == [f"name_0: {name}" for name in (*STAGES[:2], *STAGES)]
    assert torch.is_grad_enabled()


def test_in_float16_no_target_is_padded() -> None:
    """So that a batch gives what each target gives alone, to the last bit: padding has the largest numbers."""
    model, given, options = tiny_model(), targets((5, 13, 2), (1, 20, 0)), FoldingOptions(dtype="float16")
    for found, target in zip(together(given, options, model), given, strict=True):
        assert_near(found, alone(target, options, model), found.model, within=0.0)


def test_numbers_beyond_float16_are_an_error_with_its_remedy() -> None:
    model, (target,) = tiny_model(), targets((5, 13, 0))
    with torch.no_grad():
        model.evoformer.blocks[-1].pair_transition.linear_2.bias.fill_(1e5)
    for dtype in ("float32", "bfloat16"):
        assert np.isfinite(alone(target, FoldingOptions(dtype=dtype), model).plddt).all()
    with pytest.raises(InputError, match=r"name_0: float16 overflowed .*65,504.*; use --dtype bfloat16 or float32"):
        alone(target, FoldingOptions(dtype="float16"), model)


def test_an_initial_guess_ends_no_recycling() -> None:
    """A guess may be as good as what the network makes of it; only predictions converge."""
    guesses = [np.random.default_rng(0).normal(size=(residues, 37, 3)).astype(np.float32) for residues in (5, 7)]
    given = [
        replace(target, initial_guess=guess)
        for target, guess in zip(targets((2, 5, 0), (2, 7, 0)), guesses, strict=True)
    ]
    options = FoldingOptions(num_recycles=3, recycle_tolerance=1e6)
    found = together(given, options, tiny_model())
    assert [(each.num_recycles, each.converged) for each in found] == [(1, True), (1, True)]
