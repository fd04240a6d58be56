"""Which databases are searched: profile files, AlphaFold's directory, FASTA files."""

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.search.database_profile import profile_from_fasta, read_database_profile

PROFILE = """
[[alignments]]
name = "uniref90"
tool = "jackhmmer"
path = "uniref90.fasta"
max_rows = 10000

[[alignments]]
name = "bfd"
tool = "hhblits"
path = ["bfd", "uniref30"]

[templates]
tool = "hmmsearch"
path = "seqres.txt"
structures = "mmcif"
latest_release = 2021-11-01

[uniprot]
path = "uniprot.fasta"
options = { e_value = 0.001 }

[complex_templates]
tool = "hhsearch"
path = "uniref30"
structures = "mmcif"
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("uniref90.fasta", "bfd_a3m.ffdata", "uniref30_a3m.ffdata", "seqres.txt", "uniprot.fasta"):
        (tmp_path / name).touch()
    (tmp_path / "mmcif").mkdir()
    return tmp_path


def profile(directory: Path, text: str = PROFILE) -> Path:
    path = directory / "databases.toml"
    path.write_text(text)
    return path


def alphafold_directory(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def test_a_profile_is_read_in_order_with_paths_beside_it(directory: Path) -> None:
    found = read_database_profile(profile(directory), ())
    uniref90, bfd = found.alignments
    assert (uniref90.name, uniref90.tool, uniref90.engine, uniref90.max_rows) == (
        "uniref90",
        "jackhmmer",
        "pyhmmer",
        10000,
    )
    assert uniref90.paths == (directory / "uniref90.fasta",)
    assert uniref90.result_file == "uniref90_hits.sto"
    assert (bfd.paths, bfd.engine) == ((directory / "bfd", directory / "uniref30"), "program")
    assert bfd.result_file == "bfd_hits.a3m"
    assert found.templates is not None
    assert found.templates.latest_release == date(2021, 11, 1)
    assert found.templates.result_file == "pdb_hits.sto"
    assert found.uniprot is not None
    assert (found.uniprot.paths, found.uniprot.max_rows) == ((directory / "uniprot.fasta",), 50_000)
    assert (found.uniprot.tool, found.uniprot.result_file) == ("jackhmmer", "uniprot_hits.sto")
    assert found.uniprot.options == {"e_value": 0.001}
    assert found.complex_templates is not None
    assert found.complex_templates.tool == "hhsearch"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'tool = "jackhmmer"',
            'tool = "blast"',
            "tool must be one of jackhmmer, hhblits, mmseqs, colabfold, got 'blast'",
        ),
        ('path = "uniref90.fasta"', 'path = "missing.fasta"', "there is no file .*missing.fasta"),
        ('path = "uniref90.fasta"', 'path = ["uniref90.fasta", "seqres.txt"]', "make one table for each"),
        ('"uniref30"]', '"uniref31"]', "no hh-suite database .*uniref31"),
        ("max_rows = 10000", "max_rows = 0", "max_rows must be a whole number from 1"),
        ("max_rows = 10000", "max_rows = true", "max_rows must be a whole number from 1"),
        ("max_rows = 10000", "rows = 3", "unknown rows; it can hold name"),
        ('name = "bfd"', 'name = "uniref90"', "own name"),
        ('name = "bfd"', 'name = "a/b"', "name must be a word without blanks and slashes"),
        (
            'tool = "hhblits"',
            'tool = "hhblits"\nengine = "pyhmmer"',
            "engine can be chosen for jackhmmer and hmmsearch",
        ),
        ('structures = "mmcif"', 'structures = "seqres.txt"', "structures must be a directory"),
        ('path = "uniprot.fasta"', 'path = "none.fasta"', r"\[uniprot\]: there is no file .*none.fasta"),
        ('path = "uniprot.fasta"', 'path = "uniprot.fasta"\ntool = "mmseqs"', r"\[uniprot\]: unknown tool"),
        ("[uniprot]", "[[uniprot]]", r"write the database of rows that are paired by species as one \[uniprot\] table"),
        ('name = "bfd"', 'name = "uniprot"', "own name, got uniref90, uniprot, uniprot"),
        ("2021-11-01", '"yesterday"', "latest_release must be a date"),
        ("[templates]", "[[templates]]", "one \\[templates\\] table"),
        ("[[alignments]]", "[alignments]", "TOML|own \\[\\[alignments\\]\\]"),
        (PROFILE, "", "names no database"),
        (PROFILE, "a = [", "not a TOML profile"),
        ("max_rows = 10000", "options = 3", "options must be a table"),
    ],
)
def test_a_wrong_profile_is_one_sentence(directory: Path, old: str, new: str, words: str) -> None:
    assert old in PROFILE
    path = profile(directory, PROFILE.replace(old, new))
    with pytest.raises(InputError, match=words) as caught:
        read_database_profile(path, ())
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(content=st.binary(max_size=200))
def test_any_file_is_a_profile_or_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("profile") / "p.toml"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_database_profile(path, ())


FULL = (
    "uniref90/uniref90.fasta",
    "mgnify/mgy_clusters_2018_12.fa",
    "mgnify/mgy_clusters_2022_05.fa",
    "bfd/bfd_metaclust_clu_complete_id30_c90_final_seq.sorted_opt_a3m.ffdata",
    "uniref30/UniRef30_2021_03_a3m.ffdata",
    "small_bfd/bfd-first_non_consensus_sequences.fasta",
    "pdb70/pdb70_a3m.ffdata",
    "pdb_seqres/pdb_seqres.txt",
    "uniprot/uniprot.fasta",
    "uniprot/uniprot_trembl.fasta",
    "pdb_mmcif/obsolete.dat",
    "pdb_mmcif/mmcif_files/1abc.cif",
)


def test_alphafolds_directory_gives_alphafolds_searches_in_its_order(tmp_path: Path) -> None:
    found = read_database_profile(alphafold_directory(tmp_path, *FULL), {"hhblits", "hhsearch"})
    assert [(each.name, each.tool, each.max_rows) for each in found.alignments] == [
        ("uniref90", "jackhmmer", 10_000),
        ("bfd_uniref", "hhblits", None),
        ("mgnify", "jackhmmer", 501),
    ]
    assert [path.name for path in found.alignments[1].paths] == [
        "bfd_metaclust_clu_complete_id30_c90_final_seq.sorted_opt",
        "UniRef30_2021_03",
    ]
    assert found.alignments[2].paths[0].name == "mgy_clusters_2022_05.fa"
    assert found.templates is not None
    assert (found.templates.tool, found.templates.paths[0].name) == ("hhsearch", "pdb70")
    assert found.templates.obsolete == tmp_path / "pdb_mmcif/obsolete.dat"
    assert found.uniprot is not None
    assert (found.uniprot.tool, found.uniprot.max_rows) == ("jackhmmer", 50_000)
    assert found.uniprot.paths == (tmp_path / "uniprot/uniprot.fasta",)
    assert found.complex_templates is not None
    assert found.complex_templates.tool == "hmmsearch"
    assert found.complex_templates.paths == (tmp_path / "pdb_seqres/pdb_seqres.txt",)
    assert found.complex_templates.obsolete == found.templates.obsolete
    assert not found.notes
    assert not found.complex_notes


def test_what_only_complexes_lack_is_said_apart(tmp_path: Path) -> None:
    files = [file for file in FULL if not file.startswith(("uniprot/", "pdb_seqres/"))]
    found = read_database_profile(alphafold_directory(tmp_path, *files), {"hhblits", "hhsearch"})
    assert (found.uniprot, found.complex_templates, found.notes) == (None, None, ())
    assert found.complex_notes == (
        "there is no uniprot/uniprot.fasta, whose rows are paired by species",
        "there is no pdb_seqres/pdb_seqres.txt, so pdb70 is searched for templates",
    )


def test_without_hhsuite_its_databases_give_way_and_are_named(tmp_path: Path) -> None:
    found = read_database_profile(alphafold_directory(tmp_path, *FULL), ())
    assert [each.name for each in found.alignments] == ["uniref90", "small_bfd", "mgnify"]
    assert found.templates is not None
    assert found.templates.tool == "hmmsearch"
    assert found.complex_templates is None
    assert any("UniRef30_2021_03" in note and "hhblits" in note for note in found.notes)
    assert any("pdb70" in note for note in found.notes)


def test_without_structures_no_templates_are_searched_and_it_is_said(tmp_path: Path) -> None:
    found = read_database_profile(alphafold_directory(tmp_path, *FULL[:-2]), {"hhsearch"})
    assert found.templates is None
    assert any("mmcif_files" in note for note in found.notes)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no uniref90, bfd"):
        read_database_profile(tmp_path, ())


def test_fasta_files_are_searched_in_the_order_given(directory: Path) -> None:
    (directory / "mine.fa").touch()
    found = profile_from_fasta([directory / "mine.fa", directory / "uniref90.fasta"])
    assert [(each.name, each.tool) for each in found.alignments] == [("mine", "jackhmmer"), ("uniref90", "jackhmmer")]
    (directory / "mine.fasta").touch()
    with pytest.raises(InputError, match="two databases are named 'mine'"):
        profile_from_fasta([directory / "mine.fa", directory / "mine.fasta"])
    with pytest.raises(InputError, match="no such database file"):
        profile_from_fasta([directory / "nothing.fasta"])
