"""Start processes on this machine without `torchrun`, to work on a task queue or to run one function.

Unlike under `torchrun`, a process of a task queue that dies ends only the processes of its group.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from queue import Empty
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from data_pipeline.io.child_processes import (
    end_with_parent,
    interruptions_postponed,
    leave_interruptions_to_parent,
    parent_has_ended,
)
from helixfold.parallel.mesh import join, leave
from helixfold.parallel.task_queue import TaskQueue, task_store

_FAILED_CODE = 1  # exit code
_TERMINATION_TIMEOUT = 20  # seconds from a termination signal until a process is killed
_HOST = "127.0.0.1"
_SPAWN = multiprocessing.get_context("spawn")
Result = TypeVar("Result")


@dataclass(frozen=True)
class LaunchResult:
    """Exit code of a run, and its task queue if the first process died before it closed the queue.

    `unclosed` is None if the first process closed the queue itself.
    """

    code: int
    unclosed: TaskQueue | None = None


def launch(
    function: Callable[[Any], int],
    argument: Any,
    *,
    count: int,
    ranks_per_task: int = 1,
    environment: Mapping[str, str] | None = None,
) -> LaunchResult:
    """Call `function(argument)` in `count` processes, which can join as under `torchrun`, and wait for them.

    The result has the exit code of the first rank. Each `ranks_per_task` consecutive ranks are a group. If a process
    ends before it has left the task queue, its group is terminated. If this happens before the queue is open, the whole
    run is terminated. A process that a signal ended is reported on stderr. `environment` has further environment
    variables of the processes.
    """
    store = dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    queue = TaskQueue(task_store(store))
    with ExitStack() as stack:
        processes: list[BaseProcess] = []
        stack.callback(_terminate, processes)
        for rank in range(count):
            # Hides warnings with stack traces of a process whose parent, which has the store, was killed.
            quiet = {"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}
            variables = {**quiet, **(environment or {}), **torchrun_environment(rank, count, store.port)}
            _start(processes, variables, _call, function, argument)
        running, first_died = set(range(count)), False
        while running:
            wait([processes[rank].sentinel for rank in running])
            for rank in sorted(running):
                code = processes[rank].exitcode
                if code is None:
                    continue
                running.remove(rank)
                if code == 0 or queue.have_left([rank]):
                    continue
                if code < 0:
                    print(f"helixfold: process {rank} was ended from outside (signal {-code})", file=sys.stderr)
                if not queue.is_open:
                    return LaunchResult(code if code > 0 else _FAILED_CODE)
                first = rank - rank % ranks_per_task
                first_died |= first == 0
                for other in range(first, first + ranks_per_task):
                    queue.leave(other)
                    processes[other].terminate()
        return LaunchResult(processes[0].exitcode or 0, queue if first_died else None)


def on_ranks(
    count: int, function: Callable[..., Result], *arguments: Any, device: str = "cpu", threads: int = 1
) -> Result:
    """Call `function(mesh, *arguments)` on `count` ranks and return the result of the first.

    The ranks are new processes, each with a number of PyTorch `threads`; more than one communicate. The function and
    its arguments must be picklable. Raise `RuntimeError` if a rank fails.
    """
    store = dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    results: "multiprocessing.Queue[Result]" = _SPAWN.Queue()
    processes: list[BaseProcess] = []
    try:
        for rank in range(count):
            variables = torchrun_environment(rank, count, store.port) if count > 1 else {}
            _start(processes, variables, _call_on_mesh, device, threads, results, function, arguments)
        while True:
            try:
                return results.get(timeout=1)
            except Empty:
                failed = [rank for rank, process in enumerate(processes) if process.exitcode not in (None, 0)]
                if failed:
                    raise RuntimeError(f"rank {failed[0]} of {count} ended with an error") from None
    finally:
        for process in _started(processes):
            process.join(10)
            process.kill()


def torchrun_environment(rank: int, count: int, port: int) -> dict[str, str]:
    """Return the environment variables that `torchrun` sets for a process with this rank out of `count`.

    `port` is the port of the store, which the launching process has.
    """
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": 0,
    }
    names = {"MASTER_ADDR": _HOST, "TORCHELASTIC_RUN_ID": "helixfold", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return names | {name: str(value) for name, value in values.items()}


def _start(
    processes: list[BaseProcess], environment: Mapping[str, str], function: Callable[..., None], *arguments: Any
) -> None:
    """Append a process to `processes` and start it with environment variables, which libraries read on import.

    It is in the list when a signal raises an exception during or just after its start, so the caller can terminate it.
    """
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        process = _SPAWN.Process(target=_run, args=(function, *arguments), daemon=False)
        processes.append(process)
        with interruptions_postponed():
            process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _started(processes: Sequence[BaseProcess]) -> list[BaseProcess]:
    """Return the processes without one whose start a signal prevented, which cannot be joined or killed."""
    return [process for process in processes if process.pid is not None]


def _run(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function in a new process, which ends with its parent and leaves Ctrl-C to it."""
    leave_interruptions_to_parent()
    end_with_parent()
    try:
        function(*arguments)
    except Exception:
        if parent_has_ended():
            os._exit(_FAILED_CODE)  # the store ended with the parent, and nobody reads the error
        raise


def _call(function: Callable[[Any], int], argument: Any) -> None:
    """Call a function and end the process with its result as the exit code."""
    sys.exit(function(argument))


def _call_on_mesh(device: str, threads: int, results: Any, function: Callable[..., Any], arguments: Any) -> None:
    """Join the other ranks and call a function with the mesh; the first rank puts its result into `results`."""
    torch.set_num_threads(threads)
    mesh = join(device)
    try:
        result = function(mesh, *arguments)
        if mesh.is_first:
            results.put(result)
        mesh.barrier()
    finally:
        leave()


def _terminate(processes: Sequence[BaseProcess]) -> None:
    """Send all started processes a termination signal, and kill those that do not end in time."""
    for process in _started(processes):
        process.terminate()
    for process in _started(processes):
        process.join(_TERMINATION_TIMEOUT)
        process.kill()
