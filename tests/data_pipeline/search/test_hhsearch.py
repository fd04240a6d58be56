from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.parse.template_hit import parse_hhr
from data_pipeline.search.hhsuite import Hhsearch, HhsearchOptions
from data_pipeline.search.tool import TemplateSearch
from tests.data_pipeline.search.families import (
    build_hhsuite_database,
    family_a3m,
    needed_program,
    random_protein,
    real_alignments,
    relative,
)

DOMAIN, AHEAD, INSERTED = 120, 25, 9


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A database of five families, and the domain of the one named "1abc_A"."""
    needed_program("hhsearch")
    rng = np.random.default_rng(5)
    names = ["1abc_A", "2xyz_B", "3def_C", "4ghi_D", "5jkl_E"]
    ancestors = [random_protein(rng, DOMAIN) for _ in names]
    alignments = {name: family_a3m(rng, name, own) for name, own in zip(names, ancestors, strict=True)}
    prefix = build_hhsuite_database(tmp_path_factory.mktemp("database") / "pdb", alignments)
    return prefix, ancestors[0]


@pytest.mark.integration
def test_a_planted_template_is_found_at_its_place(database: tuple[Path, str]) -> None:
    """The target has the template's domain behind other residues, with some more in the domain's middle."""
    prefix, domain = database
    rng = np.random.default_rng(6)
    half = DOMAIN // 2
    ahead, inserted = random_protein(rng, AHEAD), random_protein(rng, INSERTED)
    target = ahead + relative(rng, domain[:half], 0.7) + inserted + relative(rng, domain[half:], 0.7)
    search = Hhsearch(program=needed_program("hhsearch"), databases=(prefix,), cpus=1)
    assert isinstance(search, TemplateSearch)
    content = search.search(f">query\n{target}\n".encode())
    hit = parse_hhr(content, path="pdb_hits.hhr")[0]
    assert hit.name.startswith("1abc_A")
    aligned = (hit.indices_query >= 0) & (hit.indices_hit >= 0)
    residues, template = hit.indices_query[aligned], hit.indices_hit[aligned]
    assert len(residues) > 0.9 * DOMAIN
    wanted = np.where(residues < AHEAD + half, residues - AHEAD, residues - AHEAD - INSERTED)
    assert (template == wanted).mean() > 0.9  # an end of the gap may lie a few residues off
    assert all(target[i] == letter for i, letter in zip(hit.indices_query, hit.query, strict=True) if i >= 0)
    assert search.search(f">query\n{target}\n".encode()) == content  # without the date


@pytest.mark.long
def test_real_targets_find_their_own_profile(real_data: Path, tmp_path: Path) -> None:
    program = needed_program("hhsearch")
    alignments = real_alignments(real_data)
    prefix = build_hhsuite_database(tmp_path / "db", alignments)
    for name, content in alignments.items():
        query = parse_a3m(content).query
        hit = parse_hhr(Hhsearch(program=program, databases=(prefix,)).search(content), path=name)[0]
        assert hit.name.startswith(name)
        assert hit.aligned_columns > 0.8 * len(query)
        np.testing.assert_array_equal(hit.indices_query, hit.indices_hit)
        assert hit.hit_sequence == hit.query


@pytest.mark.integration
def test_a_target_unlike_any_template_is_no_error(database: tuple[Path, str]) -> None:
    prefix, _ = database
    content = Hhsearch(program=needed_program("hhsearch"), databases=(prefix,)).search(b">query\nMKVLAAGIVGLC\n")
    assert content.startswith(b"Query ")
    assert all(hit.aligned_columns <= 12 for hit in parse_hhr(content, path="hhr"))


def fake(folder: Path, script: str) -> tuple[Path, tuple[Path, ...]]:
    program = folder / "hhsearch"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    for part in ("a3m", "cs219"):
        for kind in ("ffdata", "ffindex"):
            folder.joinpath(f"db_{part}.{kind}").touch()
    return program, (folder / "db",)


def test_the_command_line_is_alphafolds(tmp_path: Path) -> None:
    program, databases = fake(tmp_path, f'echo "$@" > {tmp_path}/arguments; cp query.a3m hits.hhr')
    assert Hhsearch(program=program, databases=databases, cpus=2).search(b">query\nMKV\n") == b">query\nMKV\n"
    words = (tmp_path / "arguments").read_text()
    assert words == f"-maxseq 1000000 -d {tmp_path}/db -i query.a3m -o hits.hhr -v 1 -cpu 2\n"
    Hhsearch(program=program, databases=databases).search(b">query\n" + b"M" * 20_000 + b"\n>other\nM\n")
    assert "-maxres 200" in (tmp_path / "arguments").read_text()  # else the target would be cut


def test_the_date_alone_is_left_out_of_a_result(tmp_path: Path) -> None:
    lines = "Query query\\nDate Fri Jan 1\\nCommand x\\n\\nNo 1\\nDate 2\\n"
    program, databases = fake(tmp_path, f"printf '{lines}' > hits.hhr")
    found = Hhsearch(program=program, databases=databases).search(b">query\nMKV\n")
    assert found == b"Query query\nCommand x\n\nNo 1\nDate 2\n"


def test_a_failing_search_says_what_hhsearch_said(tmp_path: Path) -> None:
    program, databases = fake(tmp_path, "echo ERROR: damaged index >&2; exit 6")
    with pytest.raises(SearchError, match="hhsearch failed with exit code 6; it printed: ERROR: damaged index"):
        Hhsearch(program=program, databases=databases).search(b">query\nMKV\n")
    program, databases = fake(tmp_path, "touch hits.hhr")
    with pytest.raises(SearchError, match=r"hhsearch succeeded but did not write hits\.hhr"):
        Hhsearch(program=program, databases=databases).search(b">query\nMKV\n")


def test_a_missing_database_is_refused_by_name(tmp_path: Path) -> None:
    program, _ = fake(tmp_path, "exit 0")
    with pytest.raises(InputError, match=r"pdb70_a3m\.ffdata: this file of the hh-suite database is missing"):
        Hhsearch(program=program, databases=(tmp_path / "pdb70",))


def test_the_identity_names_what_changes_the_result_and_nothing_else(tmp_path: Path) -> None:
    program, databases = fake(tmp_path, "echo HHsearch 3.3.0")
    search = Hhsearch(program=program, databases=databases)
    assert search.identity() == "hhsearch 3.3.0 -maxseq 1000000 in db:0"
    assert Hhsearch(program=program, databases=databases, cpus=9, timeout=1.0).identity() == search.identity()
    other = Hhsearch(program=program, databases=databases, options=HhsearchOptions(max_rows=10))
    assert other.identity() != search.identity()


def test_options_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_rows must be at least 1, got 0"):
        HhsearchOptions(max_rows=0)
    program, databases = fake(tmp_path, "exit 0")
    with pytest.raises(ValueError, match="cpus must be at least 1, got 0"):
        Hhsearch(program=program, databases=databases, cpus=0)
