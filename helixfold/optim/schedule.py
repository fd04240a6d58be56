"""The learning rate of every step."""

from helixfold.optim.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """A linear warm-up, a plateau and one drop (AlphaFold 2, Suppl. Sec. 1.11.3).

    `step` counts from 0; the last step of the warm-up is the first one at the full rate.
    """
    rate = config.learning_rate * min(1.0, (step + 1) / max(1, config.warmup_steps))
    if config.decay_after is not None and step >= config.decay_after:
        rate *= config.decay_factor
    return rate
