"""The results of a run that is killed at any moment are there for the next one, and those of other settings are not."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from helixfold.results.journal import Journal

TEXTS = ("name",)
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
        with Journal(path, SETTINGS, texts=TEXTS) as journal:
            kept = dict(journal.results)
            # A line without its line feed is whole, too.
            assert left.count(b"\n") - 1 <= len(kept) <= left.count(b"\n")
            assert kept == dict(list(RESULTS.items())[: len(kept)])
            journal.add("more", {"plddt": 1.0})
        with Journal(path, SETTINGS, texts=TEXTS) as journal:
            assert journal.results == {**kept, "more": {"plddt": 1.0}}


def test_results_of_other_settings_are_refused_and_can_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    write(path)
    with pytest.raises(InputError, match=r"other settings \(seed 0, now 1\); pass --overwrite or another --output"):
        Journal(path, {**SETTINGS, "seed": 1})
    path.write_text("{")
    with pytest.raises(InputError, match="first line is damaged"):
        Journal(path, SETTINGS, texts=TEXTS)
    with Journal(path, SETTINGS, overwrite=True) as journal:
        assert not journal.results


@pytest.mark.parametrize(
    "result",
    [
        '{"plddt": "high"}',
        '{"plddt": [1]}',
        '{"plddt": {"a": 1}}',
        '{"plddt": true}',
        '{"plddt": NaN}',
        f'{{"plddt": 1{"0" * 400}}}',
        '{"name": 1}',
        '{"scores": 1}',
        '{"scores": {"a": "b"}}',
        '"text"',
        "[" * 10_000,
    ],
)
def test_a_result_of_wrong_types_is_made_again(result: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = json.dumps({"settings": SETTINGS})
    sound = '{"key": "sound", "result": {"plddt": null, "name": null, "scores": {"a": null, "b": 1}}}'
    path.write_text(f'{first}\n{{"key": "damaged", "result": {result}}}\n{sound}\n')
    with Journal(path, SETTINGS, texts=TEXTS, tables=("scores",)) as journal:
        assert list(journal.results) == ["sound"]
