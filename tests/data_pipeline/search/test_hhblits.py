from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.search.hhsuite import Hhblits, HhblitsOptions
from data_pipeline.search.tool import SequenceSearch
from tests.data_pipeline.search.families import (
    build_hhsuite_database,
    family_a3m,
    needed_program,
    random_protein,
    real_alignments,
    relative,
)

AHEAD, BEHIND = "MSGSHHHHHHGSGLVPRGSA", "GSGENLYFQS"  # of the family's domain, in the target


@pytest.fixture(scope="module")
def target_and_databases(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, tuple[Path, Path]]:
    """Two databases of unrelated families, each with one family of the target's domain."""
    needed_program("hhblits")
    folder = tmp_path_factory.mktemp("databases")
    rng = np.random.default_rng(0)
    ancestor = random_protein(rng, 110)
    prefixes = []
    for database in ("first", "second"):
        names = [f"{database}_{i}" for i in range(6)]
        ancestors = [relative(rng, ancestor, 0.8), *(random_protein(rng, 100) for _ in names[1:])]
        alignments = {name: family_a3m(rng, name, own) for name, own in zip(names, ancestors, strict=True)}
        prefixes.append(build_hhsuite_database(folder / database, alignments))
    return AHEAD + relative(rng, ancestor, 0.6) + BEHIND, (prefixes[0], prefixes[1])


def fake(folder: Path, script: str) -> tuple[Path, tuple[Path, ...]]:
    """A program and an empty database, for what hhblits does only rarely."""
    program = folder / "hhblits"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    for part in ("a3m", "cs219"):
        for kind in ("ffdata", "ffindex"):
            folder.joinpath(f"db_{part}.{kind}").touch()
    return program, (folder / "db",)


@pytest.mark.integration
def test_planted_relatives_are_found_in_every_database_and_nothing_else_is(
    target_and_databases: tuple[str, tuple[Path, Path]],
) -> None:
    target, databases = target_and_databases
    search = Hhblits(program=needed_program("hhblits"), databases=databases, cpus=1)
    assert isinstance(search, SequenceSearch)
    content = search.search(target)
    alignment = parse_a3m(content, target)
    assert alignment.names[0] == "query"
    families = [name.rsplit("_", 1)[0] for name in alignment.names[1:]]
    assert {"_".join(name.split("_")[:2]) for name in alignment.names[1:]} == {"first_0", "second_0"}
    assert min(families.count("first_0"), families.count("second_0")) > 20
    domain = slice(len(AHEAD), len(target) - len(BEHIND))
    same = alignment.letters[1:, domain] == alignment.letters[0, domain]
    assert same.mean() > 0.3  # in step: random letters agree in 5 %
    assert search.search(target) == content


@pytest.mark.integration
def test_one_database_alone_gives_its_own_relatives(target_and_databases: tuple[str, tuple[Path, Path]]) -> None:
    target, (_, second) = target_and_databases
    options = HhblitsOptions(iterations=1, unfiltered=True)
    search = Hhblits(program=needed_program("hhblits"), databases=(second,), options=options)
    names = parse_a3m(search.search(target), target).names
    assert len(names) == 31
    assert all(name.startswith("second_0") for name in names[1:])


@pytest.mark.integration
def test_a_sequence_without_relatives_gives_itself(target_and_databases: tuple[str, tuple[Path, Path]]) -> None:
    _, databases = target_and_databases
    target = random_protein(np.random.default_rng(9), 60) + "X"
    alignment = parse_a3m(Hhblits(program=needed_program("hhblits"), databases=databases).search(target), target)
    assert alignment.names == ("query",)


@pytest.mark.long
def test_real_families_are_found_again(real_data: Path, tmp_path: Path) -> None:
    program = needed_program("hhblits")
    alignments = real_alignments(real_data)
    prefix = build_hhsuite_database(tmp_path / "db", alignments)
    for content in alignments.values():
        own = parse_a3m(content)
        found = parse_a3m(Hhblits(program=program, databases=(prefix,)).search(own.query), own.query)
        assert set(found.names[1:]) <= set(own.names)
        assert len(found.names) > 90  # the most different of several hundred


def test_a_database_with_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    program, databases = fake(tmp_path, "exit 0")
    (tmp_path / "db_cs219.ffindex").unlink()
    with pytest.raises(InputError, match=r"db_cs219\.ffindex: this file of the hh-suite database is missing"):
        Hhblits(program=program, databases=databases)
    with pytest.raises(InputError, match="needs a database"):
        Hhblits(program=program, databases=())


def test_the_command_line_is_alphafolds(tmp_path: Path) -> None:
    program, databases = fake(tmp_path, f'echo run "$@" > {tmp_path}/arguments; cp query.fasta hits.a3m')
    assert Hhblits(program=program, databases=databases * 2, cpus=3).search("MKV") == b">query\nMKV\n"
    words = (tmp_path / "arguments").read_text()
    wanted = "-n 3 -e 0.001 -maxseq 1000000 -realign_max 100000 -maxfilt 100000 -min_prefilter_hits 1000"
    assert words.startswith(f"run {wanted} -d {tmp_path}/db -d {tmp_path}/db ")
    assert words.endswith(" -i query.fasta -oa3m hits.a3m -o hits.hhr -v 1 -cpu 3\n")
    Hhblits(program=program, databases=databases, options=HhblitsOptions(unfiltered=True)).search("M" * 19_998)
    assert "-maxres" not in (tmp_path / "arguments").read_text()
    assert "-min_prefilter_hits 1000 -all -d" in (tmp_path / "arguments").read_text()
    Hhblits(program=program, databases=databases).search("M" * 20_000)
    assert "-maxres 20003" in (tmp_path / "arguments").read_text()  # else the target would be cut


def test_a_failing_search_says_what_hhblits_said(tmp_path: Path) -> None:
    program, databases = fake(tmp_path, "echo ERROR: no match states >&2; exit 4")
    with pytest.raises(SearchError, match="hhblits failed with exit code 4; it printed: ERROR: no match states"):
        Hhblits(program=program, databases=databases).search("MKV")
    program, databases = fake(tmp_path, "exit 0")
    with pytest.raises(SearchError, match=r"hhblits succeeded but did not write hits\.a3m"):
        Hhblits(program=program, databases=databases).search("MKV")
    program, databases = fake(tmp_path, "sleep 600")
    with pytest.raises(SearchError, match=r"hhblits did not finish within 0\.2 s"):
        Hhblits(program=program, databases=databases, timeout=0.2).search("MKV")


def test_the_identity_names_what_changes_the_result_and_nothing_else(tmp_path: Path) -> None:
    program, databases = fake(tmp_path, "echo HHblits 3.3.0:")
    search = Hhblits(program=program, databases=databases)
    wanted = "-n 3 -e 0.001 -maxseq 1000000 -realign_max 100000 -maxfilt 100000 -min_prefilter_hits 1000"
    assert search.identity() == f"hhblits 3.3.0 {wanted} in db:0"
    assert Hhblits(program=program, databases=databases, cpus=8, timeout=5.0).identity() == search.identity()
    others = [HhblitsOptions(iterations=2), HhblitsOptions(e_value=1e-5), HhblitsOptions(unfiltered=True)]
    identities = {Hhblits(program=program, databases=databases, options=options).identity() for options in others}
    (tmp_path / "db_hhm.ffdata").write_text("more")
    assert len(identities | {search.identity(), f"hhblits 3.3.0 {wanted} in db:0"}) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"iterations": 0},
        {"iterations": 9},
        {"e_value": 0.0},
        {"e_value": float("nan")},
        {"max_rows": 0},
        {"max_realigned": 0},
        {"max_prefiltered": 0},
        {"min_prefiltered": 0},
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        HhblitsOptions(**wrong)  # type: ignore[arg-type]
