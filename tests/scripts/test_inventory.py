"""Losses are differences, additions are none, and removed.toml explains exactly what it names."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts import inventory
from tests.inventory.digest import digest

BASELINE: dict[str, Any] = {
    "options": {"helixfold predict": {"--seed": ["int", "0"], "--msa": ["Path", "None"]}},
    "service": {"POST /api/v1/jobs": ["answer 200"], "message Job": {"name": "string required"}},
    "formats": {"environment variables": ["HELIXFOLD_A", "HELIXFOLD_B"]},
    "runs": {
        "predict": {
            "exit codes": [0],
            "says slabs": True,
            "out/t/confidence.json": {"plddt": 50.2, "ptm": None},
            "out/t/scores.tsv": {"rows": 2, "name": "text", "score": 1.0},
            "out/t/pae.npz": {"pae": ["float32 10x10", 3.0, 1.0]},
        }
    },
}


def drop(*path: str) -> Callable[[Any], object]:
    def change(found: Any) -> None:
        for name in path[:-1]:
            found = found[name]
        del found[path[-1]]

    return change


def put(value: Any, *path: str) -> Callable[[Any], object]:
    def change(found: Any) -> None:
        for name in path[:-1]:
            found = found[name]
        found[path[-1]] = value

    return change


LOSSES = {
    "an option": (drop("options", "helixfold predict", "--msa"), "options > helixfold predict > --msa"),
    "a default": (put(["int", "1"], "options", "helixfold predict", "--seed"), "options > helixfold predict > --seed"),
    "a key": (drop("runs", "predict", "out/t/confidence.json", "ptm"), "runs > predict > out/t/confidence.json > ptm"),
    "a value": (put(52.0, "runs", "predict", "out/t/confidence.json", "plddt"), "runs > predict > out/t/conf*"),
    "a route": (drop("service", "POST /api/v1/jobs"), "service > POST /api/v1/jobs"),
    "a field": (drop("service", "message Job", "name"), "service > message Job > name"),
    "an exit code": (put([1], "runs", "predict", "exit codes"), "runs > predict > exit codes"),
    "a fallback": (put(False, "runs", "predict", "says slabs"), "runs > predict > says slabs"),
    "a file": (drop("runs", "predict", "out/t/pae.npz"), "runs > predict > out/t/pae.npz"),
    "a shape": (
        put(["float32 9x9", 3.0, 1.0], "runs", "predict", "out/t/pae.npz", "pae"),
        "runs > predict > out/t/pae*",
    ),
    "a variable": (put(["HELIXFOLD_A"], "formats", "environment variables"), "formats > environment variables"),
    "a column": (drop("runs", "predict", "out/t/scores.tsv", "score"), "runs > predict > out/t/scores.tsv > score"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_one_difference_until_an_entry_explains_it(loss: str) -> None:
    change, pattern = LOSSES[loss]
    found = copy.deepcopy(BASELINE)
    change(found)
    differences, additions = inventory.compare(BASELINE, found)
    assert (len(differences), additions) == (1, [])
    assert inventory.without_removals(differences, {"runs > another": {}}) == (differences, ["runs > another"])
    assert inventory.without_removals(differences, {pattern: {}}) == ([], [])
    assert inventory.without_removals(differences, {pattern.rpartition(" > ")[0]: {}}) == ([], [])


def test_an_addition_is_no_difference() -> None:
    found = copy.deepcopy(BASELINE)
    found["runs"]["predict"]["out/t/more.json"] = {"a": 1}
    found["options"]["helixfold predict"]["--more"] = ["int", "0"]
    additions = ["options > helixfold predict > --more", "runs > predict > out/t/more.json"]
    assert inventory.compare(BASELINE, found) == ([], additions)


@pytest.mark.parametrize(
    ("found", "added"),
    [
        ("(a, b='x, y', c=1, *, key=...)", ["c=1"]),
        ("(a, b='x, y', *, other=..., *, key=...)", ["*, other=..."]),
        ("(a, b='x, y', *, key=..., *, needed)", None),
        ("(a, c=1, b='x, y', *, key=...)", None),
        ("(a, b='x', *, key=...)", None),
        ("(a, b='x, y')", None),
    ],
)
def test_only_an_optional_parameter_that_moves_no_other_is_an_addition(found: str, added: list[str] | None) -> None:
    differences, additions = inventory.compare({"f": "(a, b='x, y', *, key=...)"}, {"f": found})
    assert additions == ([] if added is None else [f"f: {', '.join(added)}"])
    assert len(differences) == (added is None)


@pytest.mark.parametrize(
    ("found", "added"),
    [(["a", "new", "b"], ["new"]), (["b", "a", "new"], None), (["a", "new"], None), (["b", "a"], None)],
)
def test_only_words_that_a_list_gains_are_an_addition(found: list[str], added: list[str] | None) -> None:
    differences, additions = inventory.compare({"words": ["a", "b"]}, {"words": found})
    assert additions == ([] if added is None else ["words: new"])
    assert len(differences) == (added is None)


def test_rounding_of_another_processor_is_no_difference() -> None:
    found = copy.deepcopy(BASELINE)
    found["runs"]["predict"]["out/t/confidence.json"]["plddt"] = 50.9
    found["runs"]["predict"]["out/t/pae.npz"]["pae"] = ["float32 10x10", 3.02, 0.99]
    assert inventory.compare(BASELINE, found) == ([], [])


def test_a_removal_needs_a_replacement_and_a_changelog_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "REMOVED", tmp_path / "removed.toml")
    assert inventory.read_removals() == {}
    inventory.REMOVED.write_text('[[removed]]\nname = "a"\ninstead = "b"\n')
    with pytest.raises(SystemExit, match="'a' lacks changelog"):
        inventory.read_removals()
    inventory.REMOVED.write_text('[[removed]]\nname = "a"\ninstead = "b"\nchangelog = "c"\n')
    assert list(inventory.read_removals()) == ["a"]


def test_the_text_of_a_part_is_read_back_and_has_a_line_for_each_item() -> None:
    text = inventory.to_text(BASELINE["runs"])
    assert json.loads(text) == BASELINE["runs"]
    assert len(text.splitlines()) == 9


def test_digests_show_keys_columns_and_values() -> None:
    content = b'{"models": [{"plddt": 1.0, "seconds": 3}, {"plddt": 2.0, "seconds": 4}], "name": "t", "ok": true}'
    assert digest("a.json", content) == {
        "models[].plddt": 1.5,
        "models[].seconds": "number",
        "name": "text",
        "ok": "bool",
    }
    assert digest("a.tsv", b"name\tscore\na\t1\nb\t2\n") == {"rows": 2, "name": "text", "score": 1.5}
    assert digest("a.json", b"{") == "unreadable: JSONDecodeError"


def test_files_of_runs_are_in_the_table_of_files() -> None:
    runs = inventory.read_part("runs")
    assert inventory.unknown_files(runs) == []
    runs["predict"] |= {
        "out/good/ranked.pdb": {},
        "out/good/msas/a/hits.sto": {},
        "out/new.tsv": {},
        "elsewhere.tsv": {},
    }
    runs["design binder"] |= {"out/helix_short/confidence_tiny.json": {}, "out/.claims/1": {}}
    assert [name for name, _ in inventory.unknown_files(runs)] == [
        "runs > design binder > out/helix_short/confidence_tiny.json",
        "runs > predict > out/good/ranked.pdb",
        "runs > predict > out/new.tsv",
    ]
