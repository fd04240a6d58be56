"""Drive a batch through the pools of a cluster: keep workers busy that claim targets, and report how far it is."""

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
from helixfold.apps.cluster.schedule import PoolForecast, Schedule
from helixfold.apps.cluster.worker import Candidate, Standing, Work, work
from helixfold.apps.options import PredictOptions, SearchOptions
from helixfold.apps.predict.runner import write_pages
from helixfold.apps.search import search_claim
from helixfold.results.failures import write_failures
from helixfold.results.file_table import CLUSTER
from helixfold.runtime.standard_streams import print_note

# Tasks of a pool in a row that may end without having done anything, by whether they said why.
_MOST_PROBLEMS, _MOST_LOST = 3, 10
_MOST_CANDIDATES = 5_000  # that a task is given
# What a worker claims at a time of its share of all that is left, so that all end together; less of searches, for which
# workers that fold wait.
_SHARE_OF_SEARCHES, _SHARE_OF_FOLDING = 0.125, 0.5
# Of its time, the driver spends at most these shares on looks at the claims of all open targets, and on pages, which
# have a line for every target.
_SHARE_OF_LOOKS, _SHARE_OF_PAGES = 0.1, 0.05
_SECONDS_BETWEEN_LOOKS, _SECONDS_BETWEEN_STATUS, _SECONDS_BETWEEN_PAGES = 1.0, 2.0, 30.0
_SECONDS_BETWEEN_LINES = 600.0  # where there is no terminal, which has a bar


@dataclass
class _Pool:
    """A pool, the targets that its workers could claim at the last look, and its tasks by their files."""

    forecast: PoolForecast
    options: PredictOptions | SearchOptions
    free: list[int] = field(default_factory=list)
    tasks: dict[Path, "Future[Any]"] = field(default_factory=dict)
    lots: dict[Path, int] = field(default_factory=dict)  # how many targets a task has claimed
    in_vain: int = 0  # tasks in a row that did nothing


class Driver:
    """Keep a task on each worker of the pools, which claims targets, and see by the claims what becomes of these."""

    def __init__(self, batch: ClusterBatch, schedule: Schedule, claims: Claims) -> None:
        self._batch, self._schedule, self._claims = batch, schedule, claims
        self._sites = [pool for pool in batch.site.pools if schedule.search is not None or pool.name != "search"]
        forecasts = {pool.name: pool for pool in (schedule.search, *schedule.folding) if pool is not None}
        self._pools = {
            pool.name: _Pool(
                forecasts[pool.name], (batch.search_options if pool.name == "search" else batch.fold_options)(pool)
            )
            for pool in self._sites
        }
        self._lots = CLUSTER.path(batch.output) / "lots"
        self._tasks = 0
        self._nodes: Callable[[], Any] = dict
        self._next = dict.fromkeys(("look", "status", "pages", "line"), 0.0)
        self._began, self._seconds = time.monotonic(), schedule.seconds()
        self._written, self._line = 0, ""  # failures in failures.json, and the last status

    def run(self) -> None:
        """Drive the batch to its end."""
        batch, schedule = self._batch, self._schedule
        shutil.rmtree(self._lots, ignore_errors=True)
        self._lots.mkdir(parents=True, exist_ok=True)
        bar_format = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"
        with (
            Engine(batch.site, self._sites, CLUSTER.path(batch.output) / "runs") as engine,
            tqdm(total=len(batch.targets), desc="targets", bar_format=bar_format, disable=None) as bar,
            self._interruption_in_status(),
        ):
            self._nodes = engine.nodes
            while schedule.open:
                if self._is_time("look", _SECONDS_BETWEEN_LOOKS, _SHARE_OF_LOOKS, self._look):
                    for pool in self._pools.values():
                        self._submit(engine, pool)
                self._is_time("status", _SECONDS_BETWEEN_STATUS, 1.0, self._report)
                bar.n = len(batch.targets) - len(schedule.open)
                bar.set_postfix_str(self._line)
                tasks = [task for pool in self._pools.values() for task in pool.tasks.values()]
                if not tasks:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
                wait(tasks, _SECONDS_BETWEEN_LOOKS, "FIRST_COMPLETED")
                for pool in self._pools.values():
                    for file in [file for file, task in pool.tasks.items() if task.done()]:
                        self._end(engine, pool, file)
        shutil.rmtree(self._lots, ignore_errors=True)

    def write_status(self, state: str) -> BatchStatus:
        """Write how far the batch is."""
        schedule, nodes = self._schedule, self._nodes()
        under_way = {name: sum(pool.lots.values()) for name, pool in self._pools.items()}
        searching = under_way.get("search", 0)
        left = schedule.seconds() / self._seconds if self._seconds else 0.0
        elapsed = time.monotonic() - self._began
        status = BatchStatus(
            time=time.time(),
            state=state,
            targets=len(self._batch.targets) + len(self._batch.invalid),
            to_search=max(0, len(schedule.to_search) - searching),
            to_fold=max(0, len(schedule.open) - len(schedule.to_search) - sum(under_way.values()) + searching),
            finished=schedule.finished + len(schedule.left_out),
            failed=len(schedule.failures) + len(self._batch.invalid),
            seconds_left=elapsed * left / (1 - left) if state == "running" and left < 1 else None,
            pools=[
                PoolStatus(
                    name=name,
                    running=nodes.get(name, (0, 0))[0],
                    pending=nodes.get(name, (0, 0))[1],
                    tasks=len(pool.tasks),
                    targets=under_way[name],
                )
                for name, pool in self._pools.items()
            ],
        )
        with suppress(OSError):  # such as a full disk; a batch goes on without
            status.write(self._batch.output)
        return status

    @contextmanager
    def _interruption_in_status(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.write_status("interrupted")
            raise

    def _look(self) -> None:
        """Read from the claims what has ended, and which targets are free; and how many targets tasks have claimed."""
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
                standing = Standing.of(self._claim(target), self._claims)  # once searched for, it is folded
            if standing.state == "open" and target in schedule.open:
                for forecast in schedule.pools_for(target):
                    if not standing.needs_room or self._has_most_room(forecast):
                        self._pools[forecast.name].free.append(target)

    def _submit(self, engine: Engine, pool: _Pool) -> None:
        """Give tasks to the idle workers of a pool, if more targets are free than its other tasks will claim."""
        batch, forecast = self._batch, pool.forecast
        starting = len(pool.tasks) - len(pool.lots)
        count = min(forecast.slots - len(pool.tasks), len(pool.free) - starting)
        if count <= 0:
            return
        share = _SHARE_OF_SEARCHES / forecast.slots
        if forecast is not self._schedule.search:
            share = _SHARE_OF_FOLDING / sum(each.slots for each in self._schedule.folding)
        lengths = {target: batch.residues[target] for target in pool.free[:_MOST_CANDIDATES]}
        candidates = [
            Candidate(target=batch.targets[target], claim=self._claim(target), seconds=forecast.seconds(length))
            for target, length in lengths.items()
        ]
        for _ in range(count):
            self._tasks += 1
            file = self._lots / f"{os.getpid()}-{self._tasks}"
            given = Work(
                here=Path.cwd(),
                output=batch.output,
                options=pool.options,
                candidates=candidates,
                share=share,
                most_seconds=forecast.task_seconds,
                has_most_room=self._has_most_room(forecast),
                began=self._claims.began,
                lot_file=file,
            )
            pool.tasks[file] = engine.submit(forecast.name, work, given)

    def _claim(self, target: int) -> str:
        """Return the name under which a target is claimed next."""
        is_search = target in self._schedule.to_search
        return search_claim(self._batch.targets[target].name) if is_search else self._batch.names[target]

    def _has_most_room(self, pool: PoolForecast) -> bool:
        return pool.longest >= self._schedule.longest

    def _end(self, engine: Engine, pool: _Pool, file: Path) -> None:
        """Note how a task has ended. Raise `PoolError` if one after the other of a pool does nothing at all."""
        task, has_begun = pool.tasks.pop(file), file.is_file()
        file.unlink(missing_ok=True)
        pool.lots.pop(file, None)
        if (error := task.exception()) is not None:
            if (refusal := engine.refusal(pool.forecast.name, error)) is not None:
                raise refusal
            problem, most = f"its worker was lost: {printable(str(error) or type(error).__name__, 300)}", _MOST_LOST
        else:
            problem, most = task.result(), _MOST_PROBLEMS
            has_begun = problem is None
        pool.in_vain = 0 if has_begun else pool.in_vain + 1
        if pool.in_vain >= most:
            reason = f"pool '{pool.forecast.name}': {most} tasks in a row did nothing: {problem}"
            raise PoolError.at(self._batch.site.path, reason)

    def _report(self) -> None:
        """Write the status, failures.json and the pages now and then."""
        failures = self._batch.failures(self._schedule)
        if len(failures) > self._written:
            with suppress(OSError):
                write_failures(self._batch.output, failures)
                self._written = len(failures)
        self._is_time(
            "pages",
            _SECONDS_BETWEEN_PAGES,
            _SHARE_OF_PAGES,
            lambda: write_pages(self._batch.output, failures, self._batch.names),
        )
        self._line = self.write_status("running").line()
        if not sys.stderr.isatty():
            self._is_time("line", _SECONDS_BETWEEN_LINES, 1.0, lambda: print_note(self._line))

    def _is_time(self, what: str, seconds: float, share: float, action: Callable[[], object]) -> bool:
        """Do something if it is time for it, which then takes at most a share of the time; return whether it was."""
        start = time.monotonic()
        if start < self._next[what]:
            return False
        action()
        self._next[what] = max(start + seconds, time.monotonic() + (time.monotonic() - start) / share)
        return True
