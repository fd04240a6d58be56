"""Worker groups: ranks that take tasks from one queue and compute each task together.

Ranks exchange plain data through the store instead of collectives, because other ranks may be busy for hours, longer
than the timeout of any collective, and waiting for the store can be interrupted.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from data_pipeline.io.errors import InputError
from helixfold.execution.available import is_out_of_memory
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.update import Executor
from helixfold.parallel.mesh import TIMEOUT, Mesh, join, leave
from helixfold.parallel.parallelize import mesh_executor
from helixfold.parallel.task_queue import TaskQueue, torchrun_store

_MAX_POLL_INTERVAL = 0.2  # seconds


class OtherRankError(RuntimeError):
    """Another rank of the group failed and reports the error."""


class ControlChannel:
    """Channel for JSON-compatible data between the ranks of a group; a single rank needs no store.

    `rank` is the index of this process in the group, and `size` the number of ranks in it.
    """

    def __init__(self, store: dist.Store | None = None, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self._store, self._round = store, 0

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks in order, on every rank."""
        if self._store is None:
            return [value]
        self._round += 1
        keys = [f"{self._round} of {rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], json.dumps(value))
        wait_until(lambda: self._store is not None and self._store.check(keys))
        return [json.loads(self._store.get(key)) for key in keys]

    def send(self, value: Any) -> None:
        """Send a value from the first rank to all others, which must call `receive`."""
        if self._store is not None:
            self._round += 1
            self._store.set(f"sent {self._round}", json.dumps(value))

    def receive(self) -> Any:
        """Wait until the first rank sends a value, and return it."""
        assert self._store is not None
        self._round += 1
        key = f"sent {self._round}"
        wait_until(lambda: self._store is not None and self._store.check([key]))
        return json.loads(self._store.get(key))

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Context on the first rank that sends None to the ranks waiting in `receive` if the block fails."""
        try:
            yield
        except BaseException:
            self.send(None)
            raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context that makes a block of code fail on all ranks if it fails on one.

        The rank that failed first raises its own error. The others raise `MemoryError` if that rank ran out of memory,
        else `OtherRankError`.
        """
        if self._store is None:
            yield
            return
        failures_key = f"failed after {self._round}"
        try:
            yield
        except Exception as error:  # the other ranks wait for a report of any error
            order = self._store.add(failures_key, 1)
            report = {"order": order, "text": f"{type(error).__name__}: {error}", "memory": is_out_of_memory(error)}
            cause = self._cause(self.all_gather(report))
            if cause is None:
                raise
            # Raised below, because this error keeps frames alive, and with them the tensors.
        else:
            cause = self._cause(self.all_gather(None))
        if cause is not None:
            raise cause

    def _cause(self, reports: list[Any]) -> Exception | None:
        """Return the error of the rank that failed first; None if this rank did, or if no rank failed."""
        failed = [(report["order"], rank) for rank, report in enumerate(reports) if report is not None]
        if not failed or min(failed)[1] == self.rank:
            return None
        first = min(failed)[1]
        text = f"{reports[first]['text']} (on rank {first} of the {self.size} ranks of this task)"
        return MemoryError(text) if reports[first]["memory"] else OtherRankError(text)


class WorkerGroup:
    """Group of ranks that compute tasks together, and the queue that all groups of a run share.

    `world` is the control channel of all ranks of the run, and `group` the control channel of this group. `timeout` is
    the timeout in seconds of an axial group that replaces one in which a rank failed.
    """

    def __init__(self, mesh: Mesh, store: dist.Store | None = None, timeout: float = TIMEOUT) -> None:
        self.mesh, self.queue, self._timeout = mesh, TaskQueue(store), timeout
        self.world, self.group = ControlChannel(), ControlChannel()
        if store is not None and mesh.size > 1:
            self.world = ControlChannel(dist.PrefixStore("world", store), mesh.rank, mesh.size)
        if store is not None and mesh.sample.size > 1:
            group_store = dist.PrefixStore(f"group {mesh.data.rank}", store)
            self.group = ControlChannel(group_store, mesh.sample.rank, mesh.sample.size)

    @classmethod
    def alone(cls, device: torch.device | str = "cpu") -> "WorkerGroup":
        """Return a group of this process only, with its own queue."""
        return cls(Mesh.alone(device))

    @property
    def is_leader(self) -> bool:
        """Whether this is the first rank of its group, which takes tasks and writes their results."""
        return self.group.rank == 0

    def take_tasks(self, count: int) -> Iterator[int]:
        """Take lots of tasks from the queue and yield their indices, until all `count` lots are taken by some group."""
        while (index := self.queue.take()) < count:
            yield index

    def leave(self) -> None:
        """Record that this rank takes no more tasks; the first rank then waits for all others."""
        self.queue.leave(self.mesh.rank)
        if self.mesh.is_first:
            wait_until(lambda: self.queue.have_left(range(self.mesh.size)))

    @contextmanager
    def executor_on_group(self, within: Whole | Slabs) -> Iterator[Executor]:
        """Context with an executor over the whole group, which uses `within` on each rank.

        If the block fails on one rank, it fails on all, and the group can make another attempt. Ranks that wait for the
        failed one in a collective notice when the collective times out.
        """
        try:
            with self.group.together():
                yield mesh_executor(self.mesh, within)
        except Exception:
            self._renew_axial_group()
            raise

    def _renew_axial_group(self) -> None:
        """Replace the axial process group, which is unusable after a rank missed a collective, on all its ranks."""
        axial = self.mesh.axial
        if axial.size == 1:
            return
        ranks = dist.get_process_group_ranks(axial.handle)
        # The old group is not destroyed, because its name with stale addresses would be reused.
        timeout = timedelta(seconds=self._timeout)
        handle = dist.new_group(ranks, timeout=timeout, use_local_synchronization=True)
        self.mesh = replace(self.mesh, axial=replace(axial, handle=handle))


@contextmanager
def join_workers(device: str = "auto", ranks_per_task: int = 1, timeout: float = TIMEOUT) -> Iterator[WorkerGroup]:
    """Context that joins the processes of `torchrun`, in groups of `ranks_per_task`; without it, a group of one.

    The process groups are destroyed at its end. `timeout` is the timeout of collectives in seconds. If `ranks_per_task`
    does not divide the number of ranks, raise `InputError` on the first rank and `OtherRankError` on the others.
    """
    if not dist.is_torchelastic_launched():
        if ranks_per_task > 1:
            raise InputError(
                f"{ranks_per_task} processes are needed for each target, got 1; start more of them with --devices, "
                "or with torchrun"
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


def is_under_torchrun() -> bool:
    """Return whether `torchrun` started this process."""
    return dist.is_torchelastic_launched()


def local_world_size() -> int:
    """Return the number of processes of this run on this machine; 1 without `torchrun`."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if dist.is_torchelastic_launched() else 1


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until a condition is true; unlike a wait of the store, this can be interrupted."""
    pause = 0.001
    while not condition():
        time.sleep(pause)
        pause = min(2 * pause, _MAX_POLL_INTERVAL)
