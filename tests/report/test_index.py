"""The page of a batch lists every target, finished or not, and outlives damaged files and hostile names."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from helixfold.report import index
from helixfold.report.index import line_entry, write_index
from helixfold.report.target_page import write_report
from helixfold.results.packed import pack_targets
from tests.report.reported import write_dimer, write_target

HOSTILE = "</td><script>alert(1)</script>"


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("batch")
    write_target(directory / "good", noise=0.3, models=["model_1_ptm", "model_2_ptm"])
    write_target(directory / "poor", noise=3.0)
    write_report(directory / "good")
    return directory


@pytest.fixture
def output(batch: Path, tmp_path: Path) -> Path:
    """A copy of the batch to change."""
    return Path(shutil.copytree(batch, tmp_path / "batch"))


def rows_of(output: Path) -> dict[str, str]:
    """The text of each row, by target."""
    body = (output / "index.html").read_text(encoding="utf-8").partition("<tbody>")[2].partition("</tbody>")[0]
    rows = {}
    for row in body.split("</tr>")[:-1]:
        words = re.sub(r"<[^>]*>", " ", row).split()
        rows[words[0]] = " ".join(words[1:])
    return rows


def test_each_target_has_a_line_with_its_figures(output: Path) -> None:
    write_index(output)
    rows = rows_of(output)
    assert list(rows) == ["good", "poor"]
    order = json.loads((output / "good" / "ranking_debug.json").read_text())["order"]
    best = json.loads((output / "good" / f"confidence_{order[0]}.json").read_text())
    assert f"{best['mean_plddt']:.1f}" in rows["good"]
    assert rows["good"].startswith(f"{len(best['plddt'])} ")
    page = (output / "index.html").read_text()
    assert 'href="./good/report.html"' in page
    assert 'href="./poor/report.html"' not in page


def test_ip_tm_has_a_column_where_there_are_complexes(output: Path) -> None:
    write_index(output)
    assert "ipTM" not in (output / "index.html").read_text()
    write_dimer(output / "dimer")
    write_index(output, ["waiting"])
    page = (output / "index.html").read_text()
    heads = re.findall(r'data-kind="\w+"><span>(.*?)</span></button>', page)
    assert heads[3:6] == ["pTM", "ipTM", "MSA rows"]
    assert f'colspan="{len(heads)}"' in page
    rows = rows_of(output)
    assert rows["dimer"].split()[3] == "0.71"
    assert rows["good"].split()[3] == "\u2013"


def test_targets_that_failed_or_are_not_finished_are_there_too(output: Path) -> None:
    (output / "poor" / "ranking_debug.json").unlink()
    write_index(output, ["good", "poor", "waiting"], {"bad": "NotEnoughMemoryError: 20 GiB"})
    rows = rows_of(output)
    assert rows["bad"] == "failed: NotEnoughMemoryError: 20 GiB"
    assert rows["poor"] == rows["waiting"] == "not finished"


def test_a_slim_target_is_relaxed_if_its_best_prediction_was(output: Path) -> None:
    best, other = json.loads((output / "good" / "ranking_debug.json").read_text())["order"]
    for path in (*(output / "good").glob("*relaxed_*"),):
        path.unlink()
    write_index(output)
    plain = rows_of(output)["good"]
    for metrics, is_relaxed in (
        ({best: {"failed": "no force field"}, other: {"rounds": 1}}, False),
        ({best: {"rounds": 1}, other: {"failed": "no force field"}}, True),
    ):
        (output / "good" / "relax_metrics.json").write_text(json.dumps(metrics))
        write_index(output)
        assert (rows_of(output)["good"] != plain) == is_relaxed


def test_slim_targets_have_no_time_in_all(output: Path) -> None:
    write_index(output)
    assert "total time</span>" in (output / "index.html").read_text()
    for path in output.glob("*/timings.json"):
        path.unlink()
    write_index(output)
    assert "total time</span>" not in (output / "index.html").read_text()


def test_failures_are_read_from_their_file_where_none_are_given(output: Path) -> None:
    (output / "failures.json").write_text(json.dumps({"bad": "it was too long"}))
    write_index(output)
    assert rows_of(output)["bad"] == "failed: it was too long"
    (output / "failures.json").write_text("[")
    write_index(output)
    assert "not a complete JSON file" in rows_of(output)["failures.json"]


@pytest.mark.parametrize("file", ["ranking_debug.json", "confidence_model_1_ptm.json", "timings.json"])
@pytest.mark.parametrize("content", ["", "[]", '{"order": [], "stages": 3}', "[" * 100_000])
def test_a_damaged_file_is_a_line_that_says_so(output: Path, file: str, content: str) -> None:
    (output / "poor" / file).write_text(content)
    write_index(output)
    rows = rows_of(output)
    assert "failed" not in rows["good"]
    # Times without stages are none, and nothing is wrong with them.
    if file != "timings.json" or not content.startswith("{") or "stages" in content:
        assert file in rows["poor"]


def test_names_and_reasons_are_text(output: Path) -> None:
    write_index(output, ["javascript:alert(1)"], {HOSTILE: HOSTILE, "x": "\u202e<b>"})
    page = (output / "index.html").read_text(encoding="utf-8")
    assert page.count("<script>") == 1
    assert "<b>" not in page
    assert 'href="javascript' not in page


def test_what_has_not_changed_is_not_read_again(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(
        index,
        "read_prediction",
        lambda directory, name, of=index.read_prediction: (read.append(directory.name), of(directory, name))[1],
    )
    write_index(output)
    assert sorted(read) == ["good", "poor"]
    read.clear()
    write_report(output / "poor")
    write_index(output)
    assert read == ["poor"]
    assert 'href="./poor/report.html"' in (output / "index.html").read_text()


def test_nothing_else_in_the_directory_is_taken_for_a_target(output: Path) -> None:
    (output / "notes").mkdir()
    (output / "notes" / "a.txt").write_text("")
    write_index(output)
    assert list(rows_of(output)) == ["good", "poor"]


def described(directory: Path) -> dict[str, Any]:
    return {"line": line_entry(directory)}


def test_packed_targets_have_the_lines_of_directories(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dimer(output / "dimer")
    write_index(output)
    before = (output / "index.html").read_text()
    assert pack_targets(output, ["good", "dimer"], described) == {}
    monkeypatch.setattr(index, "read_prediction", lambda directory, name: pytest.fail(f"{directory} is read again"))
    write_index(output)
    after = (output / "index.html").read_text()
    assert after.count("packed in packed/000001.zip") == 2
    assert 'href="./good/report.html"' not in after
    assert without_names(after) == without_names(before)


def without_names(page: str) -> list[str]:
    return [line for line in page.splitlines() if not line.startswith('<td class="name"')]


def test_a_packed_target_without_a_line_is_read_from_its_files(output: Path) -> None:
    write_index(output)
    before = rows_of(output)
    assert (
        pack_targets(output, ["good", "poor"], lambda directory: {"line": {} if directory.name == "good" else 3}) == {}
    )
    write_index(output)
    assert {name: row.removeprefix("packed in packed/000001.zip ") for name, row in rows_of(output).items()} == before


@pytest.mark.parametrize("change", [{"letters": "<b>"}, {"residues": 10**12}, {"mark": "<b>"}, {"mean_plddt": "<b>"}])
def test_a_hostile_line_of_an_archive_is_not_shown(output: Path, change: dict[str, object]) -> None:
    def hostile(directory: Path) -> dict[str, Any]:
        return {"line": {**line_entry(directory), "title": "<b>", **change}}

    pack_targets(output, ["good"], hostile)
    write_index(output)
    assert "<b>" not in (output / "index.html").read_text()
    assert "failed" not in rows_of(output)["good"]


def test_a_damaged_archive_is_a_line_that_says_so(output: Path) -> None:
    pack_targets(output, ["good"], described)
    (output / "packed" / "000001.zip").write_bytes(b"PK")
    write_index(output)
    rows = rows_of(output)
    assert list(rows) == ["packed/000001.zip", "poor"]
    assert "is damaged" in rows["packed/000001.zip"]
