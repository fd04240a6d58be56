"""The recipe of the small model: stages that follow each other, within their limits of size and time."""

from dataclasses import replace
from pathlib import Path

import pytest

from helixfold.cli.main import main
from helixfold.model.config import ConfigError
from helixfold.model.presets import preset
from helixfold.training.presets import TRAINING_PRESETS
from helixfold.training.recipes import RECIPES, recipe, stage_runs
from helixfold.weights.load import model_shapes
from helixfold.weights.untrained import untrained_model

STAGES = recipe("small")


def test_there_are_at_most_eight_stages_of_at_most_150_minutes() -> None:
    assert len(STAGES) <= 8
    assert all(0 < stage.minutes <= 150 for stage in STAGES)
    assert len({stage.name for stage in STAGES}) == len(STAGES)
    assert not set(RECIPES) - {*TRAINING_PRESETS}


def test_weights_of_a_stage_are_below_15_mb_and_the_model_below_12() -> None:
    calibrated = preset("small").model
    assert calibrated.template is not None
    assert STAGES[-1].config.model == replace(calibrated, template=replace(calibrated.template, plddt_slope=0.0))
    (shapes,) = {frozenset(model_shapes(stage.config.model).items()) for stage in STAGES}
    assert shapes == model_shapes(preset("small").model).items()
    parameters = sum(each.numel() for each in untrained_model(STAGES[0].config.model, 0).parameters())
    assert 4 * parameters < 15e6  # in float32
    assert 2 * parameters < 12e6  # in bfloat16, as in the package


def test_stages_learn_what_they_should() -> None:
    for stage in STAGES:
        example, loss = stage.config.example, stage.config.loss
        # The last stage learns what templates are worth, from relatives alone.
        is_last = stage is STAGES[-1]
        assert example.template_augmentation.none_fraction == (0.2 if is_last else 0.5)
        assert (example.template_augmentation.own_fraction > 0) != is_last
        assert (example.template_augmentation.least_noise, example.template_augmentation.most_noise) == (0.2, 2.0)
        assert example.sampling.max_msa_clusters > 8
        assert example.sampling.masked_msa_fraction == 0.15
        assert loss.smooth_lddt > 0
        assert 0 < example.unclamped_fraction < 1
        assert stage.config.optimizer.method == "muon"
    passes = [stage.config.example.max_passes for stage in STAGES]
    assert passes[0] == 1 < passes[-1]
    assert STAGES[0].config.loss.distogram > STAGES[-1].config.loss.distogram
    crops = [stage.config.example.crop_size for stage in STAGES]
    assert crops[:-1] == sorted(crops[:-1])
    assert len({stage.config.seed for stage in STAGES}) == len(STAGES)


def test_the_table_of_stages_is_the_recipes() -> None:
    readme = (Path(__file__).parents[2] / "examples" / "small" / "README.md").read_text()
    for number, stage in enumerate(STAGES, start=1):
        line = next(line for line in readme.splitlines() if line.startswith(f"| {number} |"))
        assert line.endswith(f"| {stage.config.steps:,} | {stage.minutes} |")
        assert line.startswith(f"| {number} | {stage.config.example.crop_size} |")


def test_each_stage_starts_from_the_last_weights_of_the_one_before(tmp_path: Path) -> None:
    runs = stage_runs(STAGES, tmp_path, ("steps=3",))
    assert [run.weights for run in runs] == [None, *(run.last_weights for run in runs[:-1])]
    assert {run.stage.config.steps for run in runs} == {3}
    assert not runs[0].is_finished
    runs[0].last_weights.parent.mkdir(parents=True)
    runs[0].last_weights.touch()
    assert runs[0].is_finished


def test_an_unknown_recipe_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no recipe 'large'; choose one of small"):
        recipe("large")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--recipe", "small", "--weights", "x.npz"], "--weights cannot be combined with --recipe"),
        (["--recipe", "small", "--preset", "small"], "--preset cannot be combined with --recipe"),
        (["--recipe", "small", "--dry-run"], "--dry-run cannot be combined with --recipe"),
        (["--recipe", "small", "--stages", "9"], "has 5 stages"),
        (["--stages", "2"], "--stages requires --recipe"),
        (["--recipe", "small"], "pass a training set"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words]) == 2
    assert problem in capsys.readouterr().err


def test_all_stages_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--recipe", "small", "--show-settings", "--set", "steps=7"]) == 0
    out = capsys.readouterr().out
    assert all(f"{stage.name}: steps=7\n" in out for stage in STAGES)
