"""The list of tasks: each is taken once, and what became of it is known in the end."""

from helixfold.parallel.task_queue import TaskQueue


def test_tasks_are_taken_once_and_their_fate_is_known() -> None:
    queue = TaskQueue()
    assert not queue.is_open
    queue.open(["a", "b", "c", "d"])
    assert queue.is_open
    assert [queue.take() for _ in range(3)] == [0, 1, 2]
    queue.report(0)
    queue.report(1, "it was bad")
    assert queue.failures_so_far() == {"b": "it was bad"}
    assert queue.number_finished() == 1
    failures = queue.failures()
    assert list(failures) == ["b", "c", "d"]
    assert failures["b"] == "it was bad"
    assert "ended from outside" in failures["c"]
    assert "no process was left" in failures["d"]


def test_lots_are_taken_whole() -> None:
    queue = TaskQueue()
    queue.open(["a", "b", "c", "d", "e"], lots=[2, 1, 2])
    assert [queue.take(), queue.take()] == [0, 1]
    queue.report(0)
    failures = queue.failures()
    assert list(failures) == ["b", "c", "d", "e"]
    assert ["ended from outside" in failures[name] for name in "bcde"] == [True, True, False, False]


def test_who_has_left_is_known() -> None:
    queue = TaskQueue()
    queue.leave(1)
    assert queue.have_left([1])
    assert not queue.have_left([0, 1])
