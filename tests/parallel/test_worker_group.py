"""Ranks that work on a task together fail together, and are ready for the next one."""

from pathlib import Path

import pytest

from helixfold.parallel.worker_group import ControlChannel, WorkerGroup
from tests.parallel import worker_groups
from tests.training.ranks import Ranks


def test_a_process_alone_takes_all_tasks_and_asks_nobody() -> None:
    workers = WorkerGroup.alone()
    assert workers.is_leader
    assert list(workers.take_tasks(3)) == [0, 1, 2]
    workers.leave()
    assert ControlChannel().all_gather({"a": 1}) == [{"a": 1}]
    with pytest.raises(KeyError, match="own"), ControlChannel().together():
        raise KeyError("own")


def test_who_waits_for_a_rank_that_failed_fails_with_it(tmp_path: Path) -> None:
    with Ranks(2, tmp_path / "printed", worker_groups.fail_in_turn) as processes:
        assert processes.finish() == [0, 0], processes.printed()
