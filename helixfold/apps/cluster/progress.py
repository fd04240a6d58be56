"""The status of a batch on a cluster: a JSON file, a page, and the lines of `helixfold status`.

The driver of the batch writes the files. Finished targets are counted in the output directory, so a batch without a
cluster, or with a killed driver, has a status as well.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from data_pipeline.io.errors import InputError, printable
from helixfold.report.page import counted, page
from helixfold.results.failures import failures_in
from helixfold.results.file_table import CLUSTER, FAILURES, FEATURES, INDEX, PACKED, RANKING, STATUS_PAGE
from helixfold.results.json_object import JsonObject
from helixfold.results.packed import PackedResults
from helixfold.results.writing import to_json, write_file
from helixfold.runtime.screen import format_duration

STATUS_FILE: Final = "status.json"
# After this time without a new status, the driver has probably ended.
_MAX_SILENT_SECONDS = 30.0
_PAGE_RELOAD_SECONDS = 15  # of the page in a browser
_NO_TARGETS = "no target has started; a run is prepared in its first seconds"


@dataclass(frozen=True, kw_only=True)
class PoolStatus:
    """The state of a pool: numbers of running and pending nodes, of tasks, and of targets that tasks have claimed."""

    name: str
    running: int
    pending: int
    tasks: int
    targets: int


@dataclass(frozen=True, kw_only=True)
class BatchStatus:
    """The status of a batch at a time, in seconds since 1970: numbers of targets by state, and its pools."""

    time: float
    state: str  # "running", "ended" or "interrupted"
    targets: int
    to_search: int
    to_fold: int  # that wait for a worker
    finished: int
    failed: int
    seconds_left: float | None = None
    pools: Sequence[PoolStatus] = field(default_factory=tuple)

    def line(self) -> str:
        """Return the status as one line for a terminal: numbers of targets, pools, and the remaining time if known."""
        parts = [f"{self.finished:,} of {self.targets:,} done"]
        parts += [f"{self.failed:,} failed"] if self.failed else []
        parts += [f"{self.to_search:,} to search"] if self.to_search else []
        parts += [f"{self.to_fold:,} to fold"] if self.to_fold else []
        parts += [
            f"{pool.name}: {counted(pool.running, 'node')}, {counted(pool.targets, 'target')}" for pool in self.pools
        ]
        parts += [f"about {format_duration(self.seconds_left)} left"] if self.seconds_left is not None else []
        return ", ".join(parts)

    def write(self, output: Path) -> None:
        """Write status.json and status.html for the batch in the directory `output`."""
        write_file(CLUSTER.path(output) / STATUS_FILE, to_json(asdict(self), indent=1))
        write_file(
            STATUS_PAGE.path(output),
            page(
                "status.html",
                styles=("page.css", "index.css"),
                scripts=(),
                title=output.resolve().name,
                status=self,
                written=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time)),
                refresh=_PAGE_RELOAD_SECONDS if self.state == "running" else None,
                has_index=INDEX.path(output).is_file(),
            ),
        )


def read_status(output: Path) -> BatchStatus | None:
    """Read the status that a driver has written; None if it is missing or damaged."""
    path = CLUSTER.path(output) / STATUS_FILE
    if not path.is_file():
        return None
    try:
        content = JsonObject.read(path)
        return BatchStatus(
            time=content.get("time", float),
            state=content.get("state", str),
            seconds_left=content.optional_number("seconds_left"),
            pools=[
                PoolStatus(
                    name=each.get("name", str),
                    **{name: each.get(name, int) for name in ("running", "pending", "tasks", "targets")},
                )
                for each in content.children("pools")
            ],
            **{name: content.get(name, int) for name in ("targets", "to_search", "to_fold", "finished", "failed")},
        )
    except InputError:
        return None


def status_lines(output: Path) -> Iterator[str]:
    """Yield the lines of `helixfold status` for an output directory. Raise `InputError` if it does not exist."""
    if not output.is_dir():
        raise InputError.at(output, "is not a directory; pass the --output of helixfold predict")
    packed = PackedResults(output)
    for problem in packed.problems.values():
        yield f"{problem}; its targets are not counted"
    in_archives = len(packed.names())
    directories = [
        path
        for path in output.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path != PACKED.path(output)
    ]
    finished = sum(RANKING.path(path).is_file() for path in directories) + in_archives
    with_features = sum(FEATURES.path(path).is_file() for path in directories)
    failures = failures_in(output)
    status = read_status(output)
    targets = len(directories) + in_archives if status is None else status.targets
    # Without a driver's record, targets of the batch that have not started are unknown.
    noun = "started target" if status is None else "target"
    total = f"{finished:,} of {counted(targets, noun)} done{f' ({in_archives:,} packed)' if in_archives else ''}"
    yield f"{total}, {with_features:,} with features, {len(failures):,} failed" if targets else _NO_TARGETS
    if status is not None:
        yield from _cluster_lines(status)
    yield from _failure_lines(failures)


def _cluster_lines(status: BatchStatus) -> Iterator[str]:
    """Yield the lines about the cluster's nodes, tasks and remaining time."""
    age = max(0.0, time.time() - status.time)
    last_words = f"last heard {f'{age:.0f} s' if age < 100 else format_duration(age)} ago"
    if status.state == "running" and age > _MAX_SILENT_SECONDS:
        yield f"cluster: {last_words}; if the command has ended, run it again to continue"
        return
    waiting = f"{status.to_search:,} to search, {status.to_fold:,} to fold"
    if status.state != "running":
        yield f"cluster: {printable(status.state)}, {waiting}"
        return
    in_progress = sum(pool.targets for pool in status.pools)
    yield f"cluster: running, {last_words}; {waiting}, {in_progress:,} in progress"
    for pool in status.pools:
        yield (
            f"  {printable(pool.name)}: {counted(pool.running, 'node')}, {pool.pending} in the queue; "
            f"{counted(pool.tasks, 'task')} with {counted(pool.targets, 'target')}"
        )
    if status.seconds_left is not None:
        yield f"about {format_duration(status.seconds_left)} left"


def _failure_lines(failures: Mapping[str, str], limit: int = 10) -> Iterator[str]:
    """Yield the first failures with their reasons, and the number of the others."""
    for name, reason in list(failures.items())[:limit]:
        yield f"{name}: failed: {printable(reason, 300)}"
    if len(failures) > limit:
        yield f"and {len(failures) - limit:,} more, see {FAILURES.name()}"
