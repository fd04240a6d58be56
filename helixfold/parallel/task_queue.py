"""Tasks that processes take from one list as they are free, and what became of each: a few numbers in a shared store.

Nobody waits for anybody here. Who ends early, or is killed, leaves the rest of the list to the others.
"""

import json
from collections.abc import Mapping, Sequence

import torch.distributed as dist


class TaskQueue:
    """One list of named tasks, in a store that all of a run's processes reach; alone, in one of this process."""

    def __init__(self, store: dist.Store | None = None) -> None:
        self._store: dist.Store = dist.HashStore() if store is None else store

    def open(self, names: Sequence[str]) -> None:
        """Say which tasks there are, and that all processes are there."""
        self._store.set("names", json.dumps(list(names)))

    @property
    def is_open(self) -> bool:
        return self._store.check(["names"])

    def take(self) -> int:
        """Return the number of the next task that nobody has; one that is no task's if there is none left."""
        return self._store.add("taken", 1) - 1

    def report(self, number: int, failure: str | None = None) -> None:
        """Report a task that was taken: done, or why it failed."""
        self._store.set(f"task {number}", json.dumps(failure))

    def failures(self) -> dict[str, str]:
        """Return why tasks failed, by name and in the list's order.

        To be asked when all processes have left: what was taken and not reported then is lost with its process.
        """
        taken, names = self._store.add("taken", 0), self._names()
        fates = dict.fromkeys(names, "its process was ended from outside, perhaps as the system was out of memory")
        fates |= dict.fromkeys(names[taken:], "no process was left to begin it")
        return _failed(fates | self._reported())

    def number_finished(self) -> int:
        """Return how many tasks were reported as done."""
        return list(self._reported().values()).count(None)

    def failures_so_far(self) -> dict[str, str]:
        """Return why tasks failed that were reported as failed, while others are still at work."""
        return _failed(self._reported())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> list[str]:
        return json.loads(self._store.get("names"))

    def _reported(self) -> dict[str, str | None]:
        """Return what was reported, by name and in the list's order: why a task failed, None of one that is done."""
        keys = {name: f"task {number}" for number, name in enumerate(self._names())}
        return {name: json.loads(self._store.get(key)) for name, key in keys.items() if self._store.check([key])}

    def leave(self, rank: int) -> None:
        """Say that a process takes no more tasks."""
        self._store.set(f"left {rank}", "")

    def have_left(self, ranks: Sequence[int]) -> bool:
        """Return whether these processes have all left."""
        return all(self._store.check([f"left {rank}"]) for rank in ranks)


def torchrun_store(environment: Mapping[str, str], start: int) -> dist.Store:
    """Return the store of the processes that `torchrun` started, which tells where it is by environment variables.

    Each start after a failure has a list of its own: `start` counts them.
    """
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    return task_store(dist.TCPStore(address, port, is_master=False), start)


def task_store(store: dist.Store, start: int = 0) -> dist.Store:
    """Return the part of a run's store that holds the list."""
    return dist.PrefixStore(f"tasks {start}", store)


def _failed(fates: Mapping[str, str | None]) -> dict[str, str]:
    return {name: failure for name, failure in fates.items() if failure is not None}
