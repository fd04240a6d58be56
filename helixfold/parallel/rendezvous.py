"""Where the processes of one attempt at a run find each other, and nothing that an earlier attempt left behind.

`torchrun` keeps one store for all attempts. Addresses of processes that have ended stand there until others take their
place, and whoever reads them sooner waits for the dead.
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
    """A store that only the processes of now share, this one's rank, and how many they are.

    The first rank calls all those that it sees, under a new name. One that is not as it was called has not been seen
    yet, and is called with the others again. `DistStoreError` if not all come in time.
    """
    store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
    deadline = time.monotonic() + timeout.total_seconds()
    own = uuid4().hex
    store.set(f"here/{rank}", own)
    name = _call(store, size, deadline) if rank == 0 else _answer(store, rank, own, deadline)
    return PrefixStore(name, store), rank, size


def _call(store: Store, size: int, deadline: float) -> str:
    called: list[str] = []
    name = ""
    while True:
        here = [place.decode() for place in store.multi_get([f"here/{rank}" for rank in range(size)])]
        if here != called:
            name, called = uuid4().hex, here
            store.set("call", json.dumps({"name": name, "ranks": called}))
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
