"""Many clients that submit jobs at once."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from helixfold.apps.serve.client import Client, ServerUnreachableError


def submit_all(
    url: str, clients: int, each: int, is_stable: Callable[[], bool] = lambda: True
) -> tuple[list[str], list[float], list[threading.Thread]]:
    """Submit jobs from many clients at once; the ids and the seconds fill while the threads run.

    Clients try again as long as the server is not stable, because it may be killed during each of their attempts.
    """
    ids: list[str] = []
    seconds: list[float] = []

    def answer(request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        while True:
            is_last = is_stable()
            try:
                return request()
            except ServerUnreachableError:
                if is_last:
                    raise

    def submit(client_number: int) -> None:
        with Client(url) as client:
            answer(client.service)
            for number in range(each):
                key, start = f"{client_number}-{number}", time.perf_counter()
                job = answer(partial(client.submit, "MKTAYIAKQR", name=key, idempotency_key=key))
                ids.append(job["id"])
                seconds.append(time.perf_counter() - start)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    return ids, seconds, threads
