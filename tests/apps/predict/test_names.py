"""Targets as people name them: UniProt's names, tables with tabs, and sequences given instead of a file."""

import json
from pathlib import Path

import gemmi
import pytest

from data_pipeline.features.complexes.target_files import TargetNames, read_targets
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.parse.fasta import directory_name
from helixfold.cli.main import main

pytestmark = pytest.mark.usefixtures("undrawn")

SEQUENCE = "MKTAYIAKQR"
UNIPROT = "sp|P0CG48|UBC_HUMAN"


def predict(*arguments: object, output: Path) -> int:
    return main(["predict", *map(str, arguments), "--output", str(output), "--num-recycles", "0", "--models", "tiny"])


@pytest.fixture
def uniprot(tmp_path: Path) -> Path:
    path = tmp_path / "uniprot.fasta"
    path.write_text(f">{UNIPROT} Polyubiquitin-C\n{SEQUENCE}\n")
    return path


def test_a_uniprot_name_has_no_bar_as_a_directory_and_stays_in_the_files(uniprot: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert predict(uniprot, output=output) == 0
    target = output / "sp_P0CG48_UBC_HUMAN"
    assert not [path for path in output.rglob("*") if "|" in path.name]
    assert (target / "sp_P0CG48_UBC_HUMAN_plddt.tsv").is_file()
    assert json.loads((target / "confidence_tiny.json").read_text())["target"] == UNIPROT
    block = gemmi.cif.read(str(target / "ranked_0.cif")).sole_block()
    assert gemmi.cif.as_string(block.find_value("_struct.title")).strip() == UNIPROT
    assert Features.load(target / "features.npz").domain_name == UNIPROT
    assert f"<h1>{UNIPROT}</h1>" in (target / "report.html").read_text()
    assert f'<a href="./sp_P0CG48_UBC_HUMAN/report.html">{UNIPROT}</a>' in (output / "index.html").read_text()


def test_a_name_with_slashes_leads_to_no_other_directory(tmp_path: Path) -> None:
    path, outside = tmp_path / "x.fasta", tmp_path / "outside"
    outside.mkdir()
    output, alignments = tmp_path / "out/put", tmp_path / "alignments"
    alignments.mkdir()
    (output / "tr/Q8").mkdir(parents=True)
    name = f"{outside}/x"
    path.write_text(f">tr/Q8\n{SEQUENCE}\n>{outside}\n{SEQUENCE}\n>{name}\n{SEQUENCE}\n")
    Path(f"{name}.a3m").write_text(f">q\n{SEQUENCE}\n>r\n{SEQUENCE}\n")
    for each in ("tr/Q8", str(outside), name):
        (alignments / f"{directory_name(each)}.a3m").write_text(f">q\n{SEQUENCE}\n")
    assert predict(path, "--msa", alignments, output=output) == 0
    made = {directory.name for directory in output.iterdir() if (directory / "ranked_0.pdb").is_file()}
    assert made == {"tr_Q8", directory_name(str(outside)), directory_name(name)}
    assert json.loads((output / "tr_Q8/confidence_tiny.json").read_text())["target"] == "tr/Q8"
    assert [path.name for path in outside.iterdir()] == ["x.a3m"]
    assert not [*(output / "tr/Q8").iterdir()]
    features = tmp_path / "features"
    assert main(["features", str(path), "--output", str(features)]) == 0
    assert predict("--features", features, output=output / "more") == 0
    assert made == {directory.name for directory in (output / "more").iterdir() if directory.is_dir()}
    assert [path.name for path in outside.iterdir()] == ["x.a3m"]


def test_names_that_slashes_make_equal_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_text(f">a/b\n{SEQUENCE}\n>a_b\n{SEQUENCE}\n")
    with pytest.raises(InputError, match=r"line 3, record 'a_b': the same name as in line 1 \('a/b'\) once"):
        read_targets([path])


def test_what_an_earlier_version_made_under_the_old_name_counts_as_finished(
    uniprot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert predict(uniprot, output=output) == 0
    (output / "sp_P0CG48_UBC_HUMAN").rename(output / UNIPROT)
    capsys.readouterr()
    for more in ([], ["--dry-run"]):
        assert predict(uniprot, *more, output=output) == 0
        assert f"{UNIPROT}: finished before" in capsys.readouterr().out
    assert not (output / "sp_P0CG48_UBC_HUMAN").exists()


def test_features_and_alignments_go_by_the_same_names(uniprot: Path, tmp_path: Path) -> None:
    alignments = tmp_path / "alignments"
    alignments.mkdir()
    (alignments / f"{directory_name(UNIPROT)}.a3m").write_text(f">q\n{SEQUENCE}\n>r\n{SEQUENCE[::-1]}\n")
    features, output = tmp_path / "features", tmp_path / "out"
    assert main(["features", str(uniprot), "--msa", str(alignments), "--output", str(features)]) == 0
    assert len(Features.load(features / directory_name(UNIPROT) / "features.npz").msa) == 2
    assert predict("--features", features, output=output) == 0
    assert (output / directory_name(UNIPROT) / "ranked_0.pdb").is_file()


def test_ready_features_of_a_target_in_the_files_are_named_as_the_cause(
    uniprot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["features", str(uniprot), "--output", str(tmp_path / "features")]) == 0
    assert predict(uniprot, "--features", tmp_path / "features", output=tmp_path / "out") == 2
    assert "another target in the input files, besides --features, has this name" in capsys.readouterr().err


def test_targets_of_one_directory_are_refused_with_both_names(tmp_path: Path) -> None:
    names = TargetNames()
    names.add("a|b", Path("a.fa"))
    with pytest.raises(InputError, match=r"b.fa, record 'a_b': its directory, a_b, is the same as for 'a\|b' in a.fa;"):
        names.add("a_b", Path("b.fa"))


def test_a_table_with_tabs_is_an_input(tmp_path: Path) -> None:
    table = tmp_path / "table.tsv"
    table.write_text(f"id\tsequence\none\t{SEQUENCE}\n")
    assert [(each.name, each.sequence) for each in read_targets([table])] == [("one", SEQUENCE)]
    assert [each.name for each in read_targets([tmp_path])] == ["one"]


def test_a_sequence_given_instead_of_a_file_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert predict(SEQUENCE, SEQUENCE[::-1], output=output) == 0
    folded = {Features.load(path).sequence: path.parent.name for path in output.glob("*/features.npz")}
    assert set(folded) == {SEQUENCE, SEQUENCE[::-1]}
    assert folded[SEQUENCE].startswith("sequence_")
    assert predict(SEQUENCE, output=output) == 0
    assert f"{folded[SEQUENCE]}: finished before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("ACGTACGTACGT", "there is no such file, and as a sequence, this is DNA"),
        (
            "ACGUACGUACGUACGUACGUACGU",
            "'ACGUACGUACGUACGUACGU...': there is no such file, and as a sequence, this is RNA",
        ),
        ("METGLYALAARGGLU", "these are three-letter codes; write one letter per residue: MGARE, or pass --as"),
        ("MKTAYIAKQRQ1SF", "as a sequence, residue 12: '1' is not an amino acid letter"),
        ("MKTAYIAKQRQ:", "as a complex, letter 13: chain 2 is empty"),
        ("MYPROTEINS", "pass a sequence with O in a FASTA file"),
        ("MKTAYIAKQ", "MKTAYIAKQ: no such file; write a sequence with at least 10 capital letters here, or put it"),
        ("mktayiakqrq", "mktayiakqrq: no such file; write a sequence with at least 10 capital letters here"),
        ("proteins", "No such file"),
        ("proteins.fasta", "No such file"),
    ],
)
def test_what_is_neither_a_file_nor_a_protein_is_one_sentence(
    word: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(word, output=tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_of_such_a_name_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(SEQUENCE).write_text(">inside\nMKV\n")
    assert [each.name for each in read_targets([Path(SEQUENCE)])] == ["inside"]
