"""Define the command `helixfold train`, which trains a model on one device, or on several GPUs under `torchrun`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import require
from helixfold.cli.command import Command
from helixfold.training.options import TrainOptions

if TYPE_CHECKING:
    from helixfold.training.config import TrainingConfig

_DEFAULT_OPTIONS = TrainOptions()
_USAGE = (
    "helixfold train TRAINING_SET --output DIR [options]\n"
    "example: helixfold train set/ --preset small --output runs/first"
)
app = Command(name="train", usage=_USAGE)


@app.default
def train(
    training_set: Path | None = None,
    /,
    *,
    options: TrainOptions = _DEFAULT_OPTIONS,
    command: Annotated[tuple[str, ...], Parameter(parse=False)] = (),
) -> int:
    """Train a model on a training set made by `helixfold features`. Run the same command again to resume; start it with
    torchrun to use several GPUs.

    Parameters
    ----------
    training_set
        Training set. Required, like --output, except with --show-settings or --dry-run.
    """
    if not options.timeout > 0:
        raise InputError(f"--timeout must be greater than 0 seconds, got {options.timeout:g}")
    if options.cluster is not None and not (options.show_settings or options.dry_run):
        return _submit(options.cluster, training_set, options, command)
    if options.recipe is not None:
        return _train_recipe(options.recipe, training_set, options)
    if options.stages is not None:
        raise InputError("--stages requires --recipe; a preset has one stage")
    from helixfold.training.presets import training_preset

    config = training_preset(options.preset).with_settings(options.settings)
    if options.show_settings:
        _print_settings(config)
        return 0
    if options.dry_run:
        from helixfold.execution.available import available_memory
        from helixfold.execution.device import pick_device
        from helixfold.ops.device_properties import DEVICE_MODELS, properties_of
        from helixfold.training.estimate import memory_table

        if options.device != "cpu" and options.device in DEVICE_MODELS:
            properties = DEVICE_MODELS[options.device]
            memory = properties.memory
        else:
            device = pick_device(options.device)
            properties, memory = properties_of(device), available_memory(device)
        print("\n".join(memory_table(config, options.memory or memory, properties)))
        return 0
    training_set, output = _places(training_set, options)
    if options.new_parameters and options.weights is None:
        raise InputError("--new-parameters requires --weights; without it, all parameters are new")
    return _run(training_set, config, output, options, name=options.preset, weights=options.weights)


def _submit(site: Path, training_set: Path | None, options: TrainOptions, command: tuple[str, ...]) -> int:
    """Submit the command to the queue of a cluster."""
    _, output = _places(training_set, options)
    if options.recipe is None:
        from helixfold.training.presets import training_preset

        training_preset(options.preset).with_settings(options.settings)  # raise errors here, not in the job
    require("cluster", "parsl", action="--cluster")
    from helixfold.apps.cluster.training import submit_training, without_cluster

    print(f"submitted: {submit_training(site, without_cluster(command[1:]), output)}")
    return 0


def _train_recipe(name: str, training_set: Path | None, options: TrainOptions) -> int:
    """Train the unfinished stages of a recipe in order."""
    for is_given, option in (
        (options.preset != _DEFAULT_OPTIONS.preset, "--preset"),
        (options.weights is not None, "--weights"),
        (options.new_parameters != (), "--new-parameters"),
        (options.dry_run, "--dry-run"),
    ):
        if is_given:
            raise InputError(
                f"{option} cannot be combined with --recipe, whose stages have their own settings and weights"
            )
    from helixfold.training.recipes import recipe, stage_runs

    stages = recipe(name)
    if options.stages is not None and options.stages > len(stages):
        raise InputError(f"the recipe {name} has {len(stages)} stages, got --stages {options.stages}")
    if options.show_settings:
        for run in stage_runs(stages, Path(), options.settings):
            _print_settings(run.stage.config, f"{run.stage.name}: ")
        return 0
    training_set, output = _places(training_set, options)
    for run in stage_runs(stages, output, options.settings)[: options.stages]:
        if not run.is_finished:
            config, of_stage = run.stage.config, f"{name}_{run.stage.name}"
            code = _run(training_set, config, run.directory, options, name=of_stage, weights=run.weights)
            if code:
                return code
    return 0


def _places(training_set: Path | None, options: TrainOptions) -> tuple[Path, Path]:
    """Return the training set and the directory of the run; raise `InputError` if one is missing."""
    if options.memory is not None:
        raise InputError("--memory requires --dry-run; a run uses the memory of its device")
    if training_set is None or options.output is None:
        raise InputError(
            "pass a training set and --output, the directory of the run (or only --show-settings or --dry-run)"
        )
    return training_set, options.output


def _print_settings(config: "TrainingConfig", prefix: str = "") -> None:
    """Print the settings of a training as NAME=VALUE lines, each after `prefix`."""
    for name, value in config.flat().items():
        print(f"{prefix}{name}={value if isinstance(value, str) else json.dumps(value)}")


def _run(
    training_set: Path,
    config: "TrainingConfig",
    output: Path,
    options: TrainOptions,
    *,
    name: str,
    weights: Path | None,
) -> int:
    """Train or resume one run, and return its exit code."""
    from helixfold.execution.allocator import keeping_freed_memory
    from helixfold.planning.passes import KEPT_BLOCKS
    from helixfold.report.training_curves import plot_curves
    from helixfold.training import run

    with keeping_freed_memory(KEPT_BLOCKS):
        return run.train(
            training_set,
            config,
            output=output,
            name=name,
            held_out=options.held_out,
            weights=weights,
            new_parameters=options.new_parameters,
            device=options.device,
            workers=options.workers,
            cuda_graphs=options.cuda_graphs,
            layout=options.layout,
            timeout=options.timeout,
            draw=plot_curves,
        )
