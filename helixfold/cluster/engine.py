"""Run functions on the nodes of a cluster by Parsl, which asks for nodes, starts workers and notices lost ones."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from parsl import python_app
from parsl.addresses import address_by_hostname
from parsl.config import Config
from parsl.dataflow.dflow import DataFlowKernel
from parsl.executors import HighThroughputExecutor
from parsl.executors.errors import BadStateException
from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD
from parsl.executors.status_handling import BlockProviderExecutor
from parsl.jobs.states import TERMINAL_STATES, JobState, JobStatus

from data_pipeline.errors import InputError, printable
from helixfold.cluster.providers import SUBMITTERS, provider_of, python_of
from helixfold.cluster.site import Pool, Site

# Seconds between signs of life of a node, and of silence after which it is lost; on this machine, and elsewhere.
_SIGNS, _SIGNS_AWAY = (2, 20), (15, 90)
_SECONDS_BETWEEN_LOOKS, _SECONDS_BETWEEN_LOOKS_AWAY = 1, 5  # at jobs, to ask for more or to give some back
_IDLE_SECONDS = 120.0  # after which a node is given back
_KEPT_RUNS = 5  # whose logs stay
_MOST_FAILED_JOBS = 3  # without one that has started
_NOT_STARTED = "Failed to start block"
# A shell that ends Parsl's exchange of messages once the process of its first argument has ended, so that no node
# waits for a run that was killed.
_WATCHED = '(while kill -0 "$0" && kill -0 $$; do sleep 2; done; kill -9 $$) < /dev/null > /dev/null 2>&1 & exec "$@"'
# The same for a node of this machine, which is a group of processes: all of it is ended, since a node that is killed
# leaves a server of its own behind, and one that was just about to register, or lost a worker in the middle of a
# message, waits forever. Before that it has twice the silence after which it ends by itself.
WATCHED_NODE = (
    '(while kill -0 "$0" && kill -0 $$; do sleep 2; done; '
    f"for _ in $(seq {_SIGNS[1]}); do kill -0 $$ || break; sleep 2; done; sleep 2; kill -9 0) "
    '< /dev/null > /dev/null 2>&1 & exec "$@"'
)


class PoolError(InputError):
    """Error for a pool whose jobs a queue refuses, or whose workers do not start."""


class Engine:
    """Parsl with an executor for each pool; its logs and scripts are below a directory. Use it as a context."""

    def __init__(self, site: Site, pools: Sequence[Pool], directory: Path) -> None:
        self._site, self._pools = site, pools
        is_local = all(pool.provider == "local" for pool in pools)
        address = "127.0.0.1" if is_local else site.address or _own_address(site)
        _remove_old_runs(directory)
        executors = [_executor(pool, site, address) for pool in pools]
        self._config = Config(
            executors=executors,
            run_dir=str(directory.absolute()),
            strategy="htex_auto_scale",
            strategy_period=_SECONDS_BETWEEN_LOOKS if is_local else _SECONDS_BETWEEN_LOOKS_AWAY,
            max_idletime=_IDLE_SECONDS,
            exit_mode="cleanup",
        )
        self._kernel: DataFlowKernel | None = None

    def __enter__(self) -> Self:
        self._kernel = DataFlowKernel(self._config)
        return self

    def __exit__(self, *_: object) -> None:
        if self._kernel is not None:
            self._kernel.cleanup()

    def submit(self, pool: str, function: Callable[..., Any], *arguments: object) -> "Future[Any]":
        """Call a function on a worker of a pool; its result, or what became of it, is in the future."""
        app = python_app(function, data_flow_kernel=self._kernel, executors=[pool])
        future: Future[Any] = app(*arguments)
        return future

    def refusal(self, pool: str, error: BaseException) -> PoolError | None:
        """Return the error to raise if a pool takes no tasks any more, from the error of a task."""
        if not isinstance(error, BadStateException):
            return None
        return PoolError.at(self._site.path, f"pool '{pool}': {error.reason}")

    def nodes(self) -> Mapping[str, tuple[int, int]]:
        """Return for each pool how many of its jobs run, and how many wait in the queue."""
        counts = {}
        for pool in self._pools:
            executor = None if self._kernel is None else self._kernel.executors.get(pool.name)
            states = [each.state for each in getattr(executor, "status_facade", {}).values()]
            counts[pool.name] = states.count(JobState.RUNNING), states.count(JobState.PENDING)
        return counts


def _executor(pool: Pool, site: Site, address: str) -> HighThroughputExecutor:
    period, threshold = _SIGNS if pool.provider == "local" else _SIGNS_AWAY
    module = "parsl.executors.high_throughput"
    launch = DEFAULT_LAUNCH_CMD.replace("process_worker_pool.py", f"{python_of(pool)} -m {module}.process_worker_pool")
    if pool.provider == "local":
        launch = f"sh -c {shlex.quote(WATCHED_NODE)} {os.getpid()} {launch}"

    def give_up(executor: BlockProviderExecutor, status: dict[str, JobStatus]) -> None:
        if (problem := _problem(pool, status)) is not None:
            executor.set_bad_state_and_fail_all(PoolError(problem))

    return HighThroughputExecutor(
        label=pool.name,
        provider=provider_of(pool, site),
        launch_cmd=launch,
        interchange_launch_cmd=["sh", "-c", _WATCHED, str(os.getpid()), sys.executable, "-m", f"{module}.interchange"],
        address=address,
        encrypted=True,  # otherwise anyone who reaches the port could send pickled tasks, which are executed
        max_workers_per_node=pool.workers,
        cores_per_worker=1e-3,  # workers are as many as the file says, whatever processors there are
        available_accelerators=[str(number) for number in range(pool.gpus)],
        heartbeat_period=period,
        heartbeat_threshold=threshold,
        block_error_handler=give_up,
    )


def _problem(pool: Pool, status: Mapping[str, JobStatus]) -> str | None:
    """Say why a pool is given up: its queue refused all jobs, or the last ones ended before a worker had started."""
    found = [status[number] for number in sorted(status, key=int)]
    if not found or any(each.state not in TERMINAL_STATES for each in found):
        return None
    refused = [each for each in found if (each.message or "").startswith(_NOT_STARTED)]
    if len(refused) == len(found):
        program = SUBMITTERS.get(pool.provider, "the system")
        return f"{program} refused the job: {last_words(refused[-1].message)}"
    last = found[-_MOST_FAILED_JOBS:]
    if len(last) == _MOST_FAILED_JOBS and all(each.state == JobState.MISSING for each in last):
        words = last_words(last[-1].stderr_summary) or "see its logs in the output directory"
        return f"its workers end before they have begun: {words}"
    return None


def last_words(text: str | None) -> str:
    """Return the last line of what a program said, without what Parsl says round it."""
    said = (text or "").rpartition("stderr=")[2]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return printable(lines[-1], 300) if lines else ""


def _own_address(site: Site) -> str:
    """Return the address of this machine by its name."""
    try:
        return str(address_by_hostname())
    except OSError as error:
        raise InputError.at(
            site.path, "the address of this machine is not known; add address = '...', as the nodes reach it"
        ) from error


def _remove_old_runs(directory: Path) -> None:
    """Remove the logs of all but the newest runs."""
    runs: Sequence[Path] = sorted(directory.glob("[0-9]*")) if directory.is_dir() else ()
    for path in runs[:-_KEPT_RUNS]:
        with suppress(OSError):
            shutil.rmtree(path)
