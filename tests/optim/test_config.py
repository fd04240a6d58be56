"""Settings of the optimiser say what is wrong with them, and its schedules are AlphaFold's."""

from typing import Any

import pytest

from helixfold.model.config import ConfigError
from helixfold.optim.config import AdaGCConfig, OptimizerConfig, finetuning


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0.0},
        {"clip_norm": -0.1},
        {"eps": float("nan")},
        {"decay_factor": 0.0},
        {"warmup_steps": -1},
        {"weight_decay": -0.1},
        {"decay_after": -1},
        {"beta1": 1.0},
        {"beta2": -0.1},
        {"ema_decay": 1.0},
        {"clipping": "value"},
    ],
    ids=str,
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        OptimizerConfig.from_dict({**OptimizerConfig().to_dict(), **wrong})


@pytest.mark.parametrize("wrong", [{"relative_threshold": 0.0}, {"decay": 1.0}, {"warmup_steps": 0}], ids=str)
def test_a_wrong_setting_of_adagc_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        AdaGCConfig(**wrong)


@pytest.mark.parametrize("config", [OptimizerConfig(), finetuning(), OptimizerConfig(clipping="adagc")])
def test_settings_survive_a_round_trip(config: OptimizerConfig) -> None:
    assert OptimizerConfig.from_dict(config.to_dict()) == config


def test_the_rate_of_initial_training_is_alphafolds() -> None:
    config = OptimizerConfig()
    expected = {0: 1e-6, 499: 5e-4, 999: 1e-3, 1000: 1e-3, 49_999: 1e-3, 50_000: 0.95e-3, 75_000: 0.95e-3}
    assert {step: config.rate(step) for step in expected} == pytest.approx(expected, rel=1e-12)


def test_the_rate_of_finetuning_is_constant() -> None:
    assert {finetuning().rate(step) for step in (0, 1, 1000, 50_000, 10**6)} == {5e-4}
