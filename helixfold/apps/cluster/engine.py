"""Run functions on the nodes of a cluster with Parsl, which requests nodes, starts workers and detects lost ones."""

import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
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
from parsl.providers.base import ExecutionProvider

from data_pipeline.io.addresses import is_loopback
from data_pipeline.io.errors import InputError, printable
from helixfold.apps.cluster.providers import SUBMITTERS, provider_of, python_of
from helixfold.apps.cluster.site import Pool, Site

# Seconds between heartbeats of a node, and seconds of silence after which it counts as lost.
_LOCAL_HEARTBEAT, _REMOTE_HEARTBEAT = (2, 20), (15, 90)
_LOCAL_SCALING_SECONDS, _REMOTE_SCALING_SECONDS = 1, 5  # between decisions to request or release nodes
_IDLE_SECONDS = 120.0  # after which a node is released
_RUNS_WITH_LOGS = 5  # whose logs are kept
_MAX_FAILED_JOBS = 3  # successive jobs
# Time limits for releasing all nodes, and then for cancelling the remaining jobs.
_SECONDS_TO_END, _SECONDS_TO_CANCEL = 10.0, 5.0
_NOT_STARTED_MESSAGE = "Failed to start block"
# A shell command that ends Parsl's interchange once the process of its first argument has ended, so that no node waits
# for a run that was killed.
_WATCHED_COMMAND = (
    '(while kill -0 "$0" && kill -0 $$; do sleep 2; done; kill -9 $$) < /dev/null > /dev/null 2>&1 & exec "$@"'
)
# The same for a node on this machine, which is a process group. The whole group is killed, because a killed node leaves
# its own server behind, and a node that is registering, or lost a worker during a message, would wait forever. The
# command waits for twice the time after which a node without contact ends by itself.
WATCHED_NODE = (
    '(while kill -0 "$0" && kill -0 $$; do sleep 2; done; '
    f"for _ in $(seq {_LOCAL_HEARTBEAT[1]}); do kill -0 $$ || break; sleep 2; done; sleep 2; kill -9 0) "
    '< /dev/null > /dev/null 2>&1 & exec "$@"'
)


# Starts a program in its own process group, so that Ctrl-C does not end Parsl's interchange, which is still needed to
# release the nodes.
_OWN_GROUP_CODE = "import os, sys; os.setpgid(0, 0); os.execvp(sys.argv[1], sys.argv[1:])"


class PoolError(InputError):
    """Error for a pool whose jobs are refused by the queue, or whose workers do not start."""


class Engine:
    """Parsl with an executor for each pool, as a context manager. Logs and scripts are written to `directory`."""

    def __init__(self, site: Site, pools: Sequence[Pool], directory: Path) -> None:
        self._site, self._pools = site, pools
        providers = [provider_of(pool, site) for pool in pools]
        remote_pools = [pool.name for pool in pools if pool.provider != "local"]
        address = _address_for(remote_pools[0], site) if remote_pools else "127.0.0.1"
        _remove_old_runs(directory)
        executors = [_executor(pool, each, address) for pool, each in zip(pools, providers, strict=True)]
        self._config = Config(
            executors=executors,
            run_dir=str(directory.absolute()),
            strategy="htex_auto_scale",
            strategy_period=_REMOTE_SCALING_SECONDS if remote_pools else _LOCAL_SCALING_SECONDS,
            max_idletime=_IDLE_SECONDS,
            exit_mode="cleanup",
        )
        self._kernel: DataFlowKernel | None = None

    def __enter__(self) -> Self:
        with _signals_postponed():  # a partly created kernel cannot be cleaned up
            self._kernel = DataFlowKernel(self._config)
        return self

    def __exit__(self, *_: object) -> None:
        """Release all nodes and cancel waiting jobs, by force if Parsl does not do so in time."""
        ended = threading.Event()
        _in_thread(self._clean_up, ended)
        try:
            ended.wait(_SECONDS_TO_END)
        finally:
            if not ended.is_set():
                self._cancel()

    def _clean_up(self, ended: threading.Event) -> None:
        """Let Parsl release all nodes, then set `ended`."""
        assert self._kernel is not None
        with suppress(Exception):  # for example if the queue does not answer; `_cancel` cancels the jobs then
            self._kernel.cleanup()
            ended.set()

    def _cancel(self) -> None:
        """Cancel all jobs, and kill the processes that Parsl has started on this machine."""
        assert self._kernel is not None
        executors = [each for each in self._kernel.executors.values() if isinstance(each, HighThroughputExecutor)]
        cancelling = []
        for executor in executors:
            if executor.provider is not None:
                jobs = list(executor.blocks_to_job_id.values())
                cancelling.append(_in_thread(executor.provider.cancel, jobs))
            if executor.interchange_proc is not None:
                executor.interchange_proc.kill()
            executor._result_queue_thread_exit.set()
        self._kernel._task_launch_pool.shutdown(wait=False)
        until = time.monotonic() + _SECONDS_TO_CANCEL
        for thread in cancelling:
            thread.join(max(0.0, until - time.monotonic()))

    def submit(self, pool: str, function: Callable[..., Any], *arguments: object) -> "Future[Any]":
        """Call a function on a worker of a pool, and return a future with its result or error."""
        app = python_app(function, data_flow_kernel=self._kernel, executors=[pool])
        future: Future[Any] = app(*arguments)
        return future

    def pool_error(self, pool: str, error: BaseException) -> PoolError | None:
        """Return the error to raise if the `error` of a task means that the pool accepts no more tasks; else None."""
        if not isinstance(error, BadStateException):
            return None
        return PoolError.at(self._site.path, f"pool '{pool}': {error.reason}")

    def nodes(self) -> Mapping[str, tuple[int, int]]:
        """Return the numbers of running and of queued jobs by name of the pool. Each job requests one node."""
        counts = {}
        for pool in self._pools:
            executor = None if self._kernel is None else self._kernel.executors.get(pool.name)
            states = [each.state for each in getattr(executor, "status_facade", {}).values()]
            counts[pool.name] = states.count(JobState.RUNNING), states.count(JobState.PENDING)
        return counts


def _executor(pool: Pool, provider: ExecutionProvider, address: str) -> HighThroughputExecutor:
    """Return Parsl's executor for a pool; nodes connect to `address`."""
    heartbeat_period, heartbeat_threshold = _LOCAL_HEARTBEAT if pool.provider == "local" else _REMOTE_HEARTBEAT
    module = "parsl.executors.high_throughput"
    launch_command = DEFAULT_LAUNCH_CMD.replace(
        "process_worker_pool.py", f"{python_of(pool)} -m {module}.process_worker_pool"
    )
    if pool.provider == "local":
        launch_command = f"sh -c {shlex.quote(WATCHED_NODE)} {os.getpid()} {launch_command}"

    def give_up(executor: BlockProviderExecutor, status: dict[str, JobStatus]) -> None:
        """Let all tasks of the pool fail if the pool cannot be used."""
        if (problem := _problem(pool, status)) is not None:
            executor.set_bad_state_and_fail_all(PoolError(problem))

    return HighThroughputExecutor(
        label=pool.name,
        provider=provider,
        launch_cmd=launch_command,
        interchange_launch_cmd=[
            *(sys.executable, "-c", _OWN_GROUP_CODE),
            *("sh", "-c", _WATCHED_COMMAND, str(os.getpid()), sys.executable, "-m", f"{module}.interchange"),
        ],
        address=address,
        encrypted=True,  # otherwise anyone with access to the port could send pickled tasks, which are executed
        max_workers_per_node=pool.workers,
        cores_per_worker=1e-3,  # so that only `max_workers_per_node` limits the workers
        available_accelerators=[str(index) for index in range(pool.gpus)],
        heartbeat_period=heartbeat_period,
        heartbeat_threshold=heartbeat_threshold,
        block_error_handler=give_up,
    )


def _problem(pool: Pool, status: Mapping[str, JobStatus]) -> str | None:
    """Return why a pool cannot be used; None if it can.

    A pool cannot be used if the queue refused all of its jobs, or if the last jobs ended before a worker started.
    """
    jobs = [status[block] for block in sorted(status, key=int)]
    if not jobs or any(each.state not in TERMINAL_STATES for each in jobs):
        return None
    refused_jobs = [each for each in jobs if (each.message or "").startswith(_NOT_STARTED_MESSAGE)]
    if len(refused_jobs) == len(jobs):
        program = SUBMITTERS.get(pool.provider, "the system")
        return f"{program} refused the job: {last_error_line(refused_jobs[-1].message)}"
    last_jobs = jobs[-_MAX_FAILED_JOBS:]
    if len(last_jobs) == _MAX_FAILED_JOBS and all(each.state == JobState.MISSING for each in last_jobs):
        reason = last_error_line(last_jobs[-1].stderr_summary) or "see its logs in the output directory"
        return f"its workers end before they have started: {reason}"
    return None


def last_error_line(text: str | None) -> str:
    """Return the last line of a program's stderr, from a message of Parsl that contains it; "" if it is empty."""
    stderr = (text or "").rpartition("stderr=")[2]
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return printable(lines[-1], 300) if lines else ""


@contextmanager
def _signals_postponed() -> Iterator[None]:
    """Postpone the handling of Ctrl-C, SIGTERM and SIGHUP to the end of the context."""
    received: list[int] = []
    earlier_handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {each: handler for each, handler in earlier_handlers.items() if is_main and callable(handler)}
    for each in handlers:
        signal.signal(each, lambda signum, _: received.append(signum))
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for signum in received:
            signal.raise_signal(signum)


def _in_thread(function: Callable[..., object], *arguments: object) -> threading.Thread:
    """Call a function in a daemon thread."""
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def _address_for(pool: str, site: Site) -> str:
    """Return the address of this machine for the nodes of a pool, from the file or by the host name."""
    advice = f"set address = '...' to the address at which the nodes of pool '{pool}' reach this machine"
    try:
        address = site.address or str(address_by_hostname())
    except OSError as error:
        raise InputError.at(site.path, f"the address of this machine is unknown; {advice}") from error
    if is_loopback(address):
        source = "address" if site.address else "the name of this machine"
        raise InputError.at(site.path, f"{source} is {address}, a loopback address; {advice}")
    return address


def _remove_old_runs(directory: Path) -> None:
    """Remove the logs of all but the newest runs."""
    runs: Sequence[Path] = sorted(directory.glob("[0-9]*")) if directory.is_dir() else ()
    for path in runs[:-_RUNS_WITH_LOGS]:
        with suppress(OSError):
            shutil.rmtree(path)
