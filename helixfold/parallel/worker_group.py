"""The processes of a run that carry out one list of tasks: each alone, or some of them together on one.

Collectives are for tensors, and whoever waits for one longer than a mesh's timeout ends. What is told here is told
through the store: the others may be busy for hours, and one that waits can be interrupted.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from data_pipeline.errors import InputError
from helixfold.execution.available import is_out_of_memory
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.update import Executor
from helixfold.parallel.mesh import TIMEOUT, Mesh, join, leave
from helixfold.parallel.parallelize import mesh_executor
from helixfold.parallel.task_queue import TaskQueue, torchrun_store

Result = TypeVar("Result")
_LONGEST_PAUSE = 0.2  # seconds between two looks at the store


class OtherRankError(RuntimeError):
    """Something went wrong on another rank that this one works with; it is said there."""


class ControlChannel:
    """Some ranks that tell each other plain data, as JSON has it; a rank alone has no need of the store."""

    def __init__(self, store: dist.Store | None = None, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self._store, self._turn = store, 0

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks, on every rank."""
        if self._store is None:
            return [value]
        self._turn += 1
        keys = [f"{self._turn} of {rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], json.dumps(value))
        wait_until(lambda: self._store is not None and self._store.check(keys))
        return [json.loads(self._store.get(key)) for key in keys]

    def run_together(self, action: Callable[[], Result]) -> Result:
        """Return what `action` returns on this rank, if it succeeds on all.

        Otherwise it fails on all: with its own error on the rank that failed first, with `MemoryError` on the others if
        that one was out of memory, and else with `OtherRankError`.
        """
        if self._store is None:
            return action()
        order = f"failed after {self._turn}"
        try:
            result = action()
        except Exception as error:  # whatever it is, the others wait to hear of it
            place = self._store.add(order, 1)
            told = {"place": place, "text": f"{type(error).__name__}: {error}", "memory": is_out_of_memory(error)}
            cause = self._cause(self.all_gather(told))
            if cause is None:
                raise
            # Not from here: the error holds the frames that hold what it needed memory for.
        else:
            cause = self._cause(self.all_gather(None))
            if cause is None:
                return result
        raise cause

    def _cause(self, told: list[Any]) -> Exception | None:
        """The error of the rank that failed first; none if that is this one, or there is none."""
        failed = [(each["place"], rank) for rank, each in enumerate(told) if each is not None]
        if not failed or min(failed)[1] == self.rank:
            return None
        first = min(failed)[1]
        text = f"{told[first]['text']} (on rank {first} of {self.size} that work together)"
        return MemoryError(text) if told[first]["memory"] else OtherRankError(text)


class WorkerGroup:
    """This process among those of a run, the group that it works on tasks with, and the list."""

    def __init__(self, mesh: Mesh, store: dist.Store | None = None, timeout: float = TIMEOUT) -> None:
        self.mesh, self.queue, self._timeout = mesh, TaskQueue(store), timeout
        self.world, self.group = ControlChannel(), ControlChannel()
        if store is not None and mesh.size > 1:
            self.world = ControlChannel(dist.PrefixStore("world", store), mesh.rank, mesh.size)
        if store is not None and mesh.sample.size > 1:
            named = dist.PrefixStore(f"group {mesh.data.rank}", store)
            self.group = ControlChannel(named, mesh.sample.rank, mesh.sample.size)

    @classmethod
    def alone(cls, device: torch.device | str = "cpu") -> "WorkerGroup":
        return cls(Mesh.alone(device))

    @property
    def is_leader(self) -> bool:
        """Return whether this is the rank of its group that writes what becomes of a task."""
        return self.group.rank == 0

    def take_tasks(self, count: int) -> Iterator[int]:
        """Yield numbers of tasks for this rank's group, as long as any of all `count` are left.

        The group's other ranks get the numbers that its first rank takes.
        """
        while True:
            number = self.group.all_gather(self.queue.take() if self.is_leader else None)[0]
            if number >= count:
                return
            yield number

    def leave(self) -> None:
        """Say that this rank takes no more tasks; the first one then waits for all others to say so."""
        self.queue.leave(self.mesh.rank)
        if self.mesh.is_first:
            wait_until(lambda: self.queue.have_left(range(self.mesh.size)))

    def run_on_group(self, within: Whole | Slabs, action: Callable[[Executor], Result]) -> Result:
        """Return what `action` makes with an executor of the whole group, in which each rank works as `within` does.

        Where one rank is out of memory, all are, and the next attempt finds them ready. Those who waited for it in a
        collective hear of it when their timeout ends.
        """
        try:
            return self.group.run_together(lambda: action(mesh_executor(self.mesh, within)))
        except Exception:
            self._connect_anew()
            raise

    def _connect_anew(self) -> None:
        """Make the group's collectives usable again after one in which a rank was missing; on all of its ranks."""
        axial = self.mesh.axial
        if axial.size == 1:
            return
        ranks = dist.get_process_group_ranks(axial.handle)
        # The old one is kept: the names of groups that are gone would be given again, with their addresses.
        timeout = timedelta(seconds=self._timeout)
        handle = dist.new_group(ranks, timeout=timeout, use_local_synchronization=True)
        self.mesh = replace(self.mesh, axial=replace(axial, handle=handle))


@contextmanager
def join_workers(device: str = "auto", ranks_per_task: int = 1, timeout: float = TIMEOUT) -> Iterator[WorkerGroup]:
    """Meet the other processes of the run, in groups of so many ranks; alone if this process was started alone.

    What cannot be divided so is an `InputError` on the first rank, and an `OtherRankError` on the others.
    """
    if not dist.is_torchelastic_launched():
        if ranks_per_task > 1:
            raise InputError(
                f"{ranks_per_task} processes are to work on each target and this one is alone; start more of them "
                "with --devices, or with torchrun"
            )
        yield WorkerGroup(join(device))
        return
    try:
        try:
            mesh = join(device, f"dap={ranks_per_task}", timeout)
        except InputError as error:
            if int(os.environ["RANK"]) > 0:
                raise OtherRankError(str(error)) from error
            raise
        start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        yield WorkerGroup(mesh, torchrun_store(os.environ, start), timeout)
    finally:
        leave()


def local_world_size() -> int:
    """Return how many processes of the run are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if dist.is_torchelastic_launched() else 1


def wait_until(happened: Callable[[], bool]) -> None:
    """Look again and again, which can be interrupted, as waiting for the store itself cannot be."""
    pause = 0.001
    while not happened():
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
