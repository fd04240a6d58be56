"""Designs are ranked by what another model says of them, in the table, the sequences and the page."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from helixfold.report.designs import CheckLine, DesignLine, ranked, write_designs
from helixfold.report.page import loss_curve
from helixfold.report.tables import DEMONSTRATION, UNTRAINED

CHECK = CheckLine(
    model="model_2_ptm",
    plddt=80.5,
    tm_score=0.91,
    rmsd=1.23456,
    iptm=None,
    known_tm_score=0.42,
    agreement=0.7,
    plddt_shuffled=31.0,
    tm_score_shuffled=0.21,
    plddt_random=32.0,
    tm_score_random=0.22,
    beats_controls="yes",
)
LINE = DesignLine(
    target="t",
    directory="t_dir",
    number=3,
    protocol="binder",
    sequences={"A": "MKT", "B": "GSHMA"},
    loss=1.5,
    losses={"plddt": 0.25, "contact": 2.5},
    mean_plddt=77.7,
    ptm=0.61,
    iptm=0.52,
    known_tm_score=None,
    loss_by_step=(4.0, 1.0, 2.0),
)


def checked(number: int, agreement: float, beats: str = "yes") -> DesignLine:
    return replace(LINE, number=number, check=replace(CHECK, agreement=agreement, beats_controls=beats))


def test_designs_are_ranked_by_agreement_then_by_loss_then_by_name() -> None:
    lines = [
        replace(LINE, number=0, loss=0.1),
        replace(LINE, number=2, loss=0.05),
        checked(4, 0.2),
        checked(5, 0.9),
        replace(LINE, number=7),
        replace(LINE, number=6),
        replace(LINE, target="s", number=9),
    ]
    assert [line.number for line in ranked(lines)] == [5, 4, 2, 0, 9, 6, 7]


def test_the_table_has_every_value_in_the_column_of_its_name(tmp_path: Path) -> None:
    unchecked = replace(LINE, target="u", number=0, losses={"other": 7.0}, ptm=None, loss=1.23456)
    write_designs(tmp_path, [unchecked, replace(LINE, check=CHECK)], {})
    with (tmp_path / "designs.tsv").open(newline="") as file:
        first, second = csv.DictReader(file, delimiter="\t")
    own = {"rank": "1", "target": "t", "design": "3", "protocol": "binder", "loss": "1.5", "mean_plddt": "77.7"}
    own |= {"ptm": "0.61", "iptm": "0.52", "known_tm_score": "NA", "residues": "8", "sequence": "MKT:GSHMA"}
    check = {"model": "model_2_ptm", "plddt": "80.5", "tm_score": "0.91", "rmsd": "1.2346", "iptm": "NA"}
    check |= {"known_tm_score": "0.42", "plddt_shuffled": "31.0", "tm_score_shuffled": "0.21"}
    check |= {"plddt_random": "32.0", "tm_score_random": "0.22", "beats_controls": "yes"}
    losses = {"loss_plddt": "0.25", "loss_contact": "2.5", "loss_other": "NA"}
    assert first == own | {f"check_{name}": value for name, value in check.items()} | losses
    assert second["loss_other"] == "7.0"
    assert (second["rank"], second["ptm"], second["loss"], second["loss_plddt"]) == ("2", "NA", "1.2346", "NA")
    assert {value for name, value in second.items() if name.startswith("check_")} == {"NA"}
    assert (tmp_path / "designs.fasta").read_text() == ">t_dir_3\nMKT:GSHMA\n>t_dir_0\nMKT:GSHMA\n"


def test_the_line_of_losses_goes_from_left_to_right_with_the_largest_on_top() -> None:
    assert loss_curve(LINE.loss_by_step) == "0.0,0.0 50.0,24.0 100.0,16.0"
    assert loss_curve([3.0, 2.0, 1.0, 0.0]) == "0.0,0.0 33.3,8.0 66.7,16.0 100.0,24.0"
    assert loss_curve([2.0]) == "0.0,0.0"


@pytest.mark.parametrize(
    ("lines", "failures", "words"),
    [
        ([LINE, replace(LINE, notes=(f"{UNTRAINED}: x",))], {}, ["2 designs", "1 of 2 designs was made by untrained"]),
        (
            [replace(LINE, number=number, notes=(f"{DEMONSTRATION}: x",)) for number in range(2)],
            {"bad": "no fold"},
            ["2 of 2 designs were made by the small model", "1 failed", "bad failed: no fold"],
        ),
        (
            [checked(0, 0.5), checked(1, 0.4, "no"), LINE, checked(2, 0.3)],
            {},
            ["4 designs", "2 of 3 checked designs beat both controls", "1 t 0 1.500 77.7 0.61 80.5 0.91 1.2 yes"],
        ),
    ],
)
def test_the_page_counts_designs_and_their_kinds(
    lines: list[DesignLine], failures: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    write_designs(tmp_path, lines, failures)
    page = (tmp_path / "designs.html").read_text()
    text = " ".join(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL).split())
    for each in words:
        assert each in text
    assert all(name in page for name in (".losses", "addEventListener"))
    assert text.count("untrained parameters") == any(UNTRAINED in note for line in lines for note in line.notes)
    assert f"{tmp_path.name} · designs" in text
