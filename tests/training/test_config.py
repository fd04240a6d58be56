"""Settings of a run that cannot be, and those that a run may not change when it resumes, are named."""

from pathlib import Path

import pytest

from data_pipeline.io.config import ConfigError
from helixfold.training.config import TrainingConfig, require_same_run
from helixfold.training.presets import training_preset

TINY, COMPLEXES = training_preset("tiny"), training_preset("tiny_multimer")


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (TINY, ["batch_size=0"], "batch_size"),
        (TINY, ["seed=-1"], "seed must be at least 0, got -1"),
        (TINY, ["batch_size=65537"], "batch_size"),
        (TINY, ["loss.interface_contact=0.5"], "loss.*is for complexes|unknown|there is no"),
        (COMPLEXES, ["example.template_augmentation.own_fraction=0.5"], "are for single chains"),
        (
            TINY,
            ["batch_size=6", "micro_batch=4", "optimizer.clipping=global"],
            r"micro_batch \(4\) must divide batch_size",
        ),
        (TINY, ["batch_size=8", "micro_batch=4", "optimizer.clipping=sample"], "so micro_batch must be 1, got 4"),
        (
            TINY,
            ["batch_size=8", "micro_batch=4", "optimizer.clipping=global", "example.fixed_shapes=false"],
            "examples of different shapes cannot be stacked",
        ),
        (TINY, ["example.sampling.max_templates=99"], r"max_templates \(99\) must not exceed"),
        (
            TINY,
            ["batch_size=4", "outer.islands=3"],
            r"outer.islands \(3\) must divide the number of micro-batches \(4\)",
        ),
        (
            TINY,
            ["batch_size=4", "outer.islands=2", "outer.every=10", "steps=25", "save_every=10", "evaluation.every=10"],
            "steps must be a multiple of 10, got 25",
        ),
        (
            TINY,
            ["batch_size=4", "outer.islands=2", "outer.every=10", "steps=20", "save_every=15", "evaluation.every=10"],
            "save_every must be a multiple of 10, got 15",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(config: TrainingConfig, settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.with_settings(settings)


def test_a_preset_for_predictions_recycles_as_often_as_the_training() -> None:
    preset = TINY.prediction_preset("own")
    assert (preset.name, preset.model, preset.sampling) == ("own", TINY.model, TINY.example.sampling)
    assert preset.num_recycles == TINY.example.max_passes - 1
    assert TINY.with_settings(["batch_size=12"]).micro_batches == 12 // TINY.micro_batch


def test_only_what_results_do_not_depend_on_may_change() -> None:
    free = ["steps=7", "save_every=3", "keep=9", "max_skipped=4", "evaluation.every=5", "recompute.evoformer=block"]
    require_same_run(Path("run"), TINY.record, TINY.with_settings(free).record)
    changed = TINY.with_settings(["seed=5", "optimizer.learning_rate=0.5"])
    with pytest.raises(ConfigError) as caught:
        require_same_run(Path("run"), TINY.record, changed.record)
    assert str(caught.value) == (
        f"run: begun before with other settings (optimizer.learning_rate {TINY.optimizer.learning_rate:g}, now 0.5; "
        f"seed {TINY.seed}, now 5); use the same settings, or pass another --output"
    )
