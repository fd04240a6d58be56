"""What the processes of tests/parallel/test_worker_group.py and test_launch.py run."""

import fcntl
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from helixfold.execution.whole import Whole
from helixfold.parallel.launch import launch
from helixfold.parallel.worker_group import OtherRankError, WorkerGroup, join_workers, local_world_size, wait_until

TASKS = ["a", "b", "c", "d"]


def total(workers: WorkerGroup) -> float:
    number = torch.ones(1)
    dist.all_reduce(number, group=workers.mesh.axial.handle)
    return float(number)


def fail_in_turn() -> None:
    """Two ranks that share tasks: one fails while the other waits for it in a collective, and then they go on."""
    with join_workers("cpu", 2, timeout=10.0) as workers:
        assert (workers.group.size, workers.is_leader) == (2, workers.mesh.rank == 0)
        errors = []
        for wrong in (RuntimeError("broken"), MemoryError("out of memory"), None):
            try:
                with workers.executor_on_group(Whole()):
                    if wrong is not None and workers.mesh.rank == 1:
                        raise wrong
                    assert total(workers) == 2.0
            except (OtherRankError, RuntimeError, MemoryError) as error:
                errors.append((type(error), str(error)))
        if workers.mesh.rank == 1:
            assert errors == [(RuntimeError, "broken"), (MemoryError, "out of memory")]
        else:
            told = "{}: {} (on rank 1 of the 2 ranks of this task)"
            assert errors == [
                (OtherRankError, told.format("RuntimeError", "broken")),
                (MemoryError, told.format("MemoryError", "out of memory")),
            ]
        if workers.is_leader:
            assert list(workers.take_tasks(3)) == [0, 1, 2]
            workers.group.send({"target": "a"})
            workers.group.send(None)
        else:
            assert [workers.group.receive(), workers.group.receive()] == [{"target": "a"}, None]


def use_the_store(lock: Path) -> int:
    """Use the store of the launching process for a minute, and hold a lock meanwhile."""
    with lock.open("a") as file, join_workers("cpu") as workers:
        fcntl.flock(file, fcntl.LOCK_SH)
        (lock.parent / f"{workers.mesh.rank}.began").touch()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            workers.queue.leave(workers.mesh.rank)
    return 0


def launch_two(lock: Path) -> int:
    """Launch two processes that use the store."""
    return launch(use_the_store, lock, count=2).code


def die_with_a_task(given: tuple[Path, int]) -> int:
    """One of two processes is killed while it has a task; the other does the rest."""
    directory, dies = given
    with join_workers("cpu") as workers:
        assert (workers.mesh.size, local_world_size(), os.environ["OWN"]) == (2, 2, "yes")
        if workers.mesh.is_first:
            workers.queue.open(TASKS)
        workers.world.all_gather(None)
        for number in workers.take_tasks(len(TASKS)):
            if workers.mesh.rank == dies:
                (directory / "taken").write_text(TASKS[number])
                os.kill(os.getpid(), signal.SIGKILL)
            wait_until((directory / "taken").exists)
            workers.queue.report(number)
            with (directory / "done").open("a") as file:
                file.write(TASKS[number])
        workers.leave()
        return len(workers.queue.failures())


def fail_at_the_start(_: None) -> int:
    """Before the list has begun one process ends the run."""
    if os.environ["RANK"] == "1":
        return 2
    wait_until(lambda: False)
    return 0
