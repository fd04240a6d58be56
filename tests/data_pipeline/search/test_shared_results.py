"""Results of searches are kept by the hash of search and query."""

from pathlib import Path

import pytest

from data_pipeline.search.colabfold_search import SharedResults


def test_a_result_is_found_by_its_search_and_query_alone(tmp_path: Path) -> None:
    kept = SharedResults(tmp_path / "kept")
    assert kept.find("search 1", "MKV") is None
    kept.save("search 1", "MKV", b"rows")
    kept.save("search 1", "AAA", b"")
    other = SharedResults(tmp_path / "kept")
    assert other.find("search 1", "MKV") == b"rows"
    assert other.find("search 1", "AAA") == b""  # no hits is a result
    assert other.find("search 2", "MKV") is None
    assert other.find("search 1", "MK") is None


@pytest.mark.parametrize("damage", [lambda _: b"", lambda content: content[:-9], lambda _: b"x" * 50])
def test_a_damaged_result_is_not_used_and_can_be_replaced(tmp_path: Path, damage: object) -> None:
    kept = SharedResults(tmp_path)
    kept.save("search", "MKV", b"rows")
    (path,) = tmp_path.glob("*/*")
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert kept.find("search", "MKV") is None
    kept.save("search", "MKV", b"rows")
    assert kept.find("search", "MKV") == b"rows"
