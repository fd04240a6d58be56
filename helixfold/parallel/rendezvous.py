"""Rendezvous of the processes of one attempt at a run, safe from what an earlier attempt left in the store.

`torchrun` uses one store for all attempts. It still holds the addresses of processes that have ended, and a process
that reads one of these waits in vain.
"""

import json
import time
from datetime import timedelta
from uuid import uuid4

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

_POLL = 0.05  # seconds


def rendezvous_store(timeout: timedelta) -> tuple[Store, int, int]:
    """Return a store that only the processes of this attempt share, this process's rank, and the world size.

    The first rank announces the processes that it sees, under a new name. A process that finds another one announced in
    its place waits for the next announcement. Raise `DistStoreError` if not all processes join in time.
    """
    store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
    deadline = time.monotonic() + timeout.total_seconds()
    own = uuid4().hex
    store.set(f"here/{rank}", own)
    name = _announce(store, size, deadline) if rank == 0 else _answer(store, rank, own, deadline)
    return PrefixStore(name, store), rank, size


def _announce(store: Store, size: int, deadline: float) -> str:
    announced: list[str] = []
    name = ""
    while True:
        here = [place.decode() for place in store.multi_get([f"here/{rank}" for rank in range(size)])]
        if here != announced:
            name, announced = uuid4().hex, here
            store.set("call", json.dumps({"name": name, "ranks": announced}))
        answers = [f"answer/{rank}" for rank in range(1, size)]
        if store.check(answers) and all(answer.decode() == name for answer in store.multi_get(answers)):
            store.set("begin", name)
            return name
        _wait(deadline)


def _answer(store: Store, rank: int, own: str, deadline: float) -> str:
    while True:
        call = json.loads(store.get("call"))
        if call["ranks"][rank : rank + 1] == [own]:
            store.set(f"answer/{rank}", call["name"])
            if store.check(["begin"]) and store.get("begin").decode() == call["name"]:
                return str(call["name"])
        _wait(deadline)


def _wait(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise DistStoreError("some rank did not come in time")
    time.sleep(_POLL)
