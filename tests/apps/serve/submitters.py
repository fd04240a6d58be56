"""Many clients that submit jobs at once."""

import threading
import time

from helixfold.apps.serve.client import Client


def submit_all(url: str, clients: int, each: int) -> tuple[list[str], list[float], list[threading.Thread]]:
    """Submit jobs from many clients at once; the ids and the seconds fill while the threads run."""
    ids: list[str] = []
    seconds: list[float] = []

    def submit(client_number: int) -> None:
        with Client(url) as client:
            client.service()
            for number in range(each):
                key, start = f"{client_number}-{number}", time.perf_counter()
                ids.append(client.submit("MKTAYIAKQR", name=key, idempotency_key=key)["id"])
                seconds.append(time.perf_counter() - start)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    return ids, seconds, threads
