"""Searches whose result is there already are not made again."""

import json
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError, SearchError, TooLargeError
from data_pipeline.search.result_files import ResultFiles

FILE, IDENTITY, QUERY, CONTENT = "hits.sto", "tool 1", b"MKT", b"found"


def parse(content: bytes) -> str:
    if content.startswith(b"bad"):
        raise InputError(f"{FILE}, line 1: it is bad")
    return content.decode()


@pytest.fixture
def results(tmp_path: Path) -> ResultFiles:
    results = ResultFiles(directory=tmp_path / "msas")
    results.save(FILE, IDENTITY, QUERY, CONTENT, parse)
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
    results.save("other.sto", IDENTITY, QUERY, b"second", parse)
    results.save(FILE, "tool 2", QUERY, b"third", parse)
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


def test_a_result_that_cannot_be_read_is_not_kept(results: ResultFiles) -> None:
    files = {path.name: path.read_bytes() for path in results.directory.iterdir()}
    problem = "the result of a search cannot be read and is not stored: hits.sto, line 1: it is bad"
    with pytest.raises(SearchError, match=problem):
        results.save(FILE, "tool 2", QUERY, b"bad", parse)
    with pytest.raises(SearchError, match=problem):
        results.find_or_search("other.sto", IDENTITY, QUERY, lambda: b"bad", parse)
    assert {path.name: path.read_bytes() for path in results.directory.iterdir()} == files


def test_a_bad_result_that_an_earlier_version_kept_is_searched_again(results: ResultFiles) -> None:
    results.save(FILE, IDENTITY, QUERY, b"bad", bytes.decode)
    assert results.find_or_search(FILE, IDENTITY, QUERY, lambda: b"good", parse) == (b"good", "good")
    assert results.find(FILE, IDENTITY, QUERY) == b"good"
    assert results.find_or_search(FILE, IDENTITY, QUERY, lambda: b"not asked", parse) == (b"good", "good")


def test_a_sound_result_with_too_many_rows_is_kept_to_be_read_with_fewer(results: ResultFiles) -> None:
    def too_many(content: bytes) -> str:
        raise TooLargeError("read fewer rows")

    searched: list[bytes] = []

    def search() -> bytes:
        searched.append(b"large")
        return b"large"

    for _ in range(2):
        with pytest.raises(TooLargeError, match="read fewer rows"):
            results.find_or_search("large.sto", IDENTITY, QUERY, search, too_many)
    assert results.find_or_search("large.sto", IDENTITY, QUERY, search, parse) == (b"large", "large")
    assert len(searched) == 1
