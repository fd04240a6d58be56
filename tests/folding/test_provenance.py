"""Records of what made a prediction: each once, read back as they were, without secrets."""

from dataclasses import asdict, replace

import pytest

from data_pipeline.search.database import SearchedDatabase
from helixfold.folding.provenance import (
    Provenance,
    RecordedSearch,
    provenance_entries,
    read_provenance,
    recorded_command,
    without_output,
)

RECORD = Provenance(
    software={"helixfold": "1"},
    device={"kind": "cpu"},
    threads=3,
    ranks=2,
    targets_at_once=4,
    executor="slabs",
    slab_budget=5,
    backends={"attention": ("one", "two")},
    features="f",
    searches=(
        RecordedSearch(
            purpose="pairs",
            search="mmseqs",
            databases=(
                SearchedDatabase(name="a", version="1", size=2, url="u"),
                SearchedDatabase(name="b", version=None, size=None, url=None),
            ),
        ),
    ),
    templates=("1abc_A",),
    command=("helixfold", "predict"),
)


def test_equal_records_are_one_entry_and_read_back_as_they_were() -> None:
    other = replace(RECORD, threads=9, slab_budget=None)
    given = {"a": RECORD, "b": other, "c": replace(RECORD)}
    entries = provenance_entries(given)
    assert [each["predictions"] for each in entries] == [["a", "c"], ["b"]]
    assert read_provenance(entries) == given


@pytest.mark.parametrize("name", [field for field in asdict(RECORD) if field != "executor"])
def test_a_damaged_record_is_left_out_and_others_stay(name: str) -> None:
    (entry,) = provenance_entries({"a": RECORD})
    lacking = {key: value for key, value in entry.items() if key != name}
    assert read_provenance([lacking, entry | {"predictions": ["b"]}]).keys() == {"b"}


@pytest.mark.parametrize("entries", [None, {}, [7], [{"predictions": ["a"]}]])
def test_what_is_no_list_of_records_has_none(entries: object) -> None:
    assert read_provenance(entries) == {}


def test_a_command_is_recorded_without_secrets_and_without_thousands_of_words() -> None:
    words = (
        "helixfold",
        "--url=https://me:pass@x.org/a?key=1&b=2",
        "HTTP://token@y.org",
        "a@b?c",
        "ftp://z.org/?q rest",
    )
    assert recorded_command(words) == (
        "helixfold",
        "--url=https://***@x.org/a?***",
        "HTTP://***@y.org",
        "a@b?c",
        "ftp://z.org/?*** rest",
    )
    assert recorded_command(["x" * 1000] * 4) == ("x" * 1000,) * 4
    assert recorded_command(["x" * 1000] * 9) == (*("x" * 1000,) * 4, "... and 5 more words")


def test_where_results_go_is_no_part_of_a_command() -> None:
    for words in (("--output", "here"), ("--output=here",), ("--output", "--output=x", "there")):
        assert without_output(["helixfold", *words, "a", "--outputs", "b"]) == ["helixfold", "a", "--outputs", "b"]
