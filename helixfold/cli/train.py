"""Define the command `helixfold train`, which trains a model, alone or on many GPUs under `torchrun`."""

import json
from pathlib import Path

from cyclopts import App

from data_pipeline.errors import InputError
from helixfold.training.options import TrainOptions

_USUAL = TrainOptions()
app = App(name="train", usage="helixfold train TRAINING_SET --output DIR [options]")


@app.default
def train(training_set: Path | None = None, /, *, options: TrainOptions = _USUAL) -> int:
    """Train a model on a training set that `helixfold features` made. The same command again goes on with the run;
    torchrun starts it on several GPUs.

    Parameters
    ----------
    training_set
        The training set; required, as --output is, except for --show-settings and --dry-run.
    """
    timeout = options.timeout if options.patience is None else options.patience
    if not timeout > 0:
        raise InputError(f"--timeout is a number of seconds greater than 0, got {timeout:g}")
    from helixfold.training.presets import training_preset

    config = training_preset(options.preset).with_settings(options.settings)
    if options.show_settings:
        for name, value in config.flat().items():
            print(f"{name}={value if isinstance(value, str) else json.dumps(value)}")
        return 0
    if options.dry_run:
        from helixfold.execution.available import available_memory
        from helixfold.execution.device import pick_device
        from helixfold.ops.card import CARDS, card_of
        from helixfold.training.forecast import memory_table

        if options.device != "cpu" and options.device in CARDS:
            card = CARDS[options.device]
            memory = card.memory
        else:
            device = pick_device(options.device)
            card, memory = card_of(device), available_memory(device)
        print("\n".join(memory_table(config, options.memory or memory, card)))
        return 0
    if options.memory is not None:
        raise InputError("--memory is for --dry-run; a run takes what its device has")
    if training_set is None or options.output is None:
        raise InputError(
            "name the training set and --output, the run's directory (or --show-settings or --dry-run alone)"
        )
    from helixfold.execution.allocator import keeping_freed_memory
    from helixfold.planning.training import KEPT_BLOCKS
    from helixfold.report.training_curves import plot_curves
    from helixfold.training import run

    with keeping_freed_memory(KEPT_BLOCKS):
        return run.train(
            training_set,
            config,
            output=options.output,
            name=options.preset,
            held_out=options.held_out,
            weights=options.weights,
            device=options.device,
            workers=options.workers,
            cuda_graphs=options.cuda_graphs,
            layout=options.layout,
            timeout=timeout,
            draw=plot_curves,
        )
