"""`helixfold train`: from a training set to a trained model, alone or on many GPUs under `torchrun`."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import helixfold
from data_pipeline.datasets.store import FeatureStore
from data_pipeline.errors import InputError
from data_pipeline.extras import require
from helixfold.config import ModelConfig
from helixfold.execution.allocator import freed_memory_kept
from helixfold.execution.available import available_memory
from helixfold.execution.device import pick_device
from helixfold.ops.card import card_of
from helixfold.parallel.mesh import TIMEOUT, Mesh, join, leave, make_mesh
from helixfold.parallel.watchdog import LostRankError, report_lost_ranks
from helixfold.planning.layouts import chosen_layout
from helixfold.planning.training import KEPT_BLOCKS
from helixfold.predict.sizes import memory_size
from helixfold.report.training_curves import plot_curves
from helixfold.training.config import TrainingConfig
from helixfold.training.evaluate import read_names
from helixfold.training.memory import memory_per_rank, memory_table, workload
from helixfold.training.presets import TRAINING_PRESETS, training_preset
from helixfold.training.run_files import RunFiles
from helixfold.training.stopping import StopRequest
from helixfold.training.trainer import DivergedError, Trainer
from helixfold.weights.load import load_weights

FAILED, TERMINATED = 1, 143
_GPU_WORKERS = 4
AUTO = "auto"


def train(
    store: Path,
    config: TrainingConfig,
    *,
    output: Path,
    name: str,
    held_out: Path | None = None,
    weights: Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    layout: str | None = None,
    patience: float = TIMEOUT,
) -> int:
    """Train until `config.steps`, or go on with the run in `output`; 0, or 143 if it was asked to end and saved.

    Under `torchrun` every process calls this. Wrong input is an `InputError`, before anything is written. A run that
    goes on keeps bp and dap of its `layout`, and has as many groups as there are ranks for now; where that is "auto",
    it is chosen by short readings of devices and links, each time.
    """
    require("train", "biotite", "lmdb", "tensorboard", action="helixfold train")
    files = RunFiles(directory=output, name=name, draw=plot_curves)
    try:
        with report_lost_ranks(patience):
            mesh = join(device, None if layout == AUTO else layout, patience, any_dp=files.has_checkpoints)
            if layout == AUTO and mesh.size > 1:
                chosen = chosen_layout(workload(config), mesh, memory_per_rank(mesh))
                mesh = make_mesh(chosen, mesh.device, patience)
            return _train_on(mesh, store, config, files, held_out=held_out, weights=weights, workers=workers)
    except LostRankError as error:
        if error.should_report:
            print(f"helixfold: error: {error}", file=sys.stderr)
        return FAILED
    except DivergedError as error:
        print(f"helixfold: error: {error}", file=sys.stderr)
        return FAILED
    finally:
        leave()


def _train_on(
    mesh: Mesh,
    store: Path,
    config: TrainingConfig,
    files: RunFiles,
    *,
    held_out: Path | None,
    weights: Path | None,
    workers: int | None,
) -> int:
    chains = FeatureStore.open(store)
    names = read_names(held_out, chains) if held_out is not None else ()
    initial = initial_weights(weights, config.model) if weights is not None else None
    if mesh.is_first:
        files.check()
    if workers is None:
        workers = _GPU_WORKERS if mesh.device.type == "cuda" else 0
    with StopRequest().handling_signals() as stop:
        trainer = Trainer(config, chains, files, mesh, held_out=names, initial=initial, workers=workers)
        if mesh.is_first:
            files.write_config(
                trainer.config,
                {
                    "training_set": str(store),
                    "held_out": list(names),
                    "weights": None if weights is None else str(weights),
                    "ranks": mesh.size,
                    "layout": str(mesh.layout),
                    "versions": {"helixfold": helixfold.__version__, "torch": torch.__version__},
                },
            )
        return 0 if trainer.run(stop) else TERMINATED


def initial_weights(path: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Parameters to start from; an aligned-error head that the file's model does not have yet begins anew.

    So AlphaFold's `_ptm` models began, too (Suppl. Sec. 1.9.7).
    """
    try:
        return load_weights(path, config)
    except InputError:
        if not config.heads.aligned_error:
            raise
        headless = replace(config, heads=replace(config.heads, aligned_error=False))
        try:
            return load_weights(path, headless)
        except InputError:
            pass
        raise


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe `helixfold train` to the command line."""
    parser = commands.add_parser(
        "train",
        help="train a model",
        description="Train a model on a training set that helixfold features made. The same command again goes on with "
        "the run; torchrun starts it on several GPUs.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("store", type=Path, nargs="?", metavar="TRAINING_SET", help="what helixfold features made")
    parser.add_argument("--output", type=Path, metavar="DIR", help="the run's directory")
    parser.add_argument("--preset", default="tiny", choices=TRAINING_PRESETS, help="settings to begin with")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a setting (steps=100, optimizer.learning_rate=1e-4, model.evoformer.blocks=8); "
        "--show-settings lists them",
    )
    parser.add_argument("--show-settings", action="store_true", help="print all settings and end")
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what a rank will take, by what is recomputed, and end"
    )
    parser.add_argument(
        "--memory", type=memory_size, metavar="SIZE", help="for --dry-run: such as 24GB, instead of what is free"
    )
    parser.add_argument(
        "--held-out", type=Path, metavar="FILE", help="names of chains to judge the model by, and not to train on"
    )
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="start from these parameters (.npz, .pt, .safetensors)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    parser.add_argument(
        "--workers",
        type=int,
        help=f"processes that make examples ahead, for each device ({_GPU_WORKERS} for a GPU, else 0)",
    )
    parser.add_argument(
        "--layout",
        help="how ranks share the work: dp groups with samples of their own, of bp (1 or 2) x dap ranks each that "
        "share one, such as dp=16,bp=2,dap=2; without dp, or where a run goes on, as many groups as fit; auto measures "
        "devices and links and takes the fastest",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=TIMEOUT,
        metavar="SECONDS",
        help="a rank that keeps the others waiting longer than this is lost, and the run ends",
    )
    parser.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> int:
    if options.workers is not None and options.workers < 0:
        raise InputError(f"--workers must not be negative, got {options.workers}")
    if not options.patience > 0:
        raise InputError(f"--patience is a number of seconds greater than 0, got {options.patience:g}")
    config = training_preset(options.preset).with_settings(options.set)
    if options.show_settings:
        for name, value in config.flat().items():
            print(f"{name}={value if isinstance(value, str) else json.dumps(value)}")
        return 0
    if options.dry_run:
        device = pick_device(options.device)
        for line in memory_table(config, options.memory or available_memory(device), card_of(device)):
            print(line)
        return 0
    if options.memory is not None:
        raise InputError("--memory is for --dry-run; a run takes what its device has")
    if options.store is None or options.output is None:
        raise InputError(
            "name the training set and --output, the run's directory (or --show-settings or --dry-run alone)"
        )
    with freed_memory_kept(KEPT_BLOCKS):
        return train(
            options.store,
            config,
            output=options.output,
            name=options.preset,
            held_out=options.held_out,
            weights=options.weights,
            device=options.device,
            workers=options.workers,
            layout=options.layout,
            patience=options.patience,
        )
