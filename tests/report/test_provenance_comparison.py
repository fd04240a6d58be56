"""What differs between two results is named with both values, and what is the same by its name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.io.errors import InputError
from helixfold.folding.provenance import Provenance, provenance_entries
from helixfold.report.provenance import ProvenanceComparison, compare_provenance
from tests.report.test_provenance import RECORD

MODELS = ("model_1_ptm", "model_2_ptm")


def settings(
    *records: Provenance, names: tuple[str, ...] = MODELS, seeds: tuple[int, ...] = (3, 3), **changed: Any
) -> dict[str, Any]:
    predictions = {name: {"model": name, "seed": seed} for name, seed in zip(names, seeds, strict=False)}
    content = {
        "inputs": {"sequence": "MKT", "msa": [{"name": "a.a3m", "sha256": "b" * 64}], "features": None},
        "options": {"num_recycles": 3, "max_msa": [1, 2]},
        "predictions": predictions,
        "provenance": provenance_entries(dict(zip(names, records, strict=False))),
    }
    return content | changed


def compared(tmp_path: Path, first: dict[str, Any], second: dict[str, Any]) -> ProvenanceComparison:
    for name, content in (("first", first), ("second", second)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "settings.json").write_text(json.dumps(content))
    return compare_provenance(tmp_path / "first", tmp_path / "second" / "settings.json")


def test_equal_results_have_every_value_in_words(tmp_path: Path) -> None:
    record = replace(RECORD, command=(*RECORD.command, "--output", "here"))
    found = compared(
        tmp_path, settings(RECORD, RECORD), settings(record, replace(record, command=(*RECORD.command, "--output=x")))
    )
    assert (found.differences, found.recorded) == ({}, (True, True))
    assert dict(found.same) == {
        **{"sequence": "MKT", "msa": "b" * 64, "features given": "none", "num recycles": "3", "max msa": "1, 2"},
        **{
            "predictions": "model_1_ptm, model_2_ptm",
            "seed": "3",
            "weights": "none",
            "training of the weights": "none",
        },
        "model": "model_1_ptm model_1_ptm, model_2_ptm model_2_ptm",
        **{"helixfold": "9.8.7", "torch": "2.1", "device": found.same["device"], "threads": "3", "processes": "2"},
        **{"targets at once": "4", "executor": "slabs", "slab budget": str(2**28), "features": "f" * 64},
        **{
            "databases": found.same["databases"],
            "templates read": "1abc_A",
            "command": "helixfold predict 'a b.fasta'",
        },
        **{"operator attention": "triton", "operator linear": "one and two"},
    }
    assert "A <GPU>" in found.same["device"]
    assert "uniref30_2302_db" in found.same["databases"]
    (last,) = found.lines()
    assert last.startswith("the same: sequence, msa, features given, ")
    assert last.endswith(", command, 2 operators")


def test_differences_have_the_value_of_the_first_result_first(tmp_path: Path) -> None:
    other = replace(RECORD, threads=8, templates=(), features="e" * 64, slab_budget=None)
    other = replace(other, backends={"attention": ("cpu",)}, command=("helixfold", "predict", "b.fasta", "--seed", "1"))
    found = compared(
        tmp_path,
        settings(RECORD, RECORD),
        settings(RECORD, other, seeds=(3, 4), options={"num_recycles": 1, "new": True}),
    )
    differences = dict(found.differences)
    command = differences.pop("command")
    assert differences == {
        **{"num recycles": ("3", "1"), "max msa": ("1, 2", "none"), "new": ("none", "true")},
        "seed": ("3", "model_1_ptm 3, model_2_ptm 4"),
        "threads": ("3", "model_1_ptm 3, model_2_ptm 8"),
        "slab budget": (str(2**28), f"model_1_ptm {2**28}, model_2_ptm none"),
        "features": ("f" * 64, f"model_1_ptm {'f' * 64}, model_2_ptm {'e' * 64}"),
        "templates read": ("1abc_A", "model_1_ptm 1abc_A, model_2_ptm none"),
        "operator attention": ("triton", "model_1_ptm triton, model_2_ptm cpu"),
        "operator linear": ("one and two", "model_1_ptm one and two, model_2_ptm none"),
    }
    assert command[0] == "helixfold predict 'a b.fasta'"
    lines = list(found.lines())
    width = len("operator attention")
    place = next(place for place, line in enumerate(lines) if line.startswith("features"))
    # Digests are shortened to twelve digits.
    assert lines[place : place + 2] == [
        f"{'features':{width}}  first   {'f' * 12}",
        f"{'':{width}}  second  model_1_ptm {'f' * 12}, model_2_ptm {'e' * 12}",
    ]


def test_commands_are_shown_by_the_words_that_the_other_lacks(tmp_path: Path) -> None:
    other = replace(RECORD, command=("helixfold", "predict", "b.fasta", "--seed", "1"))
    found = compared(tmp_path, settings(RECORD, RECORD), settings(other, other))
    assert [line.split("  ")[-1] for line in found.lines() if "first" in line] == [" 'a b.fasta'"]
    assert [line.split("  ")[-1] for line in found.lines() if "second" in line] == ["b.fasta --seed 1"]
    longer = replace(RECORD, command=(*RECORD.command, "x" * 99))
    lines = list(compared(tmp_path, settings(RECORD, RECORD), settings(longer, longer)).lines())
    assert lines[0].endswith("first   none")
    assert len(lines[1]) < 70 + len("command  second  ") + 9


def test_predictions_that_one_result_lacks_are_one_difference(tmp_path: Path) -> None:
    found = compared(
        tmp_path, settings(RECORD, replace(RECORD, threads=9)), settings(RECORD, names=MODELS[:1], seeds=(3,))
    )
    assert dict(found.differences) == {"predictions": ("model_1_ptm, model_2_ptm", "model_1_ptm")}
    assert found.same["threads"] == "3"


def test_results_without_a_record_say_so(tmp_path: Path) -> None:
    bare = settings(helixfold="0.1.0")
    found = compared(tmp_path, bare, bare)
    assert found.recorded == (False, False)
    assert found.same["helixfold"] == "0.1.0"
    assert next(iter(found.lines())) == "programs, device and command: recorded in neither"
    one = compared(tmp_path, bare, settings(RECORD, RECORD))
    assert one.recorded == (False, True)
    assert one.differences["threads"] == ("not recorded", "3")
    assert one.differences["helixfold"] == ("0.1.0", "9.8.7")
    partly = compared(tmp_path, settings(RECORD), settings(RECORD, RECORD))
    assert partly.differences["threads"] == ("model_1_ptm 3, model_2_ptm not recorded", "3")


def test_what_is_no_result_is_one_sentence(tmp_path: Path) -> None:
    compared(tmp_path, settings(RECORD), settings(RECORD))
    with pytest.raises(InputError, match=r"has 2 results; pass one of them, such as .*first"):
        compare_provenance(tmp_path, tmp_path / "second")
    (tmp_path / "second" / "settings.json").unlink()
    # The only one in a directory is found.
    assert compare_provenance(tmp_path, tmp_path / "first").differences == {}
    (tmp_path / "a.pdb").touch()
    (tmp_path / "empty.json").write_text('{"predictions": {}}')
    for name, problem in (
        ("second", "not a result; pass the directory of a target"),
        ("nowhere", "not a result; pass the directory of a target"),
        ("a.pdb", "to compare structures, use `helixfold evaluate`"),
        ("empty.json", "has no predictions"),
    ):
        with pytest.raises(InputError, match=problem):
            compare_provenance(tmp_path / "first", tmp_path / name)
