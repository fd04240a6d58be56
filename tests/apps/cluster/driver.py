"""`helixfold` as a process of its own session, the workers that it starts on this machine, and what they leave."""

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch

from helixfold.apps.cluster import batch
from helixfold.apps.cluster.schedule import PoolEstimate
from helixfold.apps.cluster.site import Pool
from helixfold.cli.main import main
from tests.apps.predict.files import without_command
from tests.support.interruptions import living_processes
from tests.support.sources import ROOT
from tests.training.ranks import SERVER

TWO_POOLS = """
[fold.small]
memory = "3GiB"
task_minutes = {minutes}
[fold.large]
memory = "5GiB"
task_minutes = {minutes}
"""
# Everything but the times in these is the same for every run.
_TIMED = ("timings.json", "report.html", ".zip")


def started(words: Sequence[str], printed: Path, environment: Mapping[str, str] | None = None) -> BaseProcess:
    """A command that begins at once in a session of its own, forked from a server that has everything imported."""
    variables = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(printed.parent / "cache"), "OMP_NUM_THREADS": "1"}
    process = SERVER.Process(target=_run, args=(list(words), printed, {**variables, **(environment or {})}))
    process.start()
    return process


def quick_estimate(pool: Pool, *_: object, **__: object) -> PoolEstimate:
    """A pool that every short chain fits into, and that needs a second for each; counting this takes several."""
    return PoolEstimate(
        name=pool.name, slots=pool.slots, longest=100, seconds=lambda _: 1.0, task_seconds=60 * pool.task_minutes
    )


def _run(words: list[str], printed: Path, environment: dict[str, str]) -> None:
    os.setsid()
    batch.estimate_pool = quick_estimate
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    # PyTorch is loaded already; the workers, which load it anew, have one thread too, and results depend on that.
    torch.set_num_threads(1)
    with printed.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    sys.exit(main(words))


def ended(process: BaseProcess, seconds: float = 300) -> int | None:
    """The exit code of a process, once it and everything that it started have ended."""
    process.join(seconds)
    assert process.pid is not None
    until(lambda: not living_processes(process.pid), 120)
    return process.exitcode


def workers(leader: int) -> list[int]:
    """The processes of a session that are Parsl's workers, which are known by the log that each has open."""
    return [process for process in living_processes(leader) if _has_log(process)]


def _has_log(process: int) -> bool:
    try:
        files = [os.readlink(path) for path in Path(f"/proc/{process}/fd").iterdir()]
    except OSError:
        return False
    return any(re.search(r"/worker_\d+\.log$", file) for file in files)


def kill(process: int) -> None:
    """SIGKILL to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def until(happened: Callable[[], object], seconds: float = 90) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def own_address() -> str:
    """The address of this machine in its network, as jobs of a queue reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine is in no network")
        return str(asked.getsockname()[0])


def peptides(path: Path, count: int, seed: int = 0) -> Path:
    """A file of short chains, the last of which has the sequence of the first."""
    random = np.random.default_rng(seed)
    chains = ["".join(random.choice(list("ACDEFGHIKLMNPQRSTVWY"), 8 + number % 7)) for number in range(count)]
    chains[-1] = chains[0]
    path.write_text("".join(f">t{number:04d}\n{chain}\n" for number, chain in enumerate(chains)))
    return path


def done(output: Path) -> set[str]:
    """The targets that are finished."""
    return {path.parent.name for path in output.glob("*/ranking_debug.json")}


def contents(output: Path) -> dict[str, bytes]:
    """All files of all targets, but for times."""
    return {
        str(path.relative_to(output)): without_command(path)
        for directory in output.iterdir()
        if directory.is_dir() and not directory.name.startswith(".")
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith(_TIMED)
    }


def fake_slurm(directory: Path, *, refuses: str | None = None, runs: bool = True) -> dict[str, str]:
    """Stand-ins for the programs of SLURM, which run jobs on this machine or only keep their scripts; returns the
    environment that finds them.
    """
    directory.mkdir()
    jobs = directory / "jobs"
    jobs.mkdir()
    submit = f"""
if [ -n "{refuses or ""}" ]; then echo "sbatch: error: {refuses}" >&2; exit 1; fi
number=$(($(ls {jobs} | wc -l) + 1))
grep -q '^#SBATCH --nodes=1' "$1" || exit 1
out=$(sed -n 's/^#SBATCH --output=//p' "$1") err=$(sed -n 's/^#SBATCH --error=//p' "$1")
cp "$1" {jobs}/$number
{"" if runs else 'echo "Submitted batch job $number"; exit 0'}
setsid bash "$1" > "$out" 2> "$err" < /dev/null &
echo $! > {directory}/$number.pid
echo "Submitted batch job $number"
"""
    queue = f"""
for file in {directory}/*.pid; do
    number=$(basename "$file" .pid)
    if kill -0 "$(cat "$file")" 2> /dev/null; then echo "$number R"; fi
done
"""
    cancel = f'for job in "$@"; do kill -9 -- -"$(cat {directory}/"$job".pid)" 2> /dev/null; done; true'
    account = 'echo "Slurm accounting storage is disabled" >&2; exit 1'
    for name, script in (("sbatch", submit), ("squeue", queue), ("scancel", cancel), ("sacct", account)):
        path = directory / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}
