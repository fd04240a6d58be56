"""Every target is searched for and folded once or fails once, wherever it fits."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helixfold.apps.cluster.schedule import PoolEstimate, Schedule

ANY_LENGTH = 10**9


def pool(name: str, slots: int, longest: int, per_residue: float = 1.0) -> PoolEstimate:
    return PoolEstimate(
        name=name, slots=slots, longest=longest, seconds=lambda residues: per_residue * residues, task_seconds=1200.0
    )


SEARCH = pool("search", 3, ANY_LENGTH, 0.1)
SMALL, LARGE = pool("small", 3, 300), pool("large", 2, 900)
lengths = st.lists(st.integers(1, 1200), max_size=60)


def schedule(residues: list[int], search: PoolEstimate | None = None, **others: set[int]) -> Schedule:
    return Schedule([str(each) for each in residues], residues, search, [SMALL, LARGE], **others)


@settings(max_examples=60, deadline=None)
@given(lengths, st.booleans(), st.data())
def test_every_target_ends_once_where_it_fits(residues: list[int], searches: bool, data: st.DataObject) -> None:
    found = schedule(residues, SEARCH if searches else None)
    ended, searched = Counter[int](found.unfit), Counter[int]()
    while found.open:
        target = data.draw(st.sampled_from(sorted(found.open)))
        pools = found.pools_for(target)
        is_search = pools == [SEARCH]
        assert pools
        assert all(each.fits(residues[target]) for each in pools)
        failure = data.draw(st.sampled_from([None, None, "is broken"]))
        found.end(target, failure)
        searched[target] += is_search
        ended[target] += not is_search or failure is not None
    assert ended == Counter(range(len(residues)))
    assert set(searched.values()) <= {0, 1}
    assert found.finished + len(found.failures) + len(found.unfit) == len(residues)
    assert {target for target, length in enumerate(residues) if length > 900} == set(found.unfit)


def test_the_longest_goes_first_and_equal_sequences_are_neighbors() -> None:
    found = Schedule(["CCC", "AAAA", "DDD", "CCC", "AAA"], [3, 4, 3, 3, 3], None, [SMALL])
    assert list(found.open) == [1, 4, 0, 3, 2]


def test_the_rest_takes_as_long_as_the_slower_of_searches_and_folding() -> None:
    found = schedule([100, 200, 300], pool("search", 1, ANY_LENGTH, 0.1), searched={2})
    assert found.search_seconds() == pytest.approx(30)
    # Two pools of five slots together, each forecast to take 600 s for all.
    assert found.seconds() == pytest.approx(600 / 5)
    found.end(0, None)
    assert found.search_seconds() == pytest.approx(20)
    found.end(2, None)
    assert found.seconds() == pytest.approx(300 / 5)
    slow = schedule([100, 200, 300], pool("search", 2, ANY_LENGTH, 10.0), searched={2})
    assert slow.seconds() == pytest.approx(10 * 300 / 2)


def test_what_is_finished_before_is_left_out_and_what_fits_nowhere_is_told() -> None:
    found = schedule([100, 1000, 300, 100], SEARCH, searched={2}, already_finished={0})
    assert (found.unfit, list(found.open), found.to_search, found.longest) == ([1], [2, 3], {3}, 900)
    assert found.pools_for(3) == [SEARCH]
    assert found.pools_for(2) == [SMALL, LARGE]
    found.end(3, "the search is broken")
    assert (found.failures, list(found.open), found.to_search) == ({3: "the search is broken"}, [2], set())
