"""The table and the page of a pulldown rank what is finished, and outlive damaged files and hostile names."""

import json
import re
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from helixfold.report.pulldown import (
    PulldownEntry,
    pulldown_entry,
    read_entries,
    write_entries,
    write_pulldown,
)
from helixfold.results.packed import pack_targets

HOSTILE = "</td><script>alert(1)</script>"


def entry(name: str, baits: tuple[str, ...] = ("x",), preys: tuple[str, ...] = ("y",)) -> PulldownEntry:
    chains = tuple("ABCDEF"[: len(baits)])
    return PulldownEntry(name=name, baits=baits, preys=preys, bait_chains=chains)


def interface(chains: str, ipsae: float | None, pdockq: float, **other: float) -> dict[str, object]:
    return {"chains": list(chains), "ipsae": ipsae, "pdockq": pdockq, "contacts": 7, **other}


def finish(
    output: Path, name: str, interfaces: list[dict[str, object]], *, iptm: float | None = None, plddt: float = 70.0
) -> None:
    """Write what a finished complex leaves for the table."""
    directory = output / name
    directory.mkdir()
    ptm = None if iptm is None else 0.5
    confidence = {"plddt": [plddt] * 9, "mean_plddt": plddt, "iptm": iptm, "ptm": ptm, "interfaces": interfaces}
    (directory / "confidence_model.json").write_text(json.dumps(confidence))
    (directory / "ranking_debug.json").write_text(json.dumps({"order": ["model"]}))


def rows(output: Path) -> dict[str, dict[str, str]]:
    """The lines of the table, by complex, in their order."""
    header, *lines = (output / "pulldown.tsv").read_text().splitlines()
    found = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    return {line["complex"]: line for line in found}


def test_finished_complexes_are_ranked_by_iptm_and_ptm_and_others_come_last(tmp_path: Path) -> None:
    names = ("low", "waiting", "high", "failed", "middle")
    write_entries(tmp_path, [entry(name) for name in names])
    for name, iptm in (("low", 0.2), ("high", 0.9), ("middle", 0.5)):
        finish(tmp_path, name, [interface("AB", 0.3, 0.1)], iptm=iptm)
    assert write_pulldown(tmp_path, {"failed": "MemoryError: too long"})
    found = rows(tmp_path)
    assert list(found) == ["high", "middle", "low", "failed", "waiting"]
    assert [line["rank"] for line in found.values()] == ["1", "2", "3", "NA", "NA"]
    assert found["high"]["score"] == "0.82"
    assert (found["failed"]["status"], found["failed"]["problem"]) == ("failed", "MemoryError: too long")
    assert (found["waiting"]["status"], found["waiting"]["score"]) == ("not finished", "NA")
    assert "0.8 ipTM + 0.2 pTM" in (tmp_path / "pulldown.html").read_text()


def test_without_aligned_errors_complexes_are_ranked_by_pdockq(tmp_path: Path) -> None:
    write_entries(tmp_path, map(entry, "ab"))
    finish(tmp_path, "a", [interface("AB", None, 0.1)], plddt=90)
    finish(tmp_path, "b", [interface("AB", None, 0.2)], plddt=50)
    write_pulldown(tmp_path)
    assert list(rows(tmp_path)) == ["b", "a"]
    assert "by pDockQ" in (tmp_path / "pulldown.html").read_text()


def test_the_scores_are_those_of_the_best_interface_of_a_bait_and_a_prey(tmp_path: Path) -> None:
    write_entries(tmp_path, [entry("x", ("h", "l"), ("p", "p")), entry("alone")])
    between_baits, between_preys = interface("AB", 0.9, 0.7), interface("CD", 0.8, 0.7)
    across = [interface("AC", 0.1, 0.5), interface("BD", 0.4, 0.2, interface_pae=6.5), interface("BC", None, 0.6)]
    finish(tmp_path, "x", [between_baits, *across, between_preys], iptm=0.5)
    finish(tmp_path, "alone", [], iptm=0.1)
    write_pulldown(tmp_path)
    found = rows(tmp_path)
    assert (found["x"]["bait"], found["x"]["prey"]) == ("h:l", "p*2")
    assert (found["x"]["interface"], found["x"]["interface_ipsae"], found["x"]["interface_pae"]) == (
        "B:D",
        "0.4",
        "6.5",
    )
    assert found["x"]["interface_contacts"] == "7"
    assert (found["alone"]["interface"], found["alone"]["interface_contacts"]) == ("NA", "NA")


def test_entries_of_earlier_runs_stay(tmp_path: Path) -> None:
    write_entries(tmp_path, [entry("a"), entry("b", ("old",))])
    write_entries(tmp_path, [entry("b", ("new",)), entry("c")])
    assert [(each.name, each.bait) for each in read_entries(tmp_path)] == [("a", "x"), ("b", "new"), ("c", "x")]


def test_another_output_directory_has_no_table(tmp_path: Path) -> None:
    assert not write_pulldown(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_damaged_files_make_lines_and_no_failures(tmp_path: Path) -> None:
    write_entries(tmp_path, map(entry, "abc"))
    for name in "abc":
        finish(tmp_path, name, [interface("AB", 0.3, 0.1)], iptm=0.5)
    (tmp_path / "a" / "confidence_model.json").write_text('{"plddt": 3}')
    (tmp_path / "b" / "ranking_debug.json").write_text('{"order": ["../../etc"]}')
    write_pulldown(tmp_path)
    found = rows(tmp_path)
    assert [line["status"] for line in found.values()] == ["finished", "failed", "failed"]
    assert "expected a list" in found["a"]["problem"]
    (tmp_path / "pulldown.json").write_text('{"complexes": [{"name": 1}]}')
    with pytest.raises(InputError, match=r"complexes\[0\]\.name: expected text"):
        write_pulldown(tmp_path)


def test_names_and_reasons_are_escaped(tmp_path: Path) -> None:
    pairs = [entry(f"{bait}_{prey}", (bait,), (prey,)) for bait in (HOSTILE, "b") for prey in (HOSTILE, "p")]
    write_entries(tmp_path, pairs)
    write_pulldown(tmp_path, {f"b_{HOSTILE}": HOSTILE})
    text = (tmp_path / "pulldown.html").read_text()
    assert HOSTILE not in text
    assert "&lt;/td&gt;&lt;script&gt;" in text


def test_the_matrix_has_every_bait_and_prey(tmp_path: Path) -> None:
    pairs = [entry(f"{bait}_{prey}", (bait,), (prey,)) for bait in "abc" for prey in "xyz" if bait + prey != "cz"]
    write_entries(tmp_path, [*pairs, entry("again", ("b",), ("y",))])
    finish(tmp_path, "b_y", [interface("AB", 0.3, 0.1)], iptm=1.0)
    finish(tmp_path, "again", [interface("AB", 0.3, 0.1)], iptm=0.5)
    write_pulldown(tmp_path)
    matrix = (tmp_path / "pulldown.html").read_text().partition('class="matrix"')[2].partition("</table>")[0]
    assert re.findall(r'scope="row">(\w)<', matrix) == ["a", "b", "c"]
    assert re.findall(r"<span>(\w)<", matrix) == ["x", "y", "z"]
    assert re.findall(r'class="level(\d)" title="(\w+)">([\d.]+)<', matrix) == [("4", "b_y", "0.90")]
    assert len(re.findall(r"<td[^>]*>", matrix.partition("<tbody>")[2])) == 9


@pytest.mark.parametrize("has_line", [True, False])
def test_packed_complexes_are_ranked_as_others(has_line: bool, tmp_path: Path) -> None:
    write_entries(tmp_path, map(entry, "abc"))
    for name, iptm in (("a", 0.2), ("b", 0.9), ("c", None)):
        finish(tmp_path, name, [interface("AB", 0.3, 0.1, lis=0.25)], iptm=iptm)
    write_pulldown(tmp_path)
    before = (tmp_path / "pulldown.tsv").read_text(), (tmp_path / "pulldown.html").read_text()
    describe = (lambda directory: {"pulldown": pulldown_entry(directory)}) if has_line else (lambda _: {})
    assert pack_targets(tmp_path, "abc", describe) == {}
    write_pulldown(tmp_path)
    assert ((tmp_path / "pulldown.tsv").read_text(), (tmp_path / "pulldown.html").read_text()) == before
