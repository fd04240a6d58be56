"""Measure how long submissions take while workers fold.

helixfold serve --workers 2 --models tiny --max-jobs 5000 --max-requests 100000
python -m tests.apps.serve.load http://127.0.0.1:8000 [CLIENTS] [JOBS OF EACH]
"""

import sys
import time

import numpy as np

from helixfold.apps.serve.client import Client
from tests.apps.serve.submitters import submit_all


def main(url: str, clients: int = 20, each: int = 50) -> None:
    """Print the median, the 99th percentile and the longest time of a submission."""
    start = time.perf_counter()
    ids, seconds, threads = submit_all(url, clients, each)
    for thread in threads:
        thread.join()
    times = 1000 * np.array(seconds)
    assert len(set(ids)) == clients * each
    with Client(url) as client:
        service = client.service()
    print(
        f"{len(ids):,} jobs of {clients} clients in {time.perf_counter() - start:.1f} s: "
        f"median {np.median(times):.0f} ms, "
        f"99 of 100 within {np.percentile(times, 99):.0f} ms, longest {times.max():.0f} ms; "
        f"{service['running']} run meanwhile, {service['workers']} workers are there"
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
