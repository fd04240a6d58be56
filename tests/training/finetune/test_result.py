"""A result has the scores of each held-out target before and after, and is read as it was written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helixfold.report.finetuning import PageTable
from helixfold.training.finetune import result
from helixfold.training.finetune.result import FinetuningResult, TargetScores, read_result, signed, write_result


def target(name: str, before: float, after: float) -> TargetScores:
    scores = [{"lddt_ca": each, "tm_score": each / 2, "plddt": 100 * each} for each in (before, after)]
    return TargetScores(name=name, residues=1200, before=scores[0], after=scores[1])


RESULT = FinetuningResult(
    name="kinases",
    adapter="lora",
    base="small",
    base_sha256="abc",
    steps=1500,
    best_step=1200,
    skipped=3,
    targets=(target("worse", 0.7, 0.6), target("better", 0.5, 0.8), target("same", 0.4, 0.5)),
)


def test_changes_are_what_is_after_minus_what_was_before() -> None:
    change = RESULT.change("lddt_ca")
    assert change is not None
    assert change.value == pytest.approx(0.1)
    means = RESULT.means()
    assert means["targets"] == 3
    assert (means["lddt_ca"]["before"], means["lddt_ca"]["after"]) == (0.5333, 0.6333)
    assert (means["plddt"]["before"], means["tm_score"]["after"]) == (53.3333, 0.3167)
    assert means["lddt_ca"]["change"]["mean"] == pytest.approx(0.1)
    assert signed(replace(change, value=0.1, low=-0.05, high=0.25)) == "+0.100 (-0.050 to +0.250)"
    nothing = replace(RESULT, targets=())
    assert nothing.change("lddt_ca") is None
    assert nothing.means() == {}


def test_the_page_begins_with_the_target_that_gained_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[dict[str, object]] = []
    monkeypatch.setattr(
        result, "write_finetuning_page", lambda path, **content: pages.append({"path": path, **content})
    )
    output = tmp_path / "adapter.safetensors"
    output.write_bytes(b"x" * 1234)
    facts = {"training_set": {"name": "set", "chains": 2500}}
    write_result(tmp_path, RESULT, output, facts)
    (page,) = pages
    assert (page["path"], page["title"], page["picture"]) == (tmp_path / "finetuning.html", "kinases", None)
    figures = page["figures"]
    assert isinstance(figures, dict)
    assert figures["steps"] == "1,500"
    assert figures["bytes of the file"] == "1,234"
    assert figures["CA-lDDT of held-out targets, 95 % interval"].startswith("+0.100 (")
    (table,) = page["tables"]  # type: ignore[misc]
    assert isinstance(table, PageTable)
    assert table.columns[2:5] == ["CA-lDDT before", "CA-lDDT after", "CA-lDDT change"]
    assert table.columns[8:] == ["pLDDT before", "pLDDT after", "pLDDT change"]
    assert [row[0] for row in table.rows] == ["better", "same", "worse"]
    assert table.rows[2] == [
        *("worse", "1,200", "0.700", "0.600", "-0.100", "0.350", "0.300", "-0.050", "70.0", "60.0", "-10.0")
    ]
    assert page["facts"] == {
        "Parameters": "adapter.safetensors",
        "Trained": "lora",
        "Began with": "small (SHA-256 abc)",
        "Training set": "set, 2,500 chains",
        "Kept": "step 1,200, the best on held-out targets",
        "Steps skipped": "3",
    }
    (tmp_path / "curves.png").write_bytes(b"png")
    write_result(tmp_path, replace(RESULT, best_step=None, targets=()), output, facts)
    assert pages[1]["facts"]["Kept"] == "the last step"  # type: ignore[index]
    assert pages[1]["picture"] == b"png"
    assert list(pages[1]["figures"]) == ["steps", "bytes of the file"]  # type: ignore[call-overload]


def test_a_result_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "write_finetuning_page", lambda *_, **__: None)
    (tmp_path / "adapter").touch()
    assert read_result(tmp_path) is None
    write_result(tmp_path, RESULT, tmp_path / "adapter", {"training_set": {"name": "set", "chains": 2}})
    assert read_result(tmp_path) == RESULT
    content = json.loads((tmp_path / "finetuning.json").read_text())
    assert content["means"] == RESULT.means()
    del content["result"]["steps"]
    (tmp_path / "finetuning.json").write_text(json.dumps(content))
    assert read_result(tmp_path) is None
