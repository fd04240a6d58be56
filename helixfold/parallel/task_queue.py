"""Queue of tasks in a store that all processes of a run share, with the outcome of each task.

Processes take tasks as they become free and never wait for each other. If one ends early or is killed, the others take
the remaining tasks.
"""

import json
from collections.abc import Mapping, Sequence

import torch.distributed as dist


class TaskQueue:
    """Queue of named tasks in a shared store; without a store, in the memory of this process.

    Tasks are taken in lots of one or more consecutive tasks.
    """

    def __init__(self, store: dist.Store | None = None) -> None:
        self._store: dist.Store = dist.HashStore() if store is None else store

    def open(self, names: Sequence[str], lots: Sequence[int] | None = None) -> None:
        """Set the names of the tasks and the number of tasks in each lot (by default 1).

        Call this after all processes have joined.
        """
        self._store.set("lots", json.dumps([1] * len(names) if lots is None else list(lots)))
        self._store.set("names", json.dumps(list(names)))

    @property
    def is_open(self) -> bool:
        """Whether `open` was called."""
        return self._store.check(["names"])

    def take(self) -> int:
        """Take the next lot and return its index among the lots, which is out of range if no lot is left."""
        return self._store.add("taken", 1) - 1

    def report(self, index: int, failure: str | None = None) -> None:
        """Record that the task at an index (not a lot) is finished, or with `failure` why it failed."""
        self._store.set(f"task {index}", json.dumps(failure))

    def failures(self) -> dict[str, str]:
        """Return the reason of each failed task, by name and in the order of the queue.

        Call this when all processes have left: tasks that were taken but not reported count as lost with their process.
        """
        lots, names = json.loads(self._store.get("lots")), self._names()
        num_taken = sum(lots[: self._store.add("taken", 0)])
        outcomes = dict.fromkeys(names, "its process was ended from outside, perhaps as the system was out of memory")
        outcomes |= dict.fromkeys(names[num_taken:], "no process was left to begin it")
        return _failed(outcomes | self._reported())

    def number_finished(self) -> int:
        """Return the number of tasks that were reported as finished."""
        return list(self._reported().values()).count(None)

    def failures_so_far(self) -> dict[str, str]:
        """Return the reasons of the failures so far, by name, while other tasks are still running."""
        return _failed(self._reported())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> list[str]:
        """Return the names of all tasks."""
        return json.loads(self._store.get("names"))

    def _reported(self) -> dict[str, str | None]:
        """Return the reported outcomes by name, in the order of the queue: the reason of a failure, or None."""
        keys = {name: f"task {index}" for index, name in enumerate(self._names())}
        return {name: json.loads(self._store.get(key)) for name, key in keys.items() if self._store.check([key])}

    def leave(self, rank: int) -> None:
        """Record that a process takes no more tasks."""
        self._store.set(f"left {rank}", "")

    def have_left(self, ranks: Sequence[int]) -> bool:
        """Return whether all of these processes have left the queue."""
        return all(self._store.check([f"left {rank}"]) for rank in ranks)


def torchrun_store(environment: Mapping[str, str], start: int) -> dist.Store:
    """Return the task store of the processes that `torchrun` started, from its environment variables.

    `start` is the number of restarts after failures; each restart has its own store.
    """
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    return task_store(dist.TCPStore(address, port, is_master=False), start)


def task_store(store: dist.Store, start: int = 0) -> dist.Store:
    """Return the part of a run's store for the task queue.

    `start` is the number of restarts after failures; each restart has its own queue.
    """
    return dist.PrefixStore(f"tasks {start}", store)


def _failed(outcomes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the outcomes that are reasons of failures, by name."""
    return {name: failure for name, failure in outcomes.items() if failure is not None}
