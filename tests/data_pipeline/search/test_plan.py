"""From a profile of databases to the tools that search them, and from there to features with every program for real."""

from datetime import date
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import Target, prepare
from data_pipeline.residues import RESTYPES, THREE_LETTER
from data_pipeline.search.alignment_server import ServerOptions
from data_pipeline.search.database import AlignmentDatabase, SearchedDatabase, searched_databases
from data_pipeline.search.database_profile import profile_from_fasta, read_database_profile
from data_pipeline.search.hmmsearch import InProcessHmmsearch
from data_pipeline.search.jackhmmer import InProcessJackhmmer
from data_pipeline.search.mmseqs_server import ServerPairing, ServerSearch
from data_pipeline.search.plan import SearchPlan, plan_searches
from data_pipeline.search.tool import BatchSearch
from tests.data_pipeline.search.families import (
    build_hhsuite_database,
    family_a3m,
    needed_program,
    random_protein,
    relative,
)

ONE = '[[alignments]]\nname = "one"\ntool = "{tool}"\npath = "{path}"\n'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "one.fasta").write_text(">a\nMKTAYIAKQR\n")
    (tmp_path / "mmcif").mkdir()
    (tmp_path / "mmcif" / "1abc.cif").touch()
    return tmp_path


def planned(directory: Path, profile: str, **options: object) -> SearchPlan:
    (directory / "profile.toml").write_text(profile)
    profile_read = read_database_profile(directory / "profile.toml", ())
    return plan_searches(profile_read, cpus=2, cache=directory / "cache", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("uniref90.fasta", None),
        ("mgy_clusters_2022_05.fa", "2022_05"),
        ("mgy_clusters_2018_12.1.fa", "2018_12"),
        ("colabfold_envdb_202108_db", "202108"),
        ("uniref30_2302_db", "2302"),
        ("pdb100_230517", "230517"),
        ("bfd_metaclust_clu_complete_id30_c90_final_seq.sorted_opt", None),
        ("proteins_1000.fasta", None),
        ("proteins_20211.fasta", None),
    ],
)
def test_results_tell_name_release_and_size_of_a_database(name: str, version: str | None, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x" * 7)
    (found,) = searched_databases(AlignmentDatabase(name="mine", tool="jackhmmer", paths=(tmp_path / name,)))
    assert found == SearchedDatabase(name=name, version=version, size=7)


def test_results_tell_each_of_the_databases_of_a_search_with_all_their_files(tmp_path: Path) -> None:
    for name in ("one_a3m.ffdata", "one_a3m.ffindex", "two_hhm.ffdata"):
        (tmp_path / name).write_bytes(b"x" * 5)
    found = searched_databases(AlignmentDatabase(name="x", tool="hhblits", paths=(tmp_path / "one", tmp_path / "two")))
    assert [(each.name, each.size) for each in found] == [("one", 10), ("two", 5)]


def test_nothing_needs_a_program_by_default(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    templates = '[templates]\ntool = "hmmsearch"\npath = "one.fasta"\nstructures = "mmcif"\n'
    plan = planned(directory, ONE.format(tool="jackhmmer", path="one.fasta") + templates)
    (step,) = plan.alignments
    assert isinstance(step.tool, InProcessJackhmmer)
    assert isinstance(step.tool, BatchSearch)
    assert plan.templates is not None
    assert isinstance(plan.templates.tool, InProcessHmmsearch)


@pytest.mark.parametrize(
    ("profile", "program", "package"),
    [
        (ONE.format(tool="jackhmmer", path="one.fasta") + 'engine = "program"\n', "jackhmmer", "hmmer"),
        (ONE.format(tool="mmseqs", path="one.fasta"), "mmseqs", "mmseqs2"),
        (ONE.format(tool="hhblits", path="db"), "hhblits", "hhsuite"),
    ],
)
def test_a_missing_program_is_named_with_its_package(
    directory: Path, monkeypatch: pytest.MonkeyPatch, profile: str, program: str, package: str
) -> None:
    (directory / "db_a3m.ffdata").touch()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("data_pipeline.search.mmseqs_program._packaged", lambda: None)
    with pytest.raises(InputError, match=f"{program}.*{package}"):
        planned(directory, profile)


def test_options_of_a_tool_are_passed_on_and_checked(directory: Path) -> None:
    profile = ONE.format(tool="jackhmmer", path="one.fasta")
    plan = planned(directory, profile + "options = { e_value = 0.5, iterations = 2 }\n")
    assert "-N 2 -E 0.5" in plan.alignments[0].tool.identity()
    for options, words in (
        ("{ evalue = 0.5 }", "database 'one': unknown option evalue; the options are iterations, e_value"),
        ("{ e_value = -1.0 }", "database 'one': e_value must be a positive number"),
        ('{ e_value = "small" }', "database 'one'"),
    ):
        with pytest.raises(InputError, match=words):
            planned(directory, profile + f"options = {options}\n")


def test_a_server_comes_after_the_databases(directory: Path) -> None:
    profile = profile_from_fasta([directory / "one.fasta"])
    server = ServerOptions(url="http://127.0.0.1:1")
    plan = plan_searches(profile, cpus=1, cache=directory, server=server)
    assert [step.result_file for step in plan.alignments] == ["one_hits.sto", "server_hits.a3m"]


def test_pairs_of_complexes_are_the_servers_or_found_in_uniprot(directory: Path) -> None:
    profile = ONE.format(tool="jackhmmer", path="one.fasta") + '[uniprot]\npath = "one.fasta"\nmax_rows = 3\n'
    plan = planned(directory, profile)
    assert plan.pairing is None
    assert plan.uniprot is not None
    assert (plan.uniprot.result_file, plan.uniprot.max_rows) == ("uniprot_hits.sto", 3)
    server = ServerOptions(url="http://127.0.0.1:1", pair_strategy="complete", pair_environmental=True)
    plan = planned(directory, profile, server=server)
    assert plan.uniprot is None
    assert plan.pairing is not None
    assert plan.pairing.tool.identity() == "mmseqs2 server http://127.0.0.1:1 mode paircomplete-env"
    searches = plan.alignments[1].tool
    assert isinstance(searches, ServerSearch)
    assert isinstance(plan.pairing.tool, ServerPairing)
    assert plan.pairing.tool.server is searches.server
    modes = ("env", "paircomplete-env")
    found = [SearchedDatabase(name=f"MMseqs2 server, mode {mode}", url=server.url) for mode in modes]
    assert [*plan.alignments[1].databases, *plan.pairing.databases] == found


def test_templates_come_from_one_place(directory: Path) -> None:
    server = ServerOptions(url="http://127.0.0.1:1")
    alignments = ONE.format(tool="jackhmmer", path="one.fasta")
    plan = planned(directory, alignments, server=server, with_server_templates=True)
    assert plan.templates is not None
    assert plan.templates.tool.identity() == "mmseqs2 server http://127.0.0.1:1 mode env templates"
    assert plan.of_chains().templates == plan.templates
    templates = '[templates]\ntool = "hmmsearch"\npath = "one.fasta"\nstructures = "mmcif"\n'
    with pytest.raises(InputError, match="from the server cannot be combined with a template database; remove one"):
        planned(directory, templates, server=server, with_server_templates=True)


def test_chains_of_complexes_have_their_own_template_search(directory: Path) -> None:
    templates = 'tool = "hmmsearch"\npath = "one.fasta"\nstructures = "mmcif"\n'
    own = f"[complex_templates]\noptions = {{ e_value = 7.0 }}\n{templates}"
    plan = planned(directory, f"[templates]\n{templates}{own}[uniprot]\npath = 'one.fasta'\n")
    assert plan.of_chains().templates == plan.complex_templates
    assert plan.templates is not None
    assert plan.templates != plan.complex_templates
    assert (plan.of_chains().pairing, plan.of_chains().uniprot) == (None, None)
    plan = planned(directory, f"[templates]\n{templates}")
    assert plan.of_chains() == plan


def test_the_users_date_goes_before_the_profiles(directory: Path) -> None:
    templates = '[templates]\ntool = "hmmsearch"\npath = "one.fasta"\nstructures = "mmcif"\n'
    dated = templates + "latest_release = 2021-11-01\n"
    day = date(2018, 4, 30)
    for profile, given, expected in (
        (dated, None, date(2021, 11, 1)),
        (dated, day, day),
        (templates, day, day),
    ):
        plan = planned(directory, profile, latest_template=given)
        assert plan.templates is not None
        assert plan.templates.options.latest_release == expected
    assert plan.user_templates.latest_release == day


def test_tables_of_the_pdb_reach_the_source(directory: Path) -> None:
    (directory / "obsolete.dat").write_text("OBSLTE    31-JUL-94 116L     216L\n")
    (directory / "dates.txt").write_text("1abc: 2001-02-03\n")
    tables = 'obsolete = "obsolete.dat"\nrelease_dates = "dates.txt"\n'
    templates = '[templates]\ntool = "hmmsearch"\npath = "one.fasta"\nstructures = "mmcif"\n'
    plan = planned(directory, templates + tables)
    assert plan.templates is not None
    assert plan.templates.source.current_entry("116l") == "216l"
    assert plan.templates.source.release_dates == {"1abc": date(2001, 2, 3)}
    with pytest.raises(InputError, match="release_dates must be a file"):
        planned(directory, templates + 'release_dates = "none.txt"\n')


@pytest.mark.integration
def test_every_program_searches_for_one_target(tmp_path: Path) -> None:
    programs = {name: needed_program(name) for name in ("jackhmmer", "hhblits", "hhsearch", "mmseqs")}
    assert len(programs) == 4
    rng = np.random.default_rng(5)
    ancestor = random_protein(rng, 90)
    target = relative(rng, ancestor, 0.8)
    strangers = "".join(f">s{index}\n{random_protein(rng, 90)}\n" for index in range(20))
    relatives = "".join(f">r{index}\n{relative(rng, ancestor, 0.75)}\n" for index in range(5))
    (tmp_path / "sequences.fasta").write_text(relatives + strangers)
    family = family_a3m(rng, "1abc_A", ancestor)
    others = {f"2ab{index}_A": family_a3m(rng, f"2ab{index}_A", random_protein(rng, 90)) for index in range(3)}
    build_hhsuite_database(tmp_path / "profiles", {"1abc_A": family, **others})
    (tmp_path / "mmcif").mkdir()
    (tmp_path / "mmcif" / "1abc.pdb").write_text(backbone(ancestor))
    plan = planned(
        tmp_path,
        '[[alignments]]\nname = "program"\ntool = "jackhmmer"\nengine = "program"\npath = "sequences.fasta"\n'
        '[[alignments]]\nname = "profiles"\ntool = "hhblits"\npath = "profiles"\n'
        '[[alignments]]\nname = "fast"\ntool = "mmseqs"\npath = "sequences.fasta"\noptions = { iterations = 1 }\n'
        '[[alignments]]\nname = "in_process"\ntool = "jackhmmer"\npath = "sequences.fasta"\n'
        '[templates]\ntool = "hhsearch"\npath = "profiles"\nstructures = "mmcif"\n',
    )
    prepared = prepare(Target(name="T1", sequence=target), plan, tmp_path / "msas")
    assert prepared.alignment_rows == {
        "program_hits.sto": 5,
        "profiles_hits.a3m": pytest.approx(30, abs=3),
        "fast_hits.a3m": 5,
        "in_process_hits.sto": 5,
    }
    assert 30 <= len(prepared.features.msa) <= 45
    assert prepared.templates is not None
    assert [used.name for used in prepared.templates.used] == ["1abc_A"]
    assert prepared.templates.used[0].aligned > 80


def backbone(sequence: str) -> str:
    """A PDB file of a chain that runs straight on."""
    lines = []
    for number, letter in enumerate(sequence, start=1):
        name = THREE_LETTER[RESTYPES.index(letter)]
        for place, atom in enumerate(("N", "CA", "C", "O")):
            position = f"{3.8 * number + 1.2 * min(place, 2):8.3f}{float(place == 3):8.3f}{0:8.3f}"
            start = f"ATOM  {4 * number + place:5d}  {atom:<3s} {name} A{number:4d}    "
            lines.append(f"{start}{position}  1.00  0.00           {atom[0]}\n")
    return "".join(lines) + "END\n"
