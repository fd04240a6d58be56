"""Processes that meet do not take those for present that were there before them."""

import json
import threading
import time

import torch.distributed as dist

from helixfold.parallel import mesh


def test_what_an_earlier_attempt_left_is_not_taken_for_now() -> None:
    store = dist.HashStore()
    for key, value in {"here/0": "a", "here/1": "b", "answer/1": "old", "begin": "old"}.items():
        store.set(key, value)
    store.set("call", json.dumps({"name": "old", "ranks": ["a", "b"]}))
    deadline = time.monotonic() + 120
    names: dict[int, str] = {}

    def come(rank: int, own: str) -> None:
        store.set(f"here/{rank}", own)
        if rank == 0:
            names[rank] = mesh._announce(store, 2, deadline)
        else:
            names[rank] = mesh._answer(store, rank, own, deadline)

    first = threading.Thread(target=come, args=(0, "c"))
    first.start()
    while json.loads(store.get("call"))["ranks"] != ["c", "b"]:  # it calls the one that is no more
        assert time.monotonic() < deadline
        time.sleep(0.01)
    come(1, "d")
    first.join()
    assert names[0] == names[1] != "old"
    assert json.loads(store.get("call"))["ranks"] == ["c", "d"]
