"""Searches of ColabFold's databases have the results of `colabfold_search`, for a batch as for single targets."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError, SearchError
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
from tests.data_pipeline.search.recording_program import RecordingProgram


@pytest.fixture(scope="module")
def program() -> Path:
    found = find_mmseqs()
    if found is None or (mmseqs_release(found) or OLDEST_FOR_CLUSTERS) < OLDEST_FOR_CLUSTERS:
        pytest.skip(f"needs MMseqs2, release {OLDEST_FOR_CLUSTERS} or a newer one")
    return found


@pytest.mark.long  # building the databases takes half a minute; shorter tests compare the steps, and run the program
def test_results_are_those_of_colabfold_search_byte_for_byte(program: Path, real_data: Path, tmp_path: Path) -> None:
    wanted = json.loads(DIGESTS.read_text())
    if program_version(program, "version") != wanted["mmseqs"]:
        pytest.skip(f"needs MMseqs2 {wanted['mmseqs']}, whose results are stored")
    case = ColabfoldCase(real_data / "fasta", tmp_path)
    names, sequences = zip(*case.targets, strict=True)
    assert len(names) == 50
    batch, kept = MmseqsBatch(program=program, cpus=2), SharedResults(tmp_path / "kept")
    both = ColabfoldSearch(
        batch=batch, uniref=case.uniref, environmental=case.environmental, templates=case.templates, shared=kept
    )
    assert {name: digest(a3m) for name, a3m in zip(names, both.search_many(sequences), strict=True)} == wanted[
        "environmental"
    ]
    assert {name: digest(both.template_hits(text)) for name, text in case.targets} == wanted["templates"]
    alone = ColabfoldSearch(batch=batch, uniref=case.uniref)
    assert dict(zip(names, map(digest, alone.search_many(sequences)), strict=True)) == wanted["uniref"]
    pairing = ColabfoldPairing(batch=batch, database=case.uniref)
    pairs = pairing.search_many(case.complexes)
    assert [digest(a3m) for rows in pairs for a3m in rows] == wanted["pairs"]


@pytest.fixture(scope="module")
def made(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(program, tmp_path_factory.mktemp("clusters"))


@pytest.mark.integration
def test_equal_sequences_of_a_batch_are_searched_once_and_results_are_kept(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger, odd = random_protein(np.random.default_rng(9), 40), "BZJUOX" + made.second
    search = replace(made.search, shared=SharedResults(tmp_path / "kept"))
    assert isinstance(search, BatchSearch)
    targets = [made.first, stranger, odd, made.first]
    together = search.search_many(targets)
    assert together[0] == together[3]
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


@pytest.mark.long
def test_a_batch_has_the_results_of_single_searches(made: Made) -> None:
    targets = [made.first, made.second]
    assert made.search.search_many(targets) == [made.search.search(target) for target in targets]


@pytest.mark.integration
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
    with pytest.raises(ValueError, match="the sequences of a complex must differ"):
        pairing.search([made.first, made.first])


SEARCH = "--num-iterations 3 -a -e 0.1 --max-seqs 10000 --prefilter-mode 0 -s 5.7"
ROWS = "--filter-min-enable 1000 --diff 3000 --qsc 0 --max-seq-id 0.95"


def test_the_steps_are_colabfolds(tmp_path: Path) -> None:
    """Those of colabfold_search 1.6, whose results the test above compares."""
    (tmp_path / "pdb.idx.index").touch()
    steps = unpaired_steps(
        ColabfoldOptions(), database(tmp_path / "uniref"), database(tmp_path / "env"), tmp_path / "pdb"
    )
    good = "--qid 0 --qsc 0.8 --diff 0 --max-seq-id 1.0 --filter-min-enable 100"
    identities = "0.0,0.2,0.4,0.6,0.8,1.0"

    def members(name: str, aligned_to: str, profile: str, result: str, more: str) -> list[str]:
        seq = f"{tmp_path}/{name}_seq"
        return [
            f"expandaln {aligned_to} {seq} clusters {tmp_path}/{name}_aln members --expansion-mode 0 -e inf{more}",
            f"align {profile} {seq} members aligned -e 10 --max-accept 100000 --alt-ali 10 -a",
            f"filterresult queries {seq} aligned good {good}",
            f"result2msa queries {seq} good {result} --msa-format-mode 6 --filter-msa 1 {ROWS} --qid {identities}",
            *(f"rmdb {each}" for each in ("clusters", "members", "aligned", "good")),
        ]

    thinned = " --expand-filter-clusters 1 --max-seq-id 0.95"
    columns = "query,target,fident,alnlen,mismatch,gapopen,qstart,qend,tstart,tend,evalue,bits,cigar"
    assert [" ".join(step) for step in steps] == [
        f"search queries {tmp_path}/uniref clusters search {SEARCH}",
        "mvdb search/latest/profile_1 profile",
        "lndb queries_h profile_h",
        *members("uniref", "queries", "profile", "uniref", thinned),
        f"search profile {tmp_path}/env clusters second_search {SEARCH}",
        *members("env", "profile", "second_search/latest/profile_1", "environmental", ""),
        "mergedbs queries final uniref environmental",
        f"search profile {tmp_path}/pdb chains template_search -a -e 0.1 --prefilter-mode 0 -s 7.5",
        f"convertalis profile {tmp_path}/pdb.idx chains template_hits --db-output 1 --format-output {columns}",
    ]
    alone = unpaired_steps(ColabfoldOptions(), database(tmp_path / "uniref"), None, None)
    assert alone == [*steps[:11], ["mvdb", "uniref", "final"]]


@pytest.mark.parametrize(("complete", "mode"), [(False, "0"), (True, "1")])
def test_the_steps_of_pairs_are_colabfolds(complete: bool, mode: str, tmp_path: Path) -> None:
    seq, pairs = f"{tmp_path}/uniref_seq", f"--pairing-mode {mode} --pairing-dummy-mode"
    steps = paired_steps(ColabfoldOptions(), database(tmp_path / "uniref"), complete=complete)
    assert [" ".join(step) for step in steps] == [
        f"search queries {tmp_path}/uniref clusters search {SEARCH}",
        "mvdb search/latest/profile_1 profile",
        "lndb queries_h profile_h",
        f"expandaln queries {seq} clusters {tmp_path}/uniref_aln members --expansion-mode 0 -e inf "
        "--expand-filter-clusters 0 --max-seq-id 0.95",
        f"align profile {seq} members scored --alignment-mode 1 -e 0.001 --max-accept 1000000",
        f"pairaln queries {tmp_path}/uniref scored with_partner {pairs} 0",
        f"align profile {seq} with_partner aligned -e inf -a",
        f"pairaln queries {tmp_path}/uniref aligned paired {pairs} 1",
        f"result2msa queries {seq} paired pairs --msa-format-mode 5 --filter-msa 0 {ROWS} --qid 0.2,0.4,0.6,0.8,1.0",
    ]


def database(path: Path) -> ClusterDatabase:
    """A database whose files have the right kinds and nothing in them."""
    for ending, kind in {"": 0, "_h": 12, "_seq": 0, "_seq_h": 12, "_aln": 5}.items():
        with_ending(path, ending).touch()
        with_ending(path, f"{ending}.index").touch()
        with_ending(path, f"{ending}.dbtype").write_bytes(bytes([kind, 0, 8, 0]))
    return ClusterDatabase(path)


# The alignment of each query is the query itself, with a hit; the second query has no template.
ECHOES = """case "$1" in
createdb) cp queries.fasta {copied}.fasta ;;
search) cp queries.lookup {copied}.lookup ;;
unpackdb)
    mkdir "$3"; key=0
    while read header && read row; do
        echo "$header
$row
>hit
$row" > "$3/$key.txt"
        key=$((key + 1))
    done < queries.fasta
    if [ "$2" = template_hits ]; then rm -f "$3/1.txt"; fi ;;
version) echo 18 ;;
esac"""


def test_a_batch_is_one_run_with_a_file_for_each_complex(tmp_path: Path) -> None:
    program = RecordingProgram(tmp_path, "mmseqs", ECHOES.format(copied=tmp_path / "copied"))
    batch = MmseqsBatch(program=program.path, cpus=3)
    steps = [["search", "x"], ["mvdb", "a", "b"], ["pairaln", "y"], ["lndb", "z"], ["rmdb", "c"], ["mergedbs", "d"]]
    alignments, hits = batch.run([["MKV", "MA"], ["MKVLA"]], steps, ["final", "template_hits"])
    assert (tmp_path / "copied.fasta").read_text() == ">101\nMKV\n>102\nMA\n>101\nMKVLA\n"
    assert (tmp_path / "copied.lookup").read_text() == "0\t0\t0\n1\t0\t0\n2\t1\t1\n"
    assert alignments == [
        b">101\nMKV\n>hit\nMKV\n",
        b">102\nMA\n>hit\nMA\n",
        b">101\nMKVLA\n>hit\nMKVLA\n",
    ]
    assert hits == [alignments[0], b"", alignments[2]]
    assert program.calls == [
        "createdb queries.fasta queries --shuffle 0 --dbtype 1 -v 2",
        "search x --threads 3 -v 2",
        "mvdb a b -v 2",
        "pairaln y --threads 3 -v 2",
        *("lndb z -v 2", "rmdb c -v 2", "mergedbs d -v 2"),
        "unpackdb final final_files --unpack-name-mode 0 --unpack-suffix .txt -v 2",
        "unpackdb template_hits template_hits_files --unpack-name-mode 0 --unpack-suffix .txt -v 2",
    ]
    batch.run([["M"], ["M" * 70_000]], [["search", "x"], ["align", "y"], ["pairaln", "z"]], ["final"])
    assert program.calls[-4:-1] == [
        "search x --threads 3 --max-seq-len 70000 -v 2",
        "align y --threads 3 --max-seq-len 70000 -v 2",
        "pairaln z --threads 3 -v 2",
    ]


def test_results_are_kept_by_query_and_only_missing_ones_are_searched(tmp_path: Path) -> None:
    program = RecordingProgram(tmp_path, "mmseqs", ECHOES.format(copied=tmp_path / "copied"))
    batch, kept = MmseqsBatch(program=program.path, cpus=1), SharedResults(tmp_path / "kept")
    search = ColabfoldSearch(
        batch=batch, uniref=database(tmp_path / "uniref"), templates=database(tmp_path / "pdb").path, shared=kept
    )
    one, two, three = (f">101\n{each}\n>hit\n{each}\n".encode() for each in ("MKV", "MAA", "MGGG"))
    assert search.search_many(["MKV", "MAA", "MKV"]) == [one, two, one]
    assert search.template_hits("MKV") == one
    assert search.template_hits("MAA") == b""
    assert len([line for line in program.calls if line.startswith("createdb")]) == 1
    assert search.search_many(["MGGG", "MAA"]) == [three, two]
    assert (tmp_path / "copied.fasta").read_text() == ">101\nMGGG\n"
    # Hits without their alignment, or the other way round, are searched again.
    assert replace(search, templates=None).search("MAA") == two
    assert ColabfoldTemplates(alignments=search).search(one) == one
    pairing = ColabfoldPairing(batch=batch, database=search.uniref, shared=kept)
    pairs = [one, two.replace(b"101", b"102")]
    assert pairing.search(["MKV", "MAA"]) == pairs
    assert pairing.search_many([["MGGG", "MKV"], ["MKV", "MAA"]]) == [[three, one.replace(b"101", b"102")], pairs]
    assert (tmp_path / "copied.fasta").read_text() == ">101\nMGGG\n>102\nMKV\n"
    calls = len(program.calls)
    # The identity asks for the version; nothing is searched for the other order of an earlier complex's sequences.
    assert pairing.search_many([["MKV", "MAA"], ["MGGG", "MKV"]])[0] == pairs
    assert program.calls[calls:] == []


def test_a_first_row_that_is_not_the_target_is_an_error(tmp_path: Path) -> None:
    script = ECHOES.format(copied=tmp_path / "copied").replace("$row\n>hit", "X$row\n>hit")
    search = ColabfoldSearch(
        batch=MmseqsBatch(program=RecordingProgram(tmp_path, "mmseqs", script).path),
        uniref=database(tmp_path / "uniref"),
    )
    with pytest.raises(SearchError, match="the first row of an alignment of mmseqs is not the target"):
        search.search("MKV")


@pytest.mark.parametrize(
    ("ending", "content", "message"),
    [
        ("_aln.index", None, r"uniref30_x_db_aln.index: this file of the MMseqs2 database is missing; download or"),
        ("_seq", None, r"uniref30_x_db_seq: this file of the MMseqs2 database is missing"),
        ("_h.dbtype", None, r"uniref30_x_db_h.dbtype: this file of the MMseqs2 database is missing"),
        (
            "_seq.dbtype",
            b"\1\0\0\0",
            r"uniref30_x_db_seq: expected an MMseqs2 database of protein sequences, got type",
        ),
        (
            "_aln.dbtype",
            b"\6\0\0\0",
            r"uniref30_x_db_aln: expected an MMseqs2 database of alignments, got type",
        ),
        (".dbtype", b"\0\0", r"uniref30_x_db.dbtype: not a file of MMseqs2: got 2 bytes, expected 4; download"),
    ],
)
def test_an_incomplete_database_is_refused(tmp_path: Path, ending: str, content: bytes | None, message: str) -> None:
    path = with_ending(database(tmp_path / "uniref30_x_db").path, ending)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        ClusterDatabase(tmp_path / "uniref30_x_db")


def test_a_failing_program_is_a_search_error(tmp_path: Path) -> None:
    broken = RecordingProgram(tmp_path, "mmseqs", "echo 'Index version does not match' >&2\nexit 1")
    search = ColabfoldSearch(batch=MmseqsBatch(program=broken.path, cpus=1), uniref=database(tmp_path / "uniref"))
    with pytest.raises(SearchError, match="mmseqs failed with exit code 1; it printed: Index version does not match"):
        search.search("MKV")


def test_the_options_change_the_steps_and_the_identity(tmp_path: Path) -> None:
    uniref, gpu = database(tmp_path / "uniref"), ColabfoldOptions(gpu=True, gpu_server=True)
    batch = MmseqsBatch(program=RecordingProgram(tmp_path, "mmseqs", "echo 18").path)
    search = ColabfoldSearch(batch=batch, uniref=uniref)
    steps = unpaired_steps(gpu, uniref, database(tmp_path / "env"), tmp_path / "pdb")
    searches = [step for step in steps if step[0] == "search"]
    assert len(searches) == 3
    for step in searches:
        assert " ".join(step).endswith("--gpu 1 --prefilter-mode 1 --gpu-server 1")
        assert "-s" not in step
    words = [" ".join(step) for step in unpaired_steps(ColabfoldOptions(filtered=False), uniref, None, None)]
    assert any("--qsc -20.0" in line for line in words)
    assert any("--filter-msa 0" in line for line in words)
    assert any("--max-accept 1000000" in line for line in words)
    options = (ColabfoldOptions(), gpu, ColabfoldOptions(filtered=False), ColabfoldOptions(sensitivity=8))
    assert len({replace(search, options=each).identity() for each in options}) == 4
    with pytest.raises(ValueError, match="gpu_server needs gpu = true"):
        ColabfoldOptions(gpu_server=True)
    with pytest.raises(ValueError, match="sensitivity must be between 1 and 10, got 11"):
        ColabfoldOptions(sensitivity=11)


def test_an_index_takes_the_place_of_members_and_alignments(tmp_path: Path) -> None:
    plain = database(tmp_path / "x")
    assert (plain.members, plain.alignments) == (f"{tmp_path}/x_seq", f"{tmp_path}/x_aln")
    (tmp_path / "x.idx.index").touch()
    for path in [*tmp_path.glob("x_seq*"), *tmp_path.glob("x_aln*")]:
        path.unlink()
    indexed = ClusterDatabase(tmp_path / "x")
    assert indexed.members == indexed.alignments == str(tmp_path / "x.idx")


@pytest.mark.integration
def test_a_database_is_never_replaced_and_its_species_are_read(made: Made, tmp_path: Path) -> None:
    build = ClusterBuild(program=made.batch.program, cpus=1)
    with pytest.raises(InputError, match="a database of this name exists already"):
        build.clusters([made.folder / "uniref.fasta"], made.uniref.path)
    lines = with_ending(made.uniref.path, "_mapping").read_text().splitlines()
    assert lines[:2] == ["0\t500", "1\t501"]
    assert len(lines) == 14
    assert not list(made.folder.glob("helixfold-*"))
    empty = tmp_path / "empty.fasta"
    empty.touch()
    with pytest.raises(InputError, match="the file has no sequences"):
        build.clusters([empty], tmp_path / "new")
    assert list(tmp_path.iterdir()) == [empty]
