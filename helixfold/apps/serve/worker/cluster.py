"""Predict the jobs of a service on the nodes of a cluster, with a worker for each task that its pools run at a time.

This machine claims the jobs and sends the results. The nodes only access a directory that they share with this machine;
they connect to no server and need no tokens.
"""

import json
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write, os_errors_as_input_errors
from data_pipeline.io.json_files import read_json
from helixfold.apps.cluster.engine import Engine
from helixfold.apps.cluster.estimate import memory_for_tensors
from helixfold.apps.cluster.site import Pool, read_site
from helixfold.apps.serve.http_client import HttpClient
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.apps.serve.worker.process import JobProcess, Outcome, Progress
from helixfold.apps.serve.worker.run import WorkerCall, default_name, stopped_by_signals
from helixfold.apps.serve.worker.worker import JOB_PREFIX, Worker
from helixfold.results.lock import only_run

_PROGRESS_FILE: Final = "progress.json"
_STOP_FILE: Final = "stop"
# The predicting process, which continues with the next job of this worker on the node.
_process: JobProcess | None = None


def do_on_node(kind: str, content: Mapping[str, Any], directory: Path, options: WorkerOptions) -> Outcome:
    """Run one task on a node as `JobProcess.do` does, and write its progress to `directory`.

    Stop if `stop_on_node` is called or the directory is removed. `directory` has the uploaded files of the job, and
    `content` is its request.
    """
    global _process  # noqa: PLW0603  # Parsl calls a function, and keeps the process around it
    if _process is None:
        _process = JobProcess(options)
    written_progress: dict[str, Any] = {}

    def should_continue(progress: Progress) -> bool:
        """Write changed progress to the job's directory; return whether the job may continue."""
        nonlocal written_progress
        if is_stopped(directory):
            return False
        if progress.to_dict() != written_progress:
            written_progress = progress.to_dict()
            with atomic_write(directory / _PROGRESS_FILE, sync=False) as temporary:
                temporary.write_text(json.dumps(written_progress))
        return True

    if is_stopped(directory):
        return Outcome(error="stopped")
    return _process.do(kind, content, directory, should_continue)


def read_progress(directory: Path) -> Progress | None:
    """Return the progress that a node has written for a job; None if it has written none."""
    try:
        content = read_json(directory / _PROGRESS_FILE, "it is written again")
    except InputError:
        return None
    return Progress(stages=list(content["stages"]), lines=list(content["lines"]))


def stop_on_node(directory: Path) -> None:
    """Make the node that runs a job stop, by creating a file in the job's directory."""
    (directory / _STOP_FILE).touch()


def is_stopped(directory: Path) -> bool:
    """Return whether a job must stop, because `stop_on_node` was called or its directory was removed."""
    return not directory.is_dir() or (directory / _STOP_FILE).exists()


_LOCK_FILE: Final = ".helixfold-worker.lock"
_POLLING_SECONDS: Final = 1.0
_SECONDS_TO_STOP: Final = 10.0  # for a node to notice that it should stop


@dataclass
class PoolOffers:
    """Offers of the nodes of a pool. One node computes them for all workers of the pool, which wait meanwhile.

    `outcome` is None until they have been computed; failed computations are repeated.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    outcome: Outcome | None = None


@dataclass(frozen=True)
class NodeProcess:
    """Runs the jobs of a worker on any node of a pool, with the methods of `JobProcess`."""

    engine: Engine
    pool: str
    options: WorkerOptions
    offers: PoolOffers

    def do(
        self, kind: str, content: Mapping[str, Any], directory: Path, should_continue: Callable[[Progress], bool]
    ) -> Outcome:
        """Run a job on a node as `JobProcess.do` does. Raise `PoolError` if the pool accepts no tasks.

        For the kind "offers", return the offers that another worker of the pool has computed, if any.
        """
        if kind != "offers":
            return self._do(kind, content, directory, should_continue)
        with self.offers.lock:
            if self.offers.outcome is None or self.offers.outcome.error is not None:
                self.offers.outcome = self._do(kind, content, directory, should_continue)
            return self.offers.outcome

    def stop(self) -> None:
        """Do nothing: a node is released when it has been idle for a while."""

    def _do(
        self, kind: str, content: Mapping[str, Any], directory: Path, should_continue: Callable[[Progress], bool]
    ) -> Outcome:
        """Run a task on a node of the pool, wait for it, and pass on its progress."""
        future = self.engine.submit(self.pool, do_on_node, kind, dict(content), directory, self.options)
        waiting_progress = Progress(lines=[f"waiting for a node of pool '{self.pool}'"])
        while not wait((future,), _POLLING_SECONDS).done:
            if not should_continue(read_progress(directory) or waiting_progress):
                stop_on_node(directory)
                wait((future,), _SECONDS_TO_STOP)
                return Outcome(error="stopped")
        error = future.exception()
        if error is None:
            should_continue(read_progress(directory) or waiting_progress)
            outcome: Outcome = future.result()
            return outcome
        if (pool_error := self.engine.pool_error(self.pool, error)) is not None:
            raise pool_error
        reason = printable(str(error) or type(error).__name__, 300)
        return Outcome(error=f"its node was lost: {reason}", has_died=True)


def run_on_cluster(call: WorkerCall, file: Path, directory: Path) -> None:
    """Run workers on the folding nodes of a cluster until SIGTERM or Ctrl-C, then release unfinished jobs.

    `file` describes the cluster. The files of jobs are in `directory`, which all nodes must see at the same path.
    Raise `InputError` if the file cannot be used, or if nodes or weights are unavailable.
    """
    site = read_site(file)
    if not site.folding:
        raise InputError.at(file, "has no pool of folding nodes; add a table such as [fold.gpu]")
    with os_errors_as_input_errors(directory, "cannot be used"):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with only_run(directory, _LOCK_FILE):
        for leftover in directory.glob(f"{JOB_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with Engine(site, site.folding, directory / "runs") as engine:
            workers = [worker for pool in site.folding for worker in _workers(call, pool, engine, directory)]
            _run(workers)


def _workers(call: WorkerCall, pool: Pool, engine: Engine, directory: Path) -> list[Worker]:
    """Return a worker for each task that a pool runs at a time."""
    process = NodeProcess(engine, pool.name, _pool_options(call.options, pool), PoolOffers())
    return [
        Worker(
            HttpClient(call.url, call.token),
            process,
            name=f"{call.name or default_name()}-{pool.name}-{index}",
            directory=directory,
        )
        for index in range(pool.slots)
    ]


def _pool_options(options: WorkerOptions, pool: Pool) -> WorkerOptions:
    """Return a worker's options with the device, threads and memory of a pool's nodes."""
    memory = memory_for_tensors(pool) if pool.memory is not None and not pool.gpus else None
    return replace(
        options.with_absolute_paths(),
        device=pool.device,
        threads=options.threads or pool.threads,
        memory=options.memory or memory,
    )


def _run(workers: list[Worker]) -> None:
    """Run workers in threads until a signal stops them. The first error stops all workers and is raised."""

    def stop() -> None:
        for worker in workers:
            worker.stop.set()

    with stopped_by_signals(stop), ThreadPoolExecutor(len(workers)) as threads:
        running = [threads.submit(worker.run) for worker in workers]
        wait(running, return_when=FIRST_EXCEPTION)
        stop()
    for future in running:
        future.result()
