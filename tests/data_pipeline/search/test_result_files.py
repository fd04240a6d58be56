"""Searches whose result is there already are not made again."""

import json
from pathlib import Path

import pytest

from data_pipeline.errors import InputError
from data_pipeline.search.result_files import ResultFiles

FILE, IDENTITY, QUERY, CONTENT = "hits.sto", "tool 1", b"MKT", b"found"


@pytest.fixture
def results(tmp_path: Path) -> ResultFiles:
    results = ResultFiles(directory=tmp_path / "msas")
    results.save(FILE, IDENTITY, QUERY, CONTENT)
    return results


def test_the_result_of_the_same_search_is_found(results: ResultFiles) -> None:
    assert results.find(FILE, IDENTITY, QUERY) == CONTENT
    assert (results.directory / FILE).read_bytes() == CONTENT


@pytest.mark.parametrize("other", [(FILE, "tool 2", QUERY), (FILE, IDENTITY, b"MKV"), ("other.sto", IDENTITY, QUERY)])
def test_another_search_is_not(results: ResultFiles, other: tuple[str, str, bytes]) -> None:
    assert results.find(*other) is None


def test_a_file_that_was_edited_is_not_taken_for_the_result(results: ResultFiles) -> None:
    (results.directory / FILE).write_bytes(b"foun")
    assert results.find(FILE, IDENTITY, QUERY) is None


def test_a_file_without_a_record_is_not_taken_for_the_result(results: ResultFiles) -> None:
    (results.directory / "other.sto").write_bytes(CONTENT)
    assert results.find("other.sto", IDENTITY, QUERY) is None


def test_a_new_result_takes_the_place_of_the_old_and_leaves_others(results: ResultFiles) -> None:
    results.save("other.sto", IDENTITY, QUERY, b"second")
    results.save(FILE, "tool 2", QUERY, b"third")
    assert results.find(FILE, IDENTITY, QUERY) is None
    assert results.find(FILE, "tool 2", QUERY) == b"third"
    assert results.find("other.sto", IDENTITY, QUERY) == b"second"


@pytest.mark.parametrize("content", ["[]", "{", '"text"'])
def test_a_damaged_record_is_named(results: ResultFiles, content: str) -> None:
    (results.directory / "searches.json").write_text(content)
    with pytest.raises(InputError, match=r"searches\.json"):
        results.find(FILE, IDENTITY, QUERY)


def test_the_record_says_what_was_searched(results: ResultFiles) -> None:
    record = json.loads((results.directory / "searches.json").read_text())
    assert record[FILE]["search"] == IDENTITY
