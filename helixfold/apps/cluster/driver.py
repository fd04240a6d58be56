"""Run a batch on the pools of a cluster: submit tasks whose workers claim targets, and report the progress."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_pipeline.io.claims import Claims
from data_pipeline.io.errors import printable
from data_pipeline.io.files import require_unmoved
from helixfold.apps.cluster.batch import ClusterBatch
from helixfold.apps.cluster.engine import Engine, PoolError
from helixfold.apps.cluster.progress import BatchStatus, PoolStatus
from helixfold.apps.cluster.schedule import PoolEstimate, Schedule
from helixfold.apps.cluster.worker import Candidate, Standing, Work, work
from helixfold.apps.options import PredictOptions, SearchOptions
from helixfold.apps.predict.runner import write_pages
from helixfold.apps.search import search_claim
from helixfold.results.failures import write_failures
from helixfold.results.file_table import CLUSTER
from helixfold.runtime.standard_streams import print_note

# Maximum numbers of successive tasks of a pool that end without any work: with an error, and with a lost worker.
_MAX_FAILED_TASKS, _MAX_LOST_TASKS = 3, 10
_MAX_CANDIDATES = 5_000  # for each task
# The part of its share of the remaining work that a worker claims at a time. It is below 1 so that all workers end at
# about the same time, and smaller for searches because folding workers wait for them.
_LOT_SHARE_OF_SEARCHES, _LOT_SHARE_OF_FOLDING = 0.125, 0.5
# Maximum shares of the driver's time for reading the claims of all open targets, and for writing pages, which have a
# line for every target.
_MAX_TIME_SHARE_OF_CLAIMS, _MAX_TIME_SHARE_OF_PAGES = 0.1, 0.05
_SECONDS_BETWEEN_CLAIMS, _SECONDS_BETWEEN_STATUS, _SECONDS_BETWEEN_PAGES = 1.0, 2.0, 30.0
_SECONDS_BETWEEN_LINES = 600.0  # without a terminal, which shows a progress bar


@dataclass
class _Pool:
    """A pool, the unclaimed targets for its workers, and its tasks by the files in which they report."""

    estimate: PoolEstimate
    options: PredictOptions | SearchOptions
    free: list[int] = field(default_factory=list)
    tasks: dict[Path, "Future[Any]"] = field(default_factory=dict)
    lots: dict[Path, int] = field(default_factory=dict)  # numbers of targets that tasks have claimed
    idle_tasks: int = 0  # successive tasks that ended without any work


class Driver:
    """Runs a batch: keeps each worker of the pools busy with a task, and follows the targets by their claims."""

    def __init__(self, batch: ClusterBatch, schedule: Schedule, claims: Claims) -> None:
        self._batch, self._schedule, self._claims = batch, schedule, claims
        self._used_pools = [pool for pool in batch.site.pools if schedule.search is not None or pool.name != "search"]
        estimates = {pool.name: pool for pool in (schedule.search, *schedule.folding) if pool is not None}
        self._pools = {
            pool.name: _Pool(
                estimates[pool.name], (batch.search_options if pool.name == "search" else batch.fold_options)(pool)
            )
            for pool in self._used_pools
        }
        self._lots_directory = CLUSTER.path(batch.output) / "lots"
        self._task_count = 0
        self._count_nodes: Callable[[], Any] = dict
        self._next_times = dict.fromkeys(("look", "status", "pages", "line"), 0.0)
        self._start_time, self._estimated_seconds = time.monotonic(), schedule.seconds()
        self._written_failures = 0  # number of failures in failures.json
        self._status_line = ""  # the last one

    def run(self) -> None:
        """Run the batch until no target is open. Raise `PoolError` if a pool's tasks cannot run."""
        batch, schedule = self._batch, self._schedule
        shutil.rmtree(self._lots_directory, ignore_errors=True)
        self._lots_directory.mkdir(parents=True, exist_ok=True)
        self.write_status("running")  # to start the engine takes seconds
        bar_format = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"
        with (
            Engine(batch.site, self._used_pools, CLUSTER.path(batch.output) / "runs") as engine,
            tqdm(total=len(batch.targets), desc="targets", bar_format=bar_format, disable=None) as bar,
            self._interruption_in_status(),
        ):
            self._count_nodes = engine.nodes
            while schedule.open:
                if self._run_if_due("look", _SECONDS_BETWEEN_CLAIMS, _MAX_TIME_SHARE_OF_CLAIMS, self._read_claims):
                    for pool in self._pools.values():
                        self._submit(engine, pool)
                self._run_if_due("status", _SECONDS_BETWEEN_STATUS, 1.0, self._report)
                bar.n = len(batch.targets) - len(schedule.open)
                bar.set_postfix_str(self._status_line)
                tasks = [task for pool in self._pools.values() for task in pool.tasks.values()]
                if not tasks:
                    time.sleep(_SECONDS_BETWEEN_CLAIMS)
                wait(tasks, _SECONDS_BETWEEN_CLAIMS, "FIRST_COMPLETED")
                for pool in self._pools.values():
                    for file in [file for file, task in pool.tasks.items() if task.done()]:
                        self._end(engine, pool, file)
        shutil.rmtree(self._lots_directory, ignore_errors=True)

    def write_status(self, state: str) -> BatchStatus:
        """Write the status of the batch to its files, and return it. `state` is running, ended or interrupted."""
        schedule, nodes = self._schedule, self._count_nodes()
        in_progress = {name: sum(pool.lots.values()) for name, pool in self._pools.items()}
        searching = in_progress.get("search", 0)
        share_left = schedule.seconds() / self._estimated_seconds if self._estimated_seconds else 0.0
        elapsed = time.monotonic() - self._start_time
        status = BatchStatus(
            time=time.time(),
            state=state,
            targets=len(self._batch.targets) + len(self._batch.invalid),
            to_search=max(0, len(schedule.to_search) - searching),
            to_fold=max(0, len(schedule.open) - len(schedule.to_search) - sum(in_progress.values()) + searching),
            finished=schedule.finished + len(schedule.already_finished),
            failed=len(schedule.failures) + len(self._batch.invalid),
            seconds_left=elapsed * share_left / (1 - share_left) if state == "running" and share_left < 1 else None,
            pools=[
                PoolStatus(
                    name=name,
                    running=nodes.get(name, (0, 0))[0],
                    pending=nodes.get(name, (0, 0))[1],
                    tasks=len(pool.tasks),
                    targets=in_progress[name],
                )
                for name, pool in self._pools.items()
            ],
        )
        with suppress(OSError):  # the batch continues, for example if the disk is full
            status.write(self._batch.output)
        return status

    @contextmanager
    def _interruption_in_status(self) -> Iterator[None]:
        """Write the status "interrupted" if the context ends with an error or an interruption."""
        try:
            yield
        except BaseException:
            self.write_status("interrupted")
            raise

    def _read_claims(self) -> None:
        """Read which targets have ended, which are free, and how many the tasks have claimed."""
        require_unmoved(self._batch.output)
        schedule = self._schedule
        for pool in self._pools.values():
            pool.free = []
            for file in pool.tasks:
                with suppress(OSError, ValueError):
                    pool.lots[file] = int(file.read_text())
        for target in list(schedule.open):
            standing = Standing.of(self._claim(target), self._claims)
            if standing.state == "ended":
                schedule.end(target, standing.failure)
                if standing.failure is not None:
                    line = f"{self._batch.names[target]}: failed: {printable(standing.failure, 1000)}"
                    tqdm.write(line, file=sys.stderr)
                    continue
                standing = Standing.of(self._claim(target), self._claims)  # after its search, a target is folded
            if standing.state == "open" and target in schedule.open:
                for estimate in schedule.pools_for(target):
                    if not standing.needs_max_memory or self._has_max_memory(estimate):
                        self._pools[estimate.name].free.append(target)

    def _submit(self, engine: Engine, pool: _Pool) -> None:
        """Submit tasks for the idle workers of a pool, if more targets are free than its starting tasks will claim."""
        batch, estimate = self._batch, pool.estimate
        starting_count = len(pool.tasks) - len(pool.lots)
        count = min(estimate.slots - len(pool.tasks), len(pool.free) - starting_count)
        if count <= 0:
            return
        share = _LOT_SHARE_OF_SEARCHES / estimate.slots
        if estimate is not self._schedule.search:
            share = _LOT_SHARE_OF_FOLDING / sum(each.slots for each in self._schedule.folding)
        lengths = {target: batch.residues[target] for target in pool.free[:_MAX_CANDIDATES]}
        candidates = [
            Candidate(target=batch.targets[target], claim=self._claim(target), seconds=estimate.seconds(length))
            for target, length in lengths.items()
        ]
        for _ in range(count):
            self._task_count += 1
            file = self._lots_directory / f"{os.getpid()}-{self._task_count}"
            task = Work(
                working_directory=Path.cwd(),
                output=batch.output,
                options=pool.options,
                candidates=candidates,
                share=share,
                max_seconds=estimate.task_seconds,
                has_max_memory=self._has_max_memory(estimate),
                began=self._claims.began,
                lot_file=file,
            )
            pool.tasks[file] = engine.submit(estimate.name, work, task)

    def _claim(self, target: int) -> str:
        """Return the name of the next claim of a target, for its search or its prediction."""
        is_search = target in self._schedule.to_search
        return search_claim(self._batch.targets[target].name) if is_search else self._batch.names[target]

    def _has_max_memory(self, pool: PoolEstimate) -> bool:
        """Return whether no other pool fits longer targets."""
        return pool.longest >= self._schedule.longest

    def _end(self, engine: Engine, pool: _Pool, file: Path) -> None:
        """Remove an ended task. Raise `PoolError` if too many successive tasks of a pool ended without any work."""
        task, has_worked = pool.tasks.pop(file), file.is_file()
        file.unlink(missing_ok=True)
        pool.lots.pop(file, None)
        if (error := task.exception()) is not None:
            if (pool_error := engine.pool_error(pool.estimate.name, error)) is not None:
                raise pool_error
            problem, limit = (
                f"its worker was lost: {printable(str(error) or type(error).__name__, 300)}",
                _MAX_LOST_TASKS,
            )
        else:
            problem, limit = task.result(), _MAX_FAILED_TASKS
            has_worked = problem is None
        pool.idle_tasks = 0 if has_worked else pool.idle_tasks + 1
        if pool.idle_tasks >= limit:
            reason = f"pool '{pool.estimate.name}': {limit} tasks in a row did nothing: {problem}"
            raise PoolError.at(self._batch.site.path, reason)

    def _report(self) -> None:
        """Write the status and new failures; write the pages and a status line at longer intervals."""
        failures = self._batch.failures(self._schedule)
        if len(failures) > self._written_failures:
            with suppress(OSError):
                write_failures(self._batch.output, failures)
                self._written_failures = len(failures)
        self._run_if_due(
            "pages",
            _SECONDS_BETWEEN_PAGES,
            _MAX_TIME_SHARE_OF_PAGES,
            lambda: write_pages(self._batch.output, failures, self._batch.names),
        )
        self._status_line = self.write_status("running").line()
        if not sys.stderr.isatty():
            self._run_if_due("line", _SECONDS_BETWEEN_LINES, 1.0, lambda: print_note(self._status_line))

    def _run_if_due(self, name: str, seconds: float, share: float, action: Callable[[], object]) -> bool:
        """Call `action` if it is due, and return whether it was.

        It is due again after `seconds`, or later so that it takes at most a `share` of the total time.
        """
        start = time.monotonic()
        if start < self._next_times[name]:
            return False
        action()
        self._next_times[name] = max(start + seconds, time.monotonic() + (time.monotonic() - start) / share)
        return True
