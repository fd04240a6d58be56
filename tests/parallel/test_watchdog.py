"""Lost ranks are named, by one of those that are left."""

from types import SimpleNamespace

import pytest
import torch.distributed as dist

from helixfold.parallel import watchdog
from helixfold.parallel.watchdog import LostRankError, report_lost_ranks


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    """A store in which ranks report, and a clock that a pause moves on."""
    store, now = dist.HashStore(), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(watchdog, "_get_default_store", lambda: store)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    return store


@pytest.mark.parametrize(
    ("size", "left", "named"),
    [(3, [2], "rank 0 of 3"), (5, [2, 4], "ranks 0, 3 of 5"), (2, [0], "ranks lost each other")],
)
def test_the_ranks_that_do_not_report_are_named(
    size: int, left: list[int], named: str, store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: size)
    for rank in left:
        store.set(f"left/{rank}", "")
    with pytest.raises(LostRankError) as caught, report_lost_ranks(7):
        raise RuntimeError("[gloo] Timed out waiting")
    assert str(caught.value).startswith(named)
    assert ("did not answer for 7 s, or ended" in str(caught.value)) == ("lost each other" not in named)
    assert caught.value.should_report == (0 not in left)  # of those that are left, the first prints it
    assert store.check(["left/1"])  # so that the others know of this one


def test_ranks_that_never_met_have_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    with pytest.raises(LostRankError, match=r"ranks did not meet \(some rank did not come\)") as caught:  # noqa: SIM117
        with report_lost_ranks(7):
            raise dist.DistStoreError("some rank did not come\nat all")
    assert caught.value.should_report


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(RuntimeError, match="out of memory") as caught, report_lost_ranks(7):
        raise RuntimeError("out of memory")
    assert not isinstance(caught.value, LostRankError)
