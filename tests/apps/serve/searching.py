"""A server with a worker, both in threads of the test, that searches databases for other programs."""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.apps.serve.worker.tasks import search
from tests.apps.serve.running import Running, running


@contextmanager
def serve_searches(directory: Path, databases: Path) -> Iterator[Running]:
    """A server with its data in a directory, whose only worker searches these databases."""
    stop, options = threading.Event(), WorkerOptions(databases=databases, threads=1)
    with running(directory, offers={"models": [], "alignments": True}) as server:

        def work() -> None:
            while not stop.wait(0.05):
                if (claimed := server.claim(("alignment",))) is not None:
                    with tempfile.TemporaryDirectory() as place:
                        found = search(claimed["request"], Path(place), options)
                        server.finish(claimed, {path.name: path.read_bytes() for path in found.iterdir()})

        worker = threading.Thread(target=work)
        worker.start()
        try:
            yield server
        finally:
            stop.set()
            worker.join()
