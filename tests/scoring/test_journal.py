"""The results of a run that is killed at any moment are there for the next one, and those of other settings are not."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.errors import InputError
from helixfold.scoring.journal import Journal

SETTINGS = {"model": "tiny", "seed": 0}
RESULTS = {f"t/{number}": {"plddt": number / 3, "name": "é\n"} for number in range(4)}


def write(path: Path) -> None:
    with Journal(path, SETTINGS, overwrite=True) as journal:
        for key, result in RESULTS.items():
            journal.add(key, result)


@cache
def whole() -> bytes:
    with TemporaryDirectory() as directory:
        write(Path(directory) / "whole.jsonl")
        return (Path(directory) / "whole.jsonl").read_bytes()


@given(st.floats(0, 1))
def test_whatever_was_written_whole_is_read_again(share: float) -> None:
    first = whole().index(b"\n") + 1
    left = whole()[: first + round(share * (len(whole()) - first))]
    with TemporaryDirectory() as directory:
        path = Path(directory) / "killed.jsonl"
        path.write_bytes(left)
        with Journal(path, SETTINGS) as journal:
            kept = dict(journal.results)
            # A line without its line feed is whole, too.
            assert left.count(b"\n") - 1 <= len(kept) <= left.count(b"\n")
            assert kept == dict(list(RESULTS.items())[: len(kept)])
            journal.add("more", {"plddt": 1.0})
        with Journal(path, SETTINGS) as journal:
            assert journal.results == {**kept, "more": {"plddt": 1.0}}


def test_results_of_other_settings_are_refused_and_can_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    write(path)
    with pytest.raises(InputError, match=r"other settings \(seed 0, now 1\); give another --output, or --overwrite"):
        Journal(path, {**SETTINGS, "seed": 1})
    path.write_text("{")
    with pytest.raises(InputError, match="first line is damaged"):
        Journal(path, SETTINGS)
    with Journal(path, SETTINGS, overwrite=True) as journal:
        assert not journal.results
