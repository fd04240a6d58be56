"""Foldseek searches with the best structure, once, and its hits are in a table and on the report."""

import os
from pathlib import Path

import pytest

from helixfold.cli.main import main

pytestmark = pytest.mark.usefixtures("undrawn")

# Writes two hits, and a line about each call; fails for a database of that name.
FOLDSEEK = """#!/usr/bin/env python3
import sys
from pathlib import Path
command, query, database, hits = sys.argv[1:5]
assert command == "easy-search" and Path(query).read_text().startswith(("HEADER", "REMARK", "TITLE", "MODEL", "ATOM"))
columns = sys.argv[sys.argv.index("--format-output") + 1].split(",")
assert columns[0] == "query" and columns[-1] == "theader"
with open(Path(database).parent / "calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
if Path(database).name == "broken":
    sys.exit("the index is damaged")
values = dict.fromkeys(columns, "0.5") | {"qstart": "3", "qend": "17"}
for target, header in (("1abc_A", "FIRST <PROTEIN>"), ("2def_B", "SECOND")):
    values |= {"query": Path(query).stem + "_A", "target": target, "theader": header}
    print(*(values[name] for name in columns), sep="\\t", file=open(hits, "a"))
"""


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    program = tmp_path / "bin/foldseek"
    program.parent.mkdir()
    program.write_text(FOLDSEEK)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("database", "other", "broken"):
        (tmp_path / name).touch()
    (tmp_path / "a.fasta").write_text(">a\nMKTAYIAKQRQISFVKSHFSRQ\n")
    common = ["predict", str(tmp_path / "a.fasta"), "--models", "tiny", "--num-recycles", "0"]
    return [*common, "--output", str(tmp_path / "out")]


def test_hits_are_in_a_table_and_on_the_report(words: list[str], tmp_path: Path) -> None:
    assert main(words) == 0
    table, calls = tmp_path / "out/a/similar_structures.tsv", tmp_path / "calls"
    assert not table.exists()
    # A finished target is searched for later, once for each database.
    for database in ("database", "database", "other"):
        assert main([*words, "--foldseek", str(tmp_path / database), "--threads", "3"]) == 0
    assert len(calls.read_text().splitlines()) == 2
    assert "--threads 3" in calls.read_text()
    comment, names, *hits = [line.split("\t") for line in table.read_text().splitlines()]
    assert comment == [f"# Foldseek's hits in {tmp_path / 'other'}"]
    rows = [dict(zip(names, hit, strict=True)) for hit in hits]
    assert [(row["chain"], row["structure"], row["last_residue"]) for row in rows] == [
        ("A", "1abc_A", "17"),
        ("A", "2def_B", "17"),
    ]
    report = (tmp_path / "out/a/report.html").read_text()
    assert "FIRST &lt;PROTEIN&gt;" in report
    assert "2def_B" in report


def test_a_search_that_fails_fails_its_target(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--foldseek", str(tmp_path / "broken")]) == 1
    assert "the index is damaged" in (tmp_path / "out/failures.json").read_text()
    assert (tmp_path / "out/a/ranked_0.pdb").is_file()
    assert main([*words, "--foldseek", str(tmp_path / "gone")]) == 2
    assert "gone: no such Foldseek database" in capsys.readouterr().err


def test_a_missing_program_is_named_before_anything_is_folded(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main([*words, "--foldseek", str(tmp_path / "database")]) == 2
    assert "the program foldseek was not found; install it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
