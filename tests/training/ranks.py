"""Training processes to kill: real ones that begin at once, forked from a server that has everything imported."""

import gc
import multiprocessing
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from jaxtyping import config
from torch import Tensor
from torch.distributed import TCPStore

from helixfold.cli import main
from helixfold.parallel.launch import torchrun_environment
from helixfold.parallel.mesh import Mesh, join, leave
from helixfold.training.checkpoint import Checkpoints

SERVER = multiprocessing.get_context("forkserver")
# What `helixfold predict` and `helixfold train` import when they run.
COMMANDS = tuple(
    f"helixfold.{name}"
    for name in (
        "cli.app",
        "cli.predict",
        "apps.predict.devices",
        "apps.predict.run",
        "cli.train",
        "training.run",
        "cli.finetune",
        "training.finetune.run",
        "training.finetune.task_command",
        "cli.design",
        "apps.design.run",
        "apps.design.start",
    )
)
# And what they import in the midst of their work, which would take each process a second.
LATE = (
    *(f"helixfold.ops.cpu.{name}" for name in ("attention", "self_attention", "global_attention", "invariant_point")),
    *(f"helixfold.ops.cpu.{name}" for name in ("layer_norm", "linear", "outer_product", "transition", "triangle")),
    *("data_pipeline.search.hmmsearch", "data_pipeline.io.http", "data_pipeline.search.jackhmmer"),
    *("helixfold.report.training_curves", "matplotlib.figure", "matplotlib.ticker", "einops._torch_specific"),
    *(
        "fastapi",
        "uvicorn",
        "helixfold.apps.serve.run",
        "helixfold.apps.serve.worker.tasks",
        "tests.apps.serve.processes",
    ),
    *("scipy.optimize", "torch._dynamo", "torch.utils._device"),
    *("tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer"),
)
SERVER.set_forkserver_preload(
    ["tests.support.hooked", "tests.training.ranks", *COMMANDS, *LATE, "tests.support.checks_made"]
)


class Ranks:
    """Processes that run one function together, as `torchrun` would start them; what they print goes to a file."""

    def __init__(self, count: int, output: Path, function: Callable[..., int | None], *arguments: Any) -> None:
        # As under `torchrun`, the process that starts the ranks has the store at which they meet.
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.output = output
        self.processes: list[BaseProcess] = [
            SERVER.Process(target=_run, args=(_environment(rank, count, self._store.port), output, function, arguments))
            for rank in range(count)
        ]
        for process in self.processes:
            process.start()

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(self.processes)

    def wait(self, seconds: float) -> bool:
        """Whether all have ended within that time."""
        multiprocessing.connection.wait([process.sentinel for process in self.processes], seconds)
        return all(process.exitcode is not None for process in self.processes)

    def finish(self, seconds: float = 120) -> list[int | None]:
        """Exit codes, once all have ended."""
        for process in self.processes:
            process.join(seconds)
        return [process.exitcode for process in self.processes]

    def kill(self, processes: Sequence[BaseProcess]) -> None:
        """SIGKILL."""
        for process in processes:
            process.kill()
        for process in processes:
            process.join()

    def printed(self) -> str:
        return self.output.read_text()


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    """What `torchrun` tells a process; nothing to one that is alone."""
    return torchrun_environment(rank, count, port) if count > 1 else {}


def _run(
    environment: dict[str, str], output: Path, function: Callable[..., int | None], arguments: tuple[Any, ...]
) -> None:
    with output.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    os.environ |= environment
    # What was imported before the fork need not be looked through for garbage, and shapes need one rank's check.
    gc.freeze()
    if environment.get("RANK", "0") != "0":
        config.update("jaxtyping_disable", True)
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    sys.exit(function(*arguments))


def train(arguments: Sequence[str]) -> int:
    """The command `helixfold train`, whose shapes are checked where it is run in the tests' own process."""
    config.update("jaxtyping_disable", True)
    return main.main(["train", *arguments])


def finetune(arguments: Sequence[str]) -> int:
    """The command `helixfold finetune`, in the same way."""
    config.update("jaxtyping_disable", True)
    return main.main(["finetune", *arguments])


def numbers() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "masters": torch.randn(100, generator=generator),
        "zeros": torch.tensor([0.0, -0.0, float("nan")]),
        "working": torch.randn(7, generator=generator).bfloat16(),
        "layers": torch.randn(3, 2, generator=generator).T,
        "flags": torch.tensor([True, False]),
        "updates": torch.tensor(8),
        "empty": torch.zeros(0),
    }


def _bits(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: tensor.reshape(-1).view(torch.uint8).tolist() for name, tensor in tensors.items()}


def save_on_ranks(directory: Path) -> None:
    """Only the first rank writes, and what the others have is not asked for."""
    with ExitStack() as stack:
        mesh = join("cpu")
        stack.callback(leave)
        own = directory if mesh.is_first else directory / "nowhere"
        checkpoints = Checkpoints(own, mesh=mesh)
        checkpoints.save(4, numbers() if mesh.is_first else {}, {"rank": mesh.rank})
        checkpoints.finish()
        checkpoints.mark_best(4)
        assert (checkpoints.latest(), checkpoints.best()) == ((4, 4) if mesh.is_first else (None, None))
        assert own.exists() == mesh.is_first


def restore_on_ranks(directory: Path) -> None:
    """Every rank gets the same bits, though only the first is told where the checkpoints are."""
    with ExitStack() as stack:
        mesh = join("cpu")
        stack.callback(leave)
        tensors = {name: torch.ones_like(tensor) for name, tensor in numbers().items()}
        own = directory if mesh.is_first else directory / "nowhere"
        restored = Checkpoints(own, mesh=mesh).restore(tensors)
        assert restored is not None
        assert (restored.step, restored.record) == (4, {"rank": 0})
        assert _bits(tensors) == _bits(numbers())
        assert own.exists() == mesh.is_first


def save_into_small_files(directory: Path) -> None:
    """Save more than any file of this process may hold, and print the error."""
    checkpoints = Checkpoints(directory, mesh=Mesh.alone())
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    checkpoints.save(1, {"masters": torch.zeros(10_000)}, {})
    try:
        checkpoints.finish()
    except ValueError as error:
        print(error)


def hold(directory: Path) -> None:
    """Keep a directory until killed."""
    opened = Checkpoints(directory, mesh=Mesh.alone())
    print("open", opened.latest(), flush=True)
    time.sleep(120)


def mistake_on_ranks(directory: Path) -> None:
    """The first rank's mistake is everyone's: no rank waits for another that has gone."""
    with ExitStack() as stack:
        stack.callback(leave)
        mesh = join("cpu")
        try:
            Checkpoints(directory, mesh=mesh).restore({"other": torch.zeros(2)})
        except ValueError as error:
            print(error)
            sys.exit(2)
