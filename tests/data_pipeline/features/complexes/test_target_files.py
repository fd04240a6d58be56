"""All that is wrong with the input of a batch is found at once, and valid targets can be read without it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from data_pipeline.features.complexes.target_files import read_targets
from data_pipeline.io.errors import BatchInputError, InputError, InputProblems

GOOD = "MKTAYIAKQR"
FASTA = f""">good
{GOOD}
>letter
MKT1AY
>gene
ATGGCGTTAGCCTGATTGCAGGCTAAC
>codes
METGLYALA
>unknown
XXXX
>empty
>good
{GOOD}
>.hidden
{GOOD}
>dimer
MKT::AYI
>two chain_ids=A
MKT:AYI
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(inputs: Sequence[str], msa: Sequence[str] = (), templates: Sequence[str] = ()) -> list[str]:
    with pytest.raises(BatchInputError) as caught:
        read_targets([*map(Path, inputs)], [*map(Path, msa)], [*map(Path, templates)])
    return str(caught.value).split("\n")


def assert_begin(lines: Sequence[str], *starts: str) -> None:
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)


def test_every_wrong_record_of_a_file_is_listed(folder: Path) -> None:
    Path("x.fasta").write_text(FASTA)
    assert_begin(
        lines_of(["x.fasta"]),
        "x.fasta, line 4, column 4, record 'letter': '1' is not an amino acid letter",
        "x.fasta, line 11, record 'empty': the record has no sequence",
        "x.fasta, line 12, record 'good': the same name as in line 1",
        "x.fasta, line 14, record '.hidden': the name begins with '.'",
        "x.fasta, line 17, column 5, record 'dimer': chain 2 is empty",
        "x.fasta, line 18: got 1 chain IDs for 2 chains",
        "x.fasta, record 'gene': this is DNA",
        "x.fasta, record 'codes': these are three-letter codes",
        "x.fasta, record 'unknown': it has no known residue",
    )


def test_every_wrong_row_of_a_table_is_listed(folder: Path) -> None:
    rows = [f"p{number},MK{number}" for number in range(30)]
    Path("x.csv").write_text("\n".join(["id,sequence", "good,MKT", "short", *rows]))
    lines = lines_of(["x.csv"])
    assert_begin(lines[:2], "x.csv, line 3: the row has 1 cells", "x.csv, line 4, record 'p0': residue 3: '0' is not")
    assert len(lines) == 21
    assert lines[-1] == "... and 11 more"


def test_the_errors_of_all_inputs_are_listed(folder: Path) -> None:
    Path("a.fasta").write_text(">x\nMK1\n")
    Path("b.tsv").write_text("id\tseqence\nx\tMK\n")
    Path("c.a3m").write_text(">c\nMKT\n>row\nMK\n")
    Path("empty").mkdir()
    Path("msa").mkdir()
    Path("msa/good.a3m").write_text(">other\nAAAA\n")
    Path("good.fasta").write_text(f">good\n{GOOD}\n>lonely\n{GOOD}\n")
    Path("t.pdb").write_text("nothing")
    inputs = ["a.fasta", "b.tsv", "c.a3m", "empty", "gone.fasta", "MKTAYIAKQRBB", "good.fasta"]
    assert_begin(
        lines_of(inputs, ["msa"], ["t.pdb", "u.pdb"]),
        "a.fasta, line 2, column 3, record 'x': '1'",
        "b.tsv, line 1: the first line must name the columns 'id' and 'sequence', each once and separated by tabs, "
        "got 'seqence'; did you mean sequence?",
        "c.a3m, line 3, record 'row': the row has 2 columns",
        "empty: no file in this directory ends in",
        "gone.fasta: cannot be read: No such file",
        "'MKTAYIAKQRBB': there is no such file; pass a sequence with B in a FASTA file",
        "u.pdb: no such structure file",
        "t.pdb: ",
    )
    assert_begin(
        lines_of(["good.fasta", "gone.fasta"], ["msa"]),
        "gone.fasta: cannot be read",
        "msa/good.a3m, line 1, record 'other': the first row",
        "msa: there is no lonely.a3m for target 'lonely'",
    )


def test_names_of_one_directory_in_several_files_are_listed(folder: Path) -> None:
    for name in ("a", "b", "c"):
        Path(f"{name}.fasta").write_text(f">x\n{GOOD}\n>{name}.zip\n{GOOD}\n")
    assert_begin(
        lines_of(["a.fasta", "b.fasta", "c.fasta"]),
        "a.fasta, record 'a.zip': names that end in '.zip'",
        "b.fasta, record 'x': another target in a.fasta has this name (upper and lower case count as equal)",
        "b.fasta, record 'b.zip': names",
        "c.fasta, record 'x': another target in",
        "c.fasta, record 'c.zip': names",
    )


def test_valid_targets_are_read_without_the_others(folder: Path) -> None:
    Path("x.fasta").write_text(FASTA)
    Path("cut.fasta").write_text(">first\nMKT\n>second\nMKT\n" + "A" * 2**21)
    Path("y.csv").write_text("id,sequence\nbad,MK1\nlast,MKT\nshort\n")
    problems = InputProblems()
    targets = read_targets([Path("x.fasta"), Path("cut.fasta"), Path("gone.a3m"), Path("y.csv")], problems=problems)
    # Of a file that cannot be read to its end, no record is a target.
    assert [target.name for target in targets] == ["good", "last"]
    assert [name for name, _ in problems.named] == [
        *("letter", "empty", "good", ".hidden", "dimer", "two", "gene", "codes", "unknown"),
        *("second", "gone.a3m", "bad", ""),
    ]


def test_what_is_for_the_only_target_is_not_for_the_one_that_is_left(folder: Path) -> None:
    Path("x.fasta").write_text(f">good\n{GOOD}\n>bad\nMK1\n")
    Path("x.a3m").write_text(f">good\n{GOOD}\n")
    with pytest.raises(InputError, match=r"^x\.a3m: one alignment for several targets"):
        read_targets([Path("x.fasta")], [Path("x.a3m")], problems=InputProblems())
    with pytest.raises(InputError, match="--chain-ids requires a single target"):
        read_targets([Path("x.fasta")], chain_ids=["A"], problems=InputProblems())


def test_a_wrong_template_concerns_all_targets(folder: Path) -> None:
    Path("x.fasta").write_text(f">good\n{GOOD}\n>bad\nMK1\n")
    problems = InputProblems()
    with pytest.raises(InputError, match=r"gone\.pdb"):
        read_targets([Path("x.fasta")], templates=[Path("gone.pdb")], problems=problems)
    assert len(problems) == 1


def test_a_file_of_too_many_wrong_records_is_not_read_to_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_pipeline.parse.fasta.MAX_RECORDS", 30)
    Path("x.fasta").write_text(">\n" * 1000)
    Path("y.csv").write_text("id,sequence\n" + "x\n" * 1000)
    for name, line in (("x.fasta", 31), ("y.csv", 32)):
        problems = InputProblems()
        assert not read_targets([Path(name)], problems=problems)
        assert len(problems) == 31
        assert [*problems.named][-1][1].startswith(
            f"{name}, line {line}: the file has more than the maximum of 30 records"
        )
