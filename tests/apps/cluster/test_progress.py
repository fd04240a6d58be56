"""The status of a batch is read back as it was written; a damaged file counts as missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from helixfold.apps.cluster import progress
from helixfold.apps.cluster.progress import STATUS_FILE, BatchStatus, PoolStatus, read_status, status_lines
from helixfold.results.packed import pack_targets

POOL = {"name": "gpu", "running": 1, "pending": 0, "tasks": 2, "targets": 3}
STATUS: dict[str, Any] = {
    "time": 5.0,
    "state": "running",
    "targets": 3,
    "to_search": 1,
    "to_fold": 1,
    "finished": 1,
    "failed": 0,
}
STATUS = STATUS | {"seconds_left": None, "pools": [POOL]}


def write(output: Path, content: Any) -> None:
    (output / ".cluster").mkdir()
    (output / ".cluster" / STATUS_FILE).write_text(json.dumps(content))


def test_a_written_status_is_read(tmp_path: Path) -> None:
    status = BatchStatus(**STATUS | {"pools": [PoolStatus(**POOL)]})
    status.write(tmp_path)
    assert read_status(tmp_path) == status


@pytest.mark.parametrize(
    "content",
    [
        [],
        STATUS | {"time": "now"},
        STATUS | {"time": 10**400},
        STATUS | {"targets": []},
        STATUS | {"to_search": "1"},
        STATUS | {"seconds_left": "5"},
        STATUS | {"pools": 1},
        STATUS | {"pools": [POOL | {"running": "1"}]},
        {name: value for name, value in STATUS.items() if name != "state"},
    ],
)
def test_a_damaged_status_counts_as_none(content: Any, tmp_path: Path) -> None:
    write(tmp_path, content)
    assert read_status(tmp_path) is None
    (line,) = status_lines(tmp_path)
    assert line == "no target has started; a run is prepared in its first seconds"


@pytest.mark.parametrize(
    ("age", "said"), [(4, "running, last heard 4 s ago; 1 to search"), (75, "last heard 75 s ago; if")]
)
def test_the_age_of_the_status_is_told_and_earlier_versions_are_read(
    age: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, STATUS | {"pools": [POOL | {"pace": 1.5}]})
    monkeypatch.setattr(progress.time, "time", lambda: STATUS["time"] + age)
    total, cluster, *_ = status_lines(tmp_path)
    assert total == "0 of 3 targets done, 0 with features, 0 failed"  # those that have not started are known
    assert cluster.startswith(f"cluster: {said}")


def test_packed_targets_are_done(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / ("features.npz" if name == "c" else "ranking_debug.json")).write_text("")
    assert list(status_lines(tmp_path)) == ["2 of 3 started targets done, 1 with features, 0 failed"]
    pack_targets(tmp_path, "a", lambda _: {})
    assert list(status_lines(tmp_path)) == ["2 of 3 started targets done (1 packed), 1 with features, 0 failed"]
    (tmp_path / "packed" / "000002.zip").write_text("")
    first, second = status_lines(tmp_path)
    assert "000002.zip" in first
    assert second.startswith("2 of 3 started targets done (1 packed)")
