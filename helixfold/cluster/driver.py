"""Drive a batch through the pools of a cluster: give them tasks, see what becomes of these, and tell how far it is."""

import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_pipeline.claims import Claims
from data_pipeline.errors import printable
from data_pipeline.files import require_unmoved
from helixfold.apps.predict.runner import write_pages
from helixfold.cluster import worker
from helixfold.cluster.batch import ClusterBatch
from helixfold.cluster.engine import Engine, PoolError
from helixfold.cluster.progress import BatchStatus, PoolStatus
from helixfold.cluster.schedule import Schedule, Task
from helixfold.results.failures import write_failures
from helixfold.results.file_table import CLUSTER
from helixfold.standard_streams import print_note

# Tasks of a pool in a row that may end without having done anything, by whether they said why.
_MOST_PROBLEMS, _MOST_LOST = 3, 10
_SECONDS_BETWEEN_LOOKS, _SECONDS_BETWEEN_STATUS = 5.0, 2.0
_SECONDS_BETWEEN_LINES = 600.0  # where there is no terminal, which has a bar
# Pages have a line for every target: of its time, the driver spends at most this share on them.
_SHARE_OF_PAGES, _SECONDS_BETWEEN_PAGES = 0.05, 30.0
_OUT_OF_MEMORY = ("NotEnoughMemoryError: ", "OutOfMemoryError: ", "MemoryError: ", "MemoryError")


class Driver:
    """Give tasks to the pools, and see what becomes of their targets."""

    def __init__(self, batch: ClusterBatch, schedule: Schedule, claims: Claims) -> None:
        self._batch, self._schedule, self._claims = batch, schedule, claims
        self._pools = {pool.name: pool for pool in batch.site.pools}
        search = () if schedule.search is None else (schedule.search,)
        self._names = [pool.name for pool in (*search, *schedule.folding)]
        self._ended: queue.SimpleQueue[tuple[Task, Future[Any]]] = queue.SimpleQueue()
        self._running: dict[str, list[Task]] = {name: [] for name in self._names}
        # Targets that a task has not done, and some process may still work on, with the reason if none does.
        self._waiting: list[tuple[Task, int, str]] = []
        self._in_vain = dict.fromkeys(self._names, 0)  # tasks in a row that did nothing, by pool
        self._tasks = 0
        self._nodes: Callable[[], Any] = dict
        self._next = dict.fromkeys(("look", "status", "pages", "line"), 0.0)
        self._written: int = 0  # failures in failures.json

    def run(self) -> None:
        """Drive the batch to its end."""
        batch, schedule = self._batch, self._schedule
        pools = [self._pools[name] for name in self._names]
        bar_format = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"
        with (
            Engine(batch.site, pools, CLUSTER.path(batch.output) / "runs") as engine,
            tqdm(total=len(batch.targets), desc="targets", bar_format=bar_format, disable=None) as bar,
            self._interrupted_is_told(),
        ):
            self._nodes = engine.nodes
            while not schedule.is_over:
                self._submit(engine)
                with suppress(queue.Empty):
                    self._end(engine, *self._ended.get(timeout=1.0))
                    while True:
                        self._end(engine, *self._ended.get_nowait())
                self._look_after()
                status = self._report()
                if status is not None:
                    bar.n = len(batch.targets) - schedule.remaining
                    bar.set_postfix_str(status.line())
            bar.n = len(batch.targets)

    def write_status(self, state: str) -> BatchStatus:
        """Write how far the batch is."""
        schedule, nodes = self._schedule, self._nodes()
        waiting = schedule.waiting
        is_measured = any(schedule.pace(pool.name) is not None for pool in schedule.folding)
        status = BatchStatus(
            time=time.time(),
            state=state,
            targets=len(self._batch.targets) + len(self._batch.invalid),
            to_search=waiting["search"],
            to_fold=waiting["folding"],
            finished=schedule.finished + schedule.finished_before,
            failed=len(schedule.failures) + len(self._batch.invalid),
            seconds_left=schedule.seconds_left() if state == "running" and is_measured else None,
            pools=[
                PoolStatus(
                    name=name,
                    running=nodes.get(name, (0, 0))[0],
                    pending=nodes.get(name, (0, 0))[1],
                    tasks=len(self._running[name]),
                    targets=sum(len(task.targets) for task in self._running[name]),
                    pace=schedule.pace(name),
                )
                for name in self._names
            ],
        )
        with suppress(OSError):  # such as a full disk; a batch goes on without
            status.write(self._batch.output)
        return status

    @contextmanager
    def _interrupted_is_told(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.write_status("interrupted")
            raise

    def _submit(self, engine: Engine) -> None:
        for name in self._names:
            while (task := self._schedule.next_task(name)) is not None:
                self._running[name].append(task)
                targets = [self._batch.targets[number] for number in task.targets]
                future = engine.submit(name, *self._call(task, targets))
                future.add_done_callback(partial(self._note_end, task))

    def _call(self, task: Task, targets: Sequence[Any]) -> tuple[Any, ...]:
        """Return the function that does a task, with its arguments."""
        batch, pool, here = self._batch, self._pools[task.pool], Path.cwd()
        if self._is_search(task):
            return worker.search, here, targets, batch.search_options(pool), batch.output
        self._tasks += 1
        file = CLUSTER.path(batch.output) / "failures" / f"{os.getpid()}-{self._tasks}.json"
        return worker.fold, here, targets, batch.fold_options(pool, file)

    def _note_end(self, task: Task, future: "Future[Any]") -> None:
        self._ended.put((task, future))

    def _is_search(self, task: Task) -> bool:
        return self._schedule.search is not None and task.pool == self._schedule.search.name

    def _end(self, engine: Engine, task: Task, future: "Future[Any]") -> None:
        """See what became of the targets of a task."""
        self._running[task.pool].remove(task)
        error = future.exception()
        if error is not None:
            if (refusal := engine.refusal(task.pool, error)) is not None:
                raise refusal
            self._schedule.end(task)
            reason = f"its worker was lost: {printable(str(error) or type(error).__name__, 300)}"
            done = [self._settle(task, target, None, reason) for target in task.targets]
            self._count(task, reason, _MOST_LOST, did_something=any(done))
            return
        outcome: worker.Outcome = future.result()
        self._schedule.end(task, None if outcome.problem else outcome.seconds)
        has_ended = outcome.problem is None
        reason = outcome.problem or "its worker left it unfinished"
        for target in task.targets:
            failure = outcome.failures.get(self._told_as(task, target))
            self._settle(task, target, failure, reason, has_ended=has_ended)
        self._count(task, reason, _MOST_PROBLEMS, did_something=has_ended)

    def _told_as(self, task: Task, target: int) -> str:
        """Return the name under which a worker tells that a target has failed."""
        return self._batch.targets[target].name if self._is_search(task) else self._batch.names[target]

    def _settle(self, task: Task, target: int, failure: str | None, reason: str, *, has_ended: bool = False) -> bool:
        """Say what became of a target, and return whether it was begun, as all are of a task that `has_ended`."""
        schedule, is_search = self._schedule, self._is_search(task)
        if failure is not None and not is_search and failure.startswith(_OUT_OF_MEMORY):
            schedule.try_again(task, target, failure)
        elif failure is not None:
            schedule.fail(target, failure)
            tqdm.write(f"{self._batch.names[target]}: failed: {printable(failure, 1000)}", file=sys.stderr)
        elif self._is_done(target, is_search=is_search) or (has_ended and self._batch.is_marked(target)):
            (schedule.found if is_search else schedule.finish)(target)
        elif not has_ended and self._claims.work_on(self._key(task, target)) == "none":
            schedule.put_back(task, target)
            return False
        else:
            self._waiting.append((task, target, reason))
        return True

    def _is_done(self, target: int, *, is_search: bool) -> bool:
        return self._batch.has_features(target) if is_search else self._batch.is_finished(target)

    def _key(self, task: Task, target: int) -> str:
        """Return the name under which a target is claimed."""
        if self._is_search(task):
            return f"features of {self._batch.targets[target].name}"
        return self._batch.names[target]

    def _count(self, task: Task, reason: str, most: int, *, did_something: bool) -> None:
        """Raise `PoolError` if task after task of a pool does nothing at all."""
        self._in_vain[task.pool] = 0 if did_something else self._in_vain[task.pool] + 1
        if self._in_vain[task.pool] >= most:
            problem = f"pool '{task.pool}': {most} tasks in a row did nothing: {reason}"
            raise PoolError.at(self._batch.site.path, problem)

    def _look_after(self) -> None:
        """Let targets go on whose process has died, once that is known."""
        if not self._is_time("look", _SECONDS_BETWEEN_LOOKS):
            return
        require_unmoved(self._batch.output)
        waiting, self._waiting = self._waiting, []
        for task, target, reason in waiting:
            is_search = self._is_search(task)
            if self._is_done(target, is_search=is_search):
                (self._schedule.found if is_search else self._schedule.finish)(target)
            elif self._claims.work_on(self._key(task, target)) == "held":
                self._waiting.append((task, target, reason))
            else:
                self._schedule.try_again(task, target, reason)

    def _report(self) -> BatchStatus | None:
        """Write the status, failures.json and the pages now and then."""
        if not self._is_time("status", _SECONDS_BETWEEN_STATUS):
            return None
        output, names = self._batch.output, self._batch.names
        failures = self._batch.failures(self._schedule)
        if len(failures) > self._written:
            with suppress(OSError):
                write_failures(output, failures)
                self._written = len(failures)
        if self._is_time("pages", _SECONDS_BETWEEN_PAGES):
            start = time.monotonic()
            write_pages(output, failures, names)
            self._next["pages"] = max(
                self._next["pages"], time.monotonic() + (time.monotonic() - start) / _SHARE_OF_PAGES
            )
        status = self.write_status("running")
        if not sys.stderr.isatty() and self._is_time("line", _SECONDS_BETWEEN_LINES):
            print_note(status.line())
        return status

    def _is_time(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now < self._next[what]:
            return False
        self._next[what] = now + seconds
        return True
