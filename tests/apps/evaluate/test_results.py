"""Tables of an evaluation have every score in its column, read back and compared with what they are made from."""

import csv
import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from helixfold.analysis.benchmark_groups import TargetSize
from helixfold.analysis.complexes import ComplexComparison, InterfaceComparison
from helixfold.apps.evaluate.results import complex_content, complex_table, screen_table, write_evaluation
from tests.support.evaluated import evaluated

COMPLEX = ComplexComparison(
    chains=(("H", "B"), ("L", "A"), ("x", "C")),
    reference_chains=4,
    residues=26,
    compared=23,
    dockq=0.61234,
    interface_lddt=None,
    tm_score=0.71,
    rmsd=2.34567,
    interfaces=(
        InterfaceComparison(
            reference_chains=("H", "L"),
            predicted_chains=("B", "A"),
            native_contacts=17,
            fnat=0.41,
            irms=1.52,
            lrms=4.63,
            dockq=0.54,
            capri="medium",
            lddt=0.65,
        ),
        InterfaceComparison(
            reference_chains=("L", "x"),
            predicted_chains=("A", "C"),
            native_contacts=3,
            fnat=0.11,
            irms=9.22,
            lrms=14.33,
            dockq=0.14,
            capri="incorrect",
            lddt=math.nan,
        ),
    ),
)
RESULTS = [
    evaluated("a", 0.7, plddt=91.23456, complex=COMPLEX),
    evaluated("a", 0.2, rank=1, plddt=None, by_sequence=True),
    evaluated("b", 0.3, plddt=40.0),
]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    write_evaluation(tmp_path, RESULTS, {"c": "it has no reference"}, ["d.pdb"], {"more": 3})
    return tmp_path


def text(value: object) -> str:
    return "NA" if value is None else str(round(value, 4)) if isinstance(value, float) else str(value)


def test_every_score_is_in_the_column_of_its_name(output: Path) -> None:
    expected = [
        {"target": each.target, "rank": each.rank, "reference": f"{each.target}_ref"}
        | {"matched_by": "sequence" if each.rank else "name", **asdict(each.scores)}
        for each in RESULTS
    ]
    assert rows(output / "scores.tsv") == [{key: text(value) for key, value in row.items()} for row in expected]
    content = json.loads((output / "scores.json").read_text())
    assert content["scores"] == [
        {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()} for row in expected
    ]
    assert content["summary"]["count"] == 2
    assert content["summary"]["means"] == pytest.approx(
        {"lddt": 0.51, "lddt_ca": 0.5, "tm_score": 0.52, "gdt_ts": 0.53, "gdt_ha": 0.54, "rmsd": 2, "plddt": 65.6173},
        abs=1e-4,
    )
    assert (content["failures"], content["references_without_prediction"]) == ({"c": "it has no reference"}, ["d.pdb"])
    assert content["more"] == 3


def test_every_residue_has_a_line_with_its_own_scores(output: Path) -> None:
    expected = []
    for each in RESULTS:
        score, plddt = each.scores.lddt_ca, each.scores.plddt
        head = {"target": each.target, "rank": each.rank, "reference": f"{each.target}_ref", "chain": "H"}
        confidences = [None] * 3 if plddt is None else [plddt, None, plddt / 2]
        columns = zip(
            *((0, 4, 9), "GXW", (1, None, 3), (0.25, None, score), (0.5, 0.0, score / 2), confidences), strict=True
        )
        names = ("residue", "type", "predicted_residue", "lddt", "lddt_ca", "plddt")
        expected += [head | dict(zip(names, line, strict=True)) for line in columns]
    assert rows(output / "residues.tsv") == [{key: text(value) for key, value in row.items()} for row in expected]


def test_complexes_and_their_interfaces_have_lines_of_their_own(output: Path) -> None:
    head = {"target": "a", "rank": "0", "reference": "a_ref"}
    assert rows(output / "complexes.tsv") == [
        {
            **head,
            **{"chains": "3", "reference_chains": "4", "mapping": "H=B L=A x=C", "residues": "26", "compared": "23"},
            **{"interfaces": "2", "dockq": "0.6123", "interface_lddt": "NA", "tm_score": "0.71", "rmsd": "2.3457"},
        }
    ]
    names = ("reference_chains", "predicted_chains", "native_contacts", "dockq", "fnat", "irms", "lrms", "capri")
    lines = (
        ("H L", "B A", "17", "0.54", "0.41", "1.52", "4.63", "medium", "0.65"),
        ("L x", "A C", "3", "0.14", "0.11", "9.22", "14.33", "incorrect", "NA"),
    )
    assert rows(output / "interfaces.tsv") == [
        head | dict(zip((*names, "interface_lddt"), line, strict=True)) for line in lines
    ]


def test_the_screen_shows_each_pair_and_the_means_of_first_ranks() -> None:
    header, *lines = screen_table(RESULTS)
    assert header.split() == [
        "target",
        "reference",
        "residues",
        "lDDT",
        "lDDT-CA",
        "TM",
        "GDT-TS",
        "GDT-HA",
        "RMSD",
        "pLDDT",
    ]
    found = [line.split() for line in lines]
    assert found[0] == ["a", "a_ref", "H", "2/3", "0.710", "0.700", "0.720", "0.730", "0.740", "2.20", "91.2"]
    assert found[1][-1] == "-"
    assert found[3] == ["mean", "of", "2", "0.510", "0.500", "0.520", "0.530", "0.540", "2.00", "65.6"]


def test_the_screen_has_a_line_for_each_complex() -> None:
    complete = replace(COMPLEX, reference_chains=3, dockq=None, interface_lddt=0.5, interfaces=COMPLEX.interfaces[:1])
    empty, header, *lines = complex_table([*RESULTS, evaluated("c", 0.1, rank=2, complex=complete)])
    assert empty == ""
    assert re.split("  +", header) == [
        *("complex", "reference", "chains", "interfaces", "DockQ", "interface lDDT", "TM", "RMSD")
    ]
    assert [re.split("  +", line) for line in lines] == [
        ["a", "a_ref", "3/4", "2", "0.612", "-", "0.710", "2.35"],
        ["c, rank 2", "c_ref", "3", "1", "-", "0.500", "0.710", "2.35"],
    ]
    assert list(complex_table(RESULTS[1:])) == []


def test_complexes_for_programs_have_the_values_of_the_tables(output: Path) -> None:
    (found,) = complex_content(RESULTS)
    interfaces = found.pop("interface_scores")
    assert {name: text(value) for name, value in found.items()} == rows(output / "complexes.tsv")[0]
    head = {"target": "a", "rank": "0", "reference": "a_ref"}
    assert [head | {name: text(value) for name, value in each.items()} for each in interfaces] == rows(
        output / "interfaces.tsv"
    )
    assert json.loads((output / "scores.json").read_text())["complexes"] == complex_content(RESULTS)


def test_tables_of_complexes_are_removed_where_an_evaluation_has_none(output: Path) -> None:
    write_evaluation(output, RESULTS[1:], {}, [])
    assert {path.name for path in output.iterdir()} == {"scores.tsv", "scores.json", "residues.tsv"}


def test_the_screen_has_sizes_of_targets_and_how_confidence_correlates() -> None:
    results = [
        evaluated(name, score, plddt=plddt) for name, score, plddt in (("a", 0.2, 40), ("b", 0.6, 50), ("c", 0.7, 90))
    ]
    sizes = {name: TargetSize(residues=90 + place, rows=1000 * place) for place, name in enumerate("abc")}
    header, *lines = (re.split("  +", line) for line in screen_table([*results, evaluated("b", 0.1, rank=1)], sizes))
    assert header[:5] == ["target", "reference", "length", "rows", "residues"]
    assert [line[:5] for line in lines[:3]] == [
        [name, f"{name}_ref H", str(90 + place), f"{1000 * place:,}", "2/3"] for place, name in enumerate("abc")
    ]
    assert lines[4][0] == "mean of 3"
    expected = np.corrcoef([40, 50, 90], [0.2, 0.6, 0.7])[0, 1]
    assert lines[5:6] == [[f"Pearson's correlation of pLDDT with lDDT-CA over targets: {expected:.2f}"]]
    assert "over residues" in lines[6][0]
