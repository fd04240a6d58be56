"""Every target is done once or fails once, wherever it fits, whatever is lost on the way."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helixfold.cluster.schedule import MOST_RETRIES, PoolForecast, Schedule, Task, describe_forecast

ANY_LENGTH = 10**9
MINUTE = 60.0


def pool(name: str, slots: int, longest: int, per_residue: float = 1.0, minutes: float = 20) -> PoolForecast:
    return PoolForecast(
        name=name,
        slots=slots,
        longest=longest,
        seconds=lambda residues: per_residue * residues,
        task_seconds=minutes * MINUTE,
    )


SEARCH = pool("search", 3, ANY_LENGTH, 0.1)
SMALL, LARGE = pool("small", 3, 300), pool("large", 2, 900)
lengths = st.lists(st.integers(1, 1200), max_size=60)


def schedule(residues: list[int], *, search: bool = True, groups: list[int] | None = None) -> Schedule:
    return Schedule(residues, groups or list(range(len(residues))), SEARCH if search else None, [SMALL, LARGE])


@pytest.mark.integration
@settings(max_examples=150, deadline=None)
@given(lengths, st.booleans(), st.data())
def test_every_target_ends_once_where_it_fits_whatever_is_lost(
    residues: list[int], search: bool, data: st.DataObject
) -> None:
    found = schedule(residues, search=search)
    running: list[Task] = []
    searched, ended = Counter[int](), Counter[int]()
    pools = {each.name: each for each in (SEARCH, SMALL, LARGE)}
    for target in found.unfit:
        found.fail(target, "does not fit")
        ended[target] += 1
    names = [*(["search"] if search else []), "small", "large"]
    while not found.is_over:
        for name in names:
            while (task := found.next_task(name)) is not None:
                running.append(task)
        assert running, "nothing runs, and the batch is not over"
        for name in names:
            assert sum(task.pool == name for task in running) == found.running(name) <= pools[name].slots
        assert max(Counter(target for task in running for target in task.targets).values()) == 1
        task = running.pop(data.draw(st.integers(0, len(running) - 1)))
        assert all(pools[task.pool].fits(residues[target]) for target in task.targets)
        found.end(task, data.draw(st.sampled_from([None, task.seconds * 2])))
        for target in task.targets:
            match data.draw(st.sampled_from(["done", "done", "done", "failed", "lost", "again"])):
                case "done" if task.pool == "search":
                    searched[target] += 1
                    found.found(target)
                case "done":
                    ended[target] += 1
                    found.finish(target)
                case "failed":
                    ended[target] += 1
                    found.fail(target, "is broken")
                case "lost":
                    found.put_back(task, target)
                case "again":
                    found.try_again(task, target, "out of memory")
                    ended[target] += target in found.failures
    assert ended == Counter(range(len(residues)))
    assert all(residues[target] <= 900 for target in searched)
    assert found.finished + len(found.failures) == len(residues)
    assert {target for target, length in enumerate(residues) if length > 900} == set(found.unfit)


@settings(max_examples=60, deadline=None)
@given(lengths)
def test_the_longest_that_fits_goes_first_and_a_task_is_no_longer_than_it_should_be(residues: list[int]) -> None:
    found = schedule([min(length, 900) for length in residues], search=False)
    left = sorted(found.residues)
    while (task := found.next_task("large")) is not None:
        taken = [found.residues[target] for target in task.targets]
        assert taken == left[len(left) - len(taken) :][::-1]
        del left[len(left) - len(taken) :]
        # Without the last, it was not yet as long as it should be.
        assert task.seconds - taken[-1] < LARGE.task_seconds
        found.end(task, task.seconds)
    assert not left


def test_what_runs_out_of_memory_goes_to_the_larger_pool_alone_and_fails_after_two_more_tries() -> None:
    found = schedule([200, 200, 200], search=False)
    task = found.next_task("small")
    assert task is not None
    found.end(task)
    target, *others = task.targets
    found.try_again(task, target, "out of memory")
    for other in others:
        found.finish(other)
    for tries in range(MOST_RETRIES):
        again = found.next_task("small")
        while again is not None:  # the small pool gets whatever else is left
            assert target not in again.targets
            again = found.next_task("small")
        again = found.next_task("large")
        assert again is not None
        assert again.targets == (target,)
        found.end(again)
        found.try_again(again, target, "out of memory")
        assert (target in found.failures) == (tries == MOST_RETRIES - 1)
    assert found.failures[target] == f"out of memory (tried {MOST_RETRIES + 1} times)"


def test_equal_sequences_are_searched_in_one_task() -> None:
    short = replace(SEARCH, task_seconds=1.0)
    found = Schedule([100] * 12, [0, 1, 2, 3] * 3, short, [SMALL])
    tasks = [found.next_task("search") for _ in range(3)]
    assert all(task is not None and len({found.groups[each] for each in task.targets}) == 1 for task in tasks)
    assert all(task is not None and len(task.targets) == 3 for task in tasks)


def test_targets_are_folded_as_soon_as_they_are_found_and_divided_among_free_workers() -> None:
    found = Schedule([100] * 30, range(30), SEARCH, [replace(SMALL, task_seconds=16_000.0)])
    assert found.next_task("small") is None
    task = found.next_task("search")
    assert task is not None
    found.end(task, task.seconds)
    for target in task.targets:
        found.found(target)
    tasks = [found.next_task("small") for _ in range(SMALL.slots)]
    assert all(task is not None for task in tasks)


def test_a_pools_pace_makes_its_tasks_as_long_as_they_should_be() -> None:
    found = Schedule([100] * 10_000, range(10_000), None, [pool("one", 1, 300)])
    sizes = []
    for _ in range(8):
        task = found.next_task("one")
        assert task is not None
        sizes.append(len(task.targets))
        found.end(task, task.seconds / 50)  # a target takes 2 s, not 100
    assert sizes[0] <= 3  # a quarter of 20 minutes, by the forecast
    assert sizes[-1] == pytest.approx(600, rel=0.01)
    assert found.pace("one") == pytest.approx(0.02)


def test_the_rest_takes_as_long_as_the_slower_of_searches_and_folding() -> None:
    found = Schedule([100, 200, 300], range(3), replace(SEARCH, slots=1), [SMALL, LARGE], searched={2})
    assert found.search_seconds == pytest.approx(30)
    assert found.waiting == {"search": 2, "folding": 1}
    # Two pools of five slots together, each forecast to take 600 s for all.
    assert found.seconds_left() == pytest.approx(600 / 5)
    slow = Schedule([100, 200, 300], range(3), pool("search", 2, ANY_LENGTH, 10.0), [SMALL], searched={2})
    assert slow.seconds_left() == pytest.approx(10 * 300 / 2)
    task = slow.next_task("search")
    assert task is not None
    slow.end(task, 3 * task.seconds)
    assert slow.pace("search") == pytest.approx(3)
    assert slow.pace("small") is None


def test_what_is_finished_before_is_left_out_and_what_fits_nowhere_is_told() -> None:
    found = Schedule([100, 1000, 300, 100], range(4), SEARCH, [SMALL, LARGE], searched={2}, left_out={0})
    assert (found.unfit, set(found.open_targets), found.remaining, found.finished_before) == ([1], {2, 3}, 2, 1)
    assert found.longest == 900
    lost = found.next_task("search")
    assert lost is not None
    found.end(lost)
    found.put_back(lost, 3)
    assert found.waiting == {"search": 1, "folding": 1}
    folded = found.next_task("small")
    assert folded is not None
    found.put_back(folded, 2)
    assert found.waiting == {"search": 1, "folding": 1}
    assert found.pace("search") is None  # a task that was lost tells nothing


def test_each_target_is_forecast_for_the_smallest_pool_that_it_fits_into() -> None:
    assert describe_forecast([100, 300, 301, 900, 901], [LARGE, pool("small", 1, 300, 2.0)]) == {
        "large": (2, 1201.0),
        "small": (2, 800.0),
    }


def test_a_target_alone_waits_for_a_pool_that_is_larger_unless_there_is_none() -> None:
    found = schedule([200], search=False)
    small = found.next_task("small")
    assert small is not None
    found.end(small)
    found.try_again(small, 0, "out of memory")
    assert found.next_task("small") is None
    large = found.next_task("large")
    assert large is not None
    found.end(large)
    found.try_again(large, 0, "out of memory")
    assert found.next_task("small") is None
    assert found.next_task("large") is not None  # no pool is larger
