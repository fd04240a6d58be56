"""Run functions on the nodes of a cluster by Parsl, which asks for nodes, starts workers and notices lost ones."""

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

# Seconds between signs of life of a node, and of silence after which it is lost; on this machine, and elsewhere.
_SIGNS, _SIGNS_AWAY = (2, 20), (15, 90)
_SECONDS_BETWEEN_LOOKS, _SECONDS_BETWEEN_LOOKS_AWAY = 1, 5  # at jobs, to ask for more or to give some back
_IDLE_SECONDS = 120.0  # after which a node is given back
_KEPT_RUNS = 5  # whose logs stay
_MOST_FAILED_JOBS = 3  # without one that has started
# For giving back all nodes, and then for cancelling what is left of them.
_SECONDS_TO_END, _SECONDS_TO_CANCEL = 10.0, 5.0
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


# Starts a program in a group of its own: signals to this process's group, such as Ctrl-C, are not for Parsl's exchange
# of messages, which is still needed to give the nodes back.
_IN_OWN_GROUP = "import os, sys; os.setpgid(0, 0); os.execvp(sys.argv[1], sys.argv[1:])"


class PoolError(InputError):
    """Error for a pool whose jobs a queue refuses, or whose workers do not start."""


class Engine:
    """Parsl with an executor for each pool; its logs and scripts are below a directory. Use it as a context."""

    def __init__(self, site: Site, pools: Sequence[Pool], directory: Path) -> None:
        self._site, self._pools = site, pools
        providers = [provider_of(pool, site) for pool in pools]
        remote = [pool.name for pool in pools if pool.provider != "local"]
        address = _address_for(remote[0], site) if remote else "127.0.0.1"
        _remove_old_runs(directory)
        executors = [_executor(pool, each, address) for pool, each in zip(pools, providers, strict=True)]
        self._config = Config(
            executors=executors,
            run_dir=str(directory.absolute()),
            strategy="htex_auto_scale",
            strategy_period=_SECONDS_BETWEEN_LOOKS_AWAY if remote else _SECONDS_BETWEEN_LOOKS,
            max_idletime=_IDLE_SECONDS,
            exit_mode="cleanup",
        )
        self._kernel: DataFlowKernel | None = None

    def __enter__(self) -> Self:
        with _signals_postponed():  # one that is half made cannot be ended
            self._kernel = DataFlowKernel(self._config)
        return self

    def __exit__(self, *_: object) -> None:
        """Give all nodes back and cancel the jobs that wait, by force if Parsl does not do so in time."""
        ended = threading.Event()
        _in_thread(self._clean_up, ended)
        try:
            ended.wait(_SECONDS_TO_END)
        finally:
            if not ended.is_set():
                self._cancel()

    def _clean_up(self, ended: threading.Event) -> None:
        assert self._kernel is not None
        with suppress(Exception):  # such as of a queue that does not answer: jobs are cancelled below
            self._kernel.cleanup()
            ended.set()

    def _cancel(self) -> None:
        """Cancel all jobs, and kill what Parsl has started on this machine."""
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


def _executor(pool: Pool, provider: ExecutionProvider, address: str) -> HighThroughputExecutor:
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
        provider=provider,
        launch_cmd=launch,
        interchange_launch_cmd=[
            *(sys.executable, "-c", _IN_OWN_GROUP),
            *("sh", "-c", _WATCHED, str(os.getpid()), sys.executable, "-m", f"{module}.interchange"),
        ],
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


@contextmanager
def _signals_postponed() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM at the end of the context."""
    came: list[int] = []
    earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    is_main = threading.current_thread() is threading.main_thread()
    handled = {number: handler for number, handler in earlier.items() if is_main and callable(handler)}
    for number in handled:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)


def _in_thread(function: Callable[..., object], *arguments: object) -> threading.Thread:
    """Call a function in a thread, for which the end of the process does not wait."""
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def _address_for(pool: str, site: Site) -> str:
    """Return the address of this machine, as the file says it or by its name; the nodes of a pool must reach it."""
    advice = f"set address = '...' to the one under which the nodes of pool '{pool}' reach this machine"
    try:
        address = site.address or str(address_by_hostname())
    except OSError as error:
        raise InputError.at(site.path, f"the address of this machine is not known; {advice}") from error
    if is_loopback(address):
        whose = "address" if site.address else "this machine's name"
        raise InputError.at(site.path, f"{whose} stands for {address}, which every machine calls itself; {advice}")
    return address


def _remove_old_runs(directory: Path) -> None:
    """Remove the logs of all but the newest runs."""
    runs: Sequence[Path] = sorted(directory.glob("[0-9]*")) if directory.is_dir() else ()
    for path in runs[:-_KEPT_RUNS]:
        with suppress(OSError):
            shutil.rmtree(path)
