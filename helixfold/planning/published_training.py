"""Published times of whole trainings of AlphaFold 2, and the mean time of a step that each of them implies."""

import math
from dataclasses import dataclass

SECONDS_A_DAY = 86_400
# Samples of initial training and of fine-tuning, and of a step (AlphaFold 2, Suppl. Table 4; the times below are for
# as many).
INITIAL_SAMPLES, FINETUNING_SAMPLES, BATCH_SIZE = 10_000_000, 1_500_000, 128


def steps_for(samples: int, batch_size: int) -> int:
    """Return the number of steps that see this many samples, or a few more."""
    return math.ceil(samples / batch_size)


@dataclass(frozen=True, kw_only=True)
class PublishedTraining:
    """The published time of a training, initial training and fine-tuning together."""

    program: str
    hardware: str
    days: float

    @property
    def mean_step_seconds(self) -> float:
        """Return the mean time of a step, over both stages with 128 samples a step."""
        steps = sum(steps_for(samples, BATCH_SIZE) for samples in (INITIAL_SAMPLES, FINETUNING_SAMPLES))
        return self.days * SECONDS_A_DAY / steps


# HelixFold, arXiv 2207.05477. The hardware of the second is larger than that of the runs it is compared with.
PUBLISHED_TRAININGS = (
    PublishedTraining(program="HelixFold", hardware="128 A100", days=7.548),
    PublishedTraining(program="HelixFold, hybrid parallelism", hardware="256, then 512 A100", days=5.295),
    PublishedTraining(program="AlphaFold 2", hardware="128 TPUv3", days=10.961),
    PublishedTraining(program="OpenFold", hardware="128 A100", days=10.849),
)
