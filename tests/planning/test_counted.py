"""What was counted is kept for every call that means the same."""

from helixfold.planning.counted import counted_once


def test_a_call_that_names_a_default_is_the_same_as_one_that_leaves_it_out() -> None:
    counted = []

    @counted_once
    def count(size: int, rows: int = 2, *, plain: bool = False) -> int:
        counted.append((size, rows, plain))
        return size * rows

    assert [count(3), count(3, 2), count(size=3, plain=False), count(rows=2, size=3)] == [6] * 4
    assert counted == [(3, 2, False)]
    assert [count(3, 3), count(3, plain=True)] == [9, 6]
    assert counted[1:] == [(3, 3, False), (3, 2, True)]
    assert (count.__name__, count.__wrapped__(4)) == ("count", 8)
    count.cache_clear()
    assert (count(3), len(counted)) == (6, 5)
