"""Searches of ColabFold's databases have the results of `colabfold_search`, for a batch as for single targets."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import InputError, SearchError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.parse.template_hit import parse_hit_table
from data_pipeline.search.cluster_build import ClusterBuild
from data_pipeline.search.colabfold_databases import ClusterDatabase, with_ending
from data_pipeline.search.colabfold_search import (
    ColabfoldOptions,
    ColabfoldPairing,
    ColabfoldSearch,
    ColabfoldTemplates,
    MmseqsBatch,
    SharedResults,
    paired_steps,
    unpaired_steps,
)
from data_pipeline.search.mmseqs_program import OLDEST_FOR_CLUSTERS, find_mmseqs, mmseqs_release
from data_pipeline.search.process import program_version
from data_pipeline.search.tool import BatchSearch, PairingSearch, TemplateSearch
from tests.data_pipeline.search.colabfold_case import DIGESTS, ColabfoldCase, digest
from tests.data_pipeline.search.families import random_protein
from tests.data_pipeline.search.made_databases import Made


@pytest.fixture(scope="module")
def program() -> Path:
    found = find_mmseqs()
    if found is None or (mmseqs_release(found) or OLDEST_FOR_CLUSTERS) < OLDEST_FOR_CLUSTERS:
        pytest.skip(f"needs MMseqs2, release {OLDEST_FOR_CLUSTERS} or a newer one")
    return found


@pytest.mark.parametrize(
    ("count", "complexes"),
    [pytest.param(6, 2, marks=pytest.mark.integration), pytest.param(50, 10, marks=pytest.mark.long)],
)
def test_results_are_those_of_colabfold_search_byte_for_byte(
    count: int, complexes: int, program: Path, real_data: Path, tmp_path: Path
) -> None:
    """Of the first targets and complexes, in the databases of all of them."""
    wanted = json.loads(DIGESTS.read_text())
    if program_version(program, "version") != wanted["mmseqs"]:
        pytest.skip(f"needs MMseqs2 {wanted['mmseqs']}, whose results are stored")
    case = ColabfoldCase(real_data / "fasta", tmp_path)
    names, sequences = zip(*case.targets[:count], strict=True)
    assert len(case.targets) == 50
    for kind in ("environmental", "uniref", "templates"):
        wanted[kind] = {name: wanted[kind][name] for name in names}
    batch, kept = MmseqsBatch(program=program, cpus=2), SharedResults(tmp_path / "kept")
    both = ColabfoldSearch(
        batch=batch, uniref=case.uniref, environmental=case.environmental, templates=case.templates, shared=kept
    )
    assert {name: digest(a3m) for name, a3m in zip(names, both.search_many(sequences), strict=True)} == wanted[
        "environmental"
    ]
    assert {name: digest(both.template_hits(text)) for name, text in case.targets[:count]} == wanted["templates"]
    alone = ColabfoldSearch(batch=batch, uniref=case.uniref)
    assert dict(zip(names, map(digest, alone.search_many(sequences)), strict=True)) == wanted["uniref"]
    pairing = ColabfoldPairing(batch=batch, database=case.uniref)
    pairs = pairing.search_many(case.complexes[:complexes])
    assert [digest(a3m) for rows in pairs for a3m in rows] == wanted["pairs"][: 2 * complexes]


@pytest.fixture(scope="module")
def made(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(program, tmp_path_factory.mktemp("clusters"))


def test_a_batch_has_the_results_of_single_searches_and_equal_sequences_are_searched_once(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger, odd = random_protein(np.random.default_rng(9), 40), "BZJUOX" + made.second
    search = replace(made.search, shared=SharedResults(tmp_path / "kept"))
    assert isinstance(search, BatchSearch)
    targets = [made.first, stranger, odd, made.first]
    together = search.search_many(targets)
    assert together[0] == together[3] == made.search.search(made.first)
    assert together[1] == f">101\n{stranger}\n>101\n{stranger}\n".encode()  # twice, for two databases
    names = [parse_a3m(content, target).names for content, target in zip(together, targets, strict=True)]
    assert {name[:4] for name in names[0][1:]} == {"one_", "env_", "101"}
    assert {name[:4] for name in names[2][1:]} == {"two_", "env_", "101"}
    # From here on everything is known, also to another process.
    monkeypatch.setattr(MmseqsBatch, "run", lambda *_: pytest.fail("searched again"))
    again = replace(search, shared=SharedResults(tmp_path / "kept"))
    assert again.search_many(targets[::-1]) == together[::-1]
    templates = ColabfoldTemplates(alignments=again)
    assert isinstance(templates, TemplateSearch)
    (hit,) = parse_hit_table(templates.search(together[0]), made.first)
    assert (hit.name, hit.indices_hit[0] - hit.indices_query[0]) == ("9abc_A", 4)
    assert templates.search(together[1]) == b""


def test_rows_of_complexes_are_paired_by_species(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made.uniref.has_taxonomy
    pairing = ColabfoldPairing(batch=made.batch, database=made.uniref, shared=SharedResults(tmp_path))
    assert isinstance(pairing, PairingSearch)
    complexes = [[made.first, made.second], [made.second, made.first]]
    first, second = pairing.search_many(complexes)
    assert first[0].split(b"\n", 2)[2] == second[1].split(b"\n", 2)[2]
    names = [parse_a3m(content, sequence).names for content, sequence in zip(first, complexes[0], strict=True)]
    assert {name[-1] for name in names[0][1:]} == {name[-1] for name in names[1][1:]} == set("012345")
    assert all(one[4:] == two[4:] for one, two in zip(names[0][1:], names[1][1:], strict=True))
    monkeypatch.setattr(MmseqsBatch, "run", lambda *_: pytest.fail("searched again"))
    assert pairing.search(complexes[0]) == first
    with pytest.raises(ValueError, match="rows are paired between different sequences"):
        pairing.search([made.first, made.first])


@pytest.mark.parametrize(
    ("ending", "content", "message"),
    [
        ("_aln.index", None, r"uniref30_x_db_aln.index: this file of the MMseqs2 database is missing; download or"),
        ("_seq", None, r"uniref30_x_db_seq: this file of the MMseqs2 database is missing"),
        ("_h.dbtype", None, r"uniref30_x_db_h.dbtype: this file of the MMseqs2 database is missing"),
        (
            "_seq.dbtype",
            b"\1\0\0\0",
            r"uniref30_x_db_seq: MMseqs2 needs a database of protein sequences here, and this",
        ),
        (
            "_aln.dbtype",
            b"\6\0\0\0",
            r"uniref30_x_db_aln: MMseqs2 needs a database of alignments here, and this one is",
        ),
        (".dbtype", b"\0\0", r"uniref30_x_db.dbtype: it holds 2 bytes, not 4: not MMseqs2's; download"),
    ],
)
def test_an_incomplete_database_is_refused(
    made: Made, tmp_path: Path, ending: str, content: bytes | None, message: str
) -> None:
    for path in made.folder.glob("uniref30_x_db*"):
        (tmp_path / path.name).hardlink_to(path)
    path = with_ending(tmp_path / "uniref30_x_db", ending)
    ClusterDatabase(tmp_path / "uniref30_x_db")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        ClusterDatabase(tmp_path / "uniref30_x_db")


def test_a_failing_program_is_a_search_error(made: Made, tmp_path: Path) -> None:
    broken = tmp_path / "mmseqs"
    broken.write_text("#!/bin/sh\necho 'Index version does not match' >&2\nexit 1\n")
    broken.chmod(0o755)
    search = replace(made.search, batch=MmseqsBatch(program=broken, cpus=1))
    with pytest.raises(SearchError, match="mmseqs failed with exit code 1; it printed: Index version does not match"):
        search.search(made.first)


def test_the_options_change_the_steps_and_the_identity(made: Made) -> None:
    gpu = ColabfoldOptions(gpu=True, gpu_server=True)
    steps = unpaired_steps(gpu, made.uniref, made.search.environmental, made.search.templates)
    searches = [step for step in steps if step[0] == "search"]
    assert len(searches) == 3
    for step in searches:
        assert " ".join(step).endswith("--gpu 1 --prefilter-mode 1 --gpu-server 1")
        assert "-s" not in step
    words = [" ".join(step) for step in unpaired_steps(ColabfoldOptions(filtered=False), made.uniref, None, None)]
    assert any("--qsc -20.0" in line for line in words)
    assert any("--filter-msa 0" in line for line in words)
    assert any("--max-accept 1000000" in line for line in words)
    modes = [step for step in paired_steps(ColabfoldOptions(), made.uniref, complete=True) if step[0] == "pairaln"]
    assert all(step[step.index("--pairing-mode") + 1] == "1" for step in modes)
    options = (ColabfoldOptions(), gpu, ColabfoldOptions(filtered=False), ColabfoldOptions(sensitivity=8))
    assert len({replace(made.search, options=each).identity() for each in options}) == 4
    with pytest.raises(ValueError, match="gpu_server is for searches on a GPU"):
        ColabfoldOptions(gpu_server=True)
    with pytest.raises(ValueError, match="sensitivity must be between 1 and 10, got 11"):
        ColabfoldOptions(sensitivity=11)


def test_an_index_takes_the_place_of_members_and_alignments(made: Made, tmp_path: Path) -> None:
    (tmp_path / "x.idx.index").touch()
    for path in made.folder.glob("uniref30_x_db*"):
        ending = path.name.removeprefix("uniref30_x_db")
        if not ending.startswith(("_seq", "_aln")):
            (tmp_path / f"x{ending}").hardlink_to(path)
    database = ClusterDatabase(tmp_path / "x")
    assert database.members == database.alignments == str(tmp_path / "x.idx")


def test_a_database_is_never_replaced_and_its_species_are_read(made: Made, tmp_path: Path) -> None:
    build = ClusterBuild(program=made.batch.program, cpus=1)
    with pytest.raises(InputError, match="there is a database of this name"):
        build.clusters([made.folder / "uniref.fasta"], made.uniref.path)
    lines = with_ending(made.uniref.path, "_mapping").read_text().splitlines()
    assert lines[:2] == ["0\t500", "1\t501"]
    assert len(lines) == 14
    assert not list(made.folder.glob("helixfold-*"))
    empty = tmp_path / "empty.fasta"
    empty.touch()
    with pytest.raises(InputError, match="the file holds no sequence"):
        build.clusters([empty], tmp_path / "new")
    assert list(tmp_path.iterdir()) == [empty]
