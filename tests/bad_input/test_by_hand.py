"""Bad inputs of every kind, written by hand: one sentence that helps, exit code 2, and nothing is written anywhere."""

import re
from pathlib import Path

import pytest

from tests.bad_input.alignments import ALIGNMENTS
from tests.bad_input.arrays import ARRAYS
from tests.bad_input.case import Case, lay_out
from tests.bad_input.complexes import COMPLEXES
from tests.bad_input.meeting import met
from tests.bad_input.options import OPTIONS
from tests.bad_input.sequences import SEQUENCES
from tests.bad_input.training import TRAINING

CASES = SEQUENCES | COMPLEXES | ALIGNMENTS | ARRAYS | OPTIONS | TRAINING


@pytest.fixture(autouse=True)
def no_downloaded_weights(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.getbasetemp() / "no_parameters"
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: empty)


def test_many_bad_records_are_a_list_that_ends(tmp_path: Path) -> None:
    (tmp_path / "x.fasta").write_bytes(b">\n" * 20_000)
    found = met("predict x.fasta", tmp_path)
    assert (found.code, len(found.said)) == (2, 21)
    assert found.said[0] == "helixfold: error: x.fasta, line 1: the name is empty; write one after '>'"
    assert found.said[-1] == "helixfold: error: ... and 19,980 more"
    assert not found.changed


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_bad_input_is_one_sentence_and_leaves_nothing(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    lay_out(folder, case.files)
    found = met(case.command, folder)
    assert found.code == 2, found.said
    assert len(found.said) == 1, found.said
    (sentence,) = found.said
    assert re.match(r"helixfold( \w+)*: error: ", sentence)
    assert sentence.isprintable()
    assert len(sentence) < 1200
    assert not [part for part in case.says if part not in sentence], sentence
    assert not found.changed
