"""Define `helixfold layouts`, which version 0.1 had: `helixfold plan --layouts` with that version's options."""

from typing import Literal

from cyclopts import App

from helixfold.options import Positive
from helixfold.training.options import PlanOptions, Settings, TrainingPreset

app = App(name="layouts", usage="helixfold layouts [options]")


@app.default
def layouts(
    *,
    preset: TrainingPreset = "initial_training",
    settings: Settings = (),
    ranks: tuple[Positive, ...] = (128, 256, 512, 2048),
    machine: Literal["a100", "h100", "h200", "here"] = "h100",
    parallel_blocks: bool = False,
    published: bool = False,
) -> None:
    """Predict a training step for every way to divide ranks, as `helixfold plan --layouts` does.

    Parameters
    ----------
    preset
        The training run.
    settings
        Change a setting of the run; may be given repeatedly.
    ranks
        Numbers of ranks.
    machine
        Nodes of eight GPUs of this kind, or this machine.
    parallel_blocks
        Assume that the outer product stands at the end of blocks.
    published
        Predict published times of single steps, and do nothing else.
    """
    from helixfold.cli.plan import plan

    plan(
        PlanOptions(
            hardware=tuple(f"{machine}x{count}" for count in ranks),
            preset=(preset,),
            settings=settings,
            layouts=True,
            parallel_blocks=parallel_blocks,
            published_steps=published,
        )
    )
