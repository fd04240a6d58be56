"""The list of tasks: each is taken once, and what became of it is known in the end."""

from helixfold.parallel.queue import Queue


def test_tasks_are_taken_once_and_their_fate_is_known() -> None:
    queue = Queue()
    assert not queue.has_begun
    queue.begin(["a", "b", "c", "d"])
    assert queue.has_begun
    assert [queue.take() for _ in range(3)] == [0, 1, 2]
    queue.finished(0)
    queue.finished(1, "it was bad")
    assert queue.failures_so_far() == {"b": "it was bad"}
    assert queue.number_finished() == 1
    failures = queue.failures()
    assert list(failures) == ["b", "c", "d"]
    assert failures["b"] == "it was bad"
    assert "ended from outside" in failures["c"]
    assert "no process was left" in failures["d"]


def test_who_has_left_is_known() -> None:
    queue = Queue()
    queue.leave(1)
    assert queue.left([1])
    assert not queue.left([0, 1])
