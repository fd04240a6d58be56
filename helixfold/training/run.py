"""Run a training from its settings to its end, on one device or on the ranks of `torchrun`."""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

import helixfold
from data_pipeline.io.errors import printable
from data_pipeline.io.extras import require
from data_pipeline.io.files import unmoved_directory
from data_pipeline.training_sets.store import FeatureStore
from helixfold.execution.device import limit_threads, untested_warning
from helixfold.ops.device_properties import properties_of
from helixfold.parallel.mesh import TIMEOUT, Mesh, join, leave, make_mesh
from helixfold.parallel.watchdog import LostRankError, report_lost_ranks
from helixfold.planning.layouts import choose_layout
from helixfold.results.training_log import TrainingHistory
from helixfold.runtime.options import CudaGraphs
from helixfold.runtime.standard_streams import optional_output, print_summary
from helixfold.training.checkpoint_files import checkpoint_steps
from helixfold.training.config import TrainingConfig
from helixfold.training.estimate import memory_per_rank, workload
from helixfold.training.evaluate import read_names
from helixfold.training.options import AUTO_LAYOUT
from helixfold.training.progress import print_message
from helixfold.training.run_dtype import with_settled_dtype
from helixfold.training.run_files import RunFiles
from helixfold.training.stopping import StopRequest
from helixfold.training.trainer import DivergedError, Trainer
from helixfold.weights import demonstration
from helixfold.weights.transfer import initial_weights

FAILED = 1  # exit code


@optional_output()
def train(
    store: Path,
    config: TrainingConfig,
    *,
    output: Path,
    name: str,
    held_out: Path | None = None,
    weights: Path | None = None,
    new_parameters: Sequence[str] = (),
    device: str = "auto",
    workers: int | None = None,
    layout: str | None = None,
    timeout: float = TIMEOUT,
    cuda_graphs: CudaGraphs = "auto",
    draw: Callable[[TrainingHistory, Path], None] | None = None,
) -> int:
    """Train for `config.steps` steps, or resume the run in `output`, and return an exit code.

    The code is 0 at the end; 143, 130 or 129 if SIGTERM, Ctrl-C or a closed terminal stopped the run, after a
    checkpoint was saved; and 1 if a rank was lost or too many losses were not finite. Under `torchrun` every process
    calls this function. Raise `InputError` for wrong input, before anything is written.

    A resumed run uses bp and dap of `layout`, and dp follows from the current number of ranks. The layout "auto" is
    chosen at every start by short measurements of devices and links. `draw` draws the training curves into a PNG file.
    With `cuda_graphs` "auto", an NVIDIA GPU captures training steps as CUDA graphs and replays them, if all examples
    have the same shapes and no ranks share a sample; with "off", every kernel is launched.
    """
    require("train", "biotite", "lmdb", "tensorboard", action="helixfold train")
    limit_threads()
    files = RunFiles(directory=output, name=name, draw=draw)

    def work() -> int:
        has_checkpoints = bool(checkpoint_steps(files.checkpoints))
        mesh = join(device, None if layout == AUTO_LAYOUT else layout, timeout, any_dp=has_checkpoints)
        if mesh.is_first and (warning := untested_warning(properties_of(mesh.device))) is not None:
            print_message(warning)
        if layout == AUTO_LAYOUT and mesh.size > 1:
            step = workload(with_settled_dtype(config, mesh, files.checkpoints), properties_of(mesh.device))
            mesh = make_mesh(choose_layout(step, mesh, memory_per_rank(mesh)), mesh.device, timeout)
        return _train_on(
            mesh,
            store,
            config,
            files,
            held_out=held_out,
            weights=weights,
            new_parameters=new_parameters,
            workers=workers,
            cuda_graphs=cuda_graphs,
        )

    return exit_code_of(work, timeout)


def _train_on(
    mesh: Mesh,
    store: Path,
    config: TrainingConfig,
    files: RunFiles,
    *,
    held_out: Path | None,
    weights: Path | None,
    new_parameters: Sequence[str],
    workers: int | None,
    cuda_graphs: CudaGraphs,
) -> int:
    """Train or resume on the ranks of a mesh, and return an exit code."""
    chains = FeatureStore.open(store)
    names = () if held_out is None else held_out_names(held_out, chains, config)
    initial = initial_weights(weights, config.model, new_parameters) if weights is not None else None
    began_with = None if weights is None or initial is None else initial.description(printable(weights.name))
    if mesh.is_first:
        files.check()
    with StopRequest().handling_signals() as stop:
        trainer = Trainer(
            config,
            chains,
            files,
            mesh,
            held_out=names,
            initial=None if initial is None else initial.state,
            descends_from=None if weights is None else demonstration.ancestor(weights),
            began_with=began_with,
            workers=usual_workers(mesh.device) if workers is None else workers,
            cuda_graphs=cuda_graphs,
        )
        if mesh.is_first:
            files.write_config(
                trainer.config,
                {
                    "training_set": str(store),
                    "held_out": list(names),
                    "weights": None if weights is None else str(weights),
                    "began_with": None if initial is None else {"parameters": initial.taken, **initial.listing()},
                    "ranks": mesh.size,
                    "layout": str(mesh.layout),
                    "versions": {"helixfold": helixfold.__version__, "torch": torch.__version__},
                },
            )
        with unmoved_directory(files.directory) if mesh.is_first else nullcontext():
            if not trainer.run(stop):
                return stop.exit_code
        if mesh.is_first:
            print_weights(files, trainer.progress.best_step)
        return 0


def print_weights(files: RunFiles, best_step: int | None, adapter: Sequence[str] = ()) -> None:
    """Print where the weights of a finished run are, and the command that predicts with the best or else the last ones.

    `best_step` is None if no weights are the best. `adapter` are the options of `helixfold predict` if the run trained
    an adapter.
    """
    kind = "adapter" if adapter else "weights"
    if best_step is not None:
        print_summary(f"best {kind}, of step {best_step:,}: {files.weights('best')}")
    print_summary(f"last {kind}: {files.weights('last')}")
    options = adapter or ("--weights", str(files.weights("last" if best_step is None else "best")))
    print_summary(f"to predict: helixfold predict FILE {shlex.join(options)}")


def exit_code_of(work: Callable[[], int], timeout: float = TIMEOUT) -> int:
    """Call `work`, which may join other ranks, leave the ranks at its end, and return its exit code.

    Return 1, and print the error once, if a rank did not respond for `timeout` seconds or the run diverged.
    """
    try:
        with report_lost_ranks(timeout):
            return work()
    except (LostRankError, DivergedError) as error:
        if not isinstance(error, LostRankError) or error.should_report:
            print(f"helixfold: error: {error}", file=sys.stderr)
        return FAILED
    finally:
        leave()


def usual_workers(device: torch.device) -> int:
    """Return the default number of loader processes for a device: 4 for an NVIDIA GPU, else 0."""
    return 4 if device.type == "cuda" else 0


def held_out_names(path: Path, store: FeatureStore, config: TrainingConfig) -> tuple[str, ...]:
    """Read the names of held-out chains, or for a multimer model of assemblies, from the file `path`.

    Raise `InputError` for names that are not in the store.
    """
    if config.model.method == "multimer":
        return read_names(path, {entry.name for entry in store.assemblies}, "assembly")
    return read_names(path, {entry.name for entry in store.entries})
