import gzip
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.search.mmseqs import Mmseqs, MmseqsOptions, cluster_sequences
from data_pipeline.search.tool import SequenceSearch
from tests.data_pipeline.search.families import needed_program, random_protein, relative
from tests.data_pipeline.search.recording_program import RecordingProgram

AHEAD = "GSBZJUOXGS"  # letters that MMseqs2 replaces by its own
_RANDOM = np.random.default_rng(4)
_ANCESTOR = random_protein(_RANDOM, 200)
RELATIVES = {"whole": _ANCESTOR, "half": _ANCESTOR[:100], "close": relative(_RANDOM, _ANCESTOR, 0.7)}


@pytest.fixture(scope="module")
def target_and_fasta(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A target, and a FASTA file with twenty relatives and a hundred others."""
    rng = np.random.default_rng(3)
    ancestor = random_protein(rng, 120)
    records = [(f"tr|P{i:05d}|KIN_{i} a relative", relative(rng, ancestor, 0.5)) for i in range(20)]
    records += [(f"other_{i}", random_protein(rng, 120)) for i in range(100)]
    path = tmp_path_factory.mktemp("fasta") / "sequences.fasta"
    path.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in records))
    return AHEAD + relative(rng, ancestor, 0.6), path


@pytest.mark.integration
def test_planted_relatives_are_found_below_the_target_and_nothing_else_is(
    target_and_fasta: tuple[str, Path], tmp_path: Path
) -> None:
    target, fasta = target_and_fasta
    packed, cache = tmp_path / "packed" / "sequences.fasta.gz", tmp_path / "cache"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(fasta.read_bytes()))
    options = MmseqsOptions(e_value=1e-3, iterations=2)
    search = Mmseqs(program=needed_program("mmseqs"), database=packed, cache=cache, cpus=1, options=options)
    assert isinstance(search, SequenceSearch)
    content = search.search(target)
    alignment = parse_a3m(content, target)
    assert content.startswith(f">query\n{target}\n".encode())
    assert {name[:4] for name in alignment.names[1:]} == {"P000"}
    assert len(set(alignment.names)) == 21
    columns = slice(len(AHEAD) + 20, -20)
    assert (alignment.letters[1:, columns] == alignment.letters[0, columns]).mean() > 0.25
    # The user's folder is left alone; what was made is used again, and nothing else stays.
    assert [path.name for path in packed.parent.iterdir()] == ["sequences.fasta.gz"]
    (made,) = cache.iterdir()
    kept = (made / "sequences").stat().st_mtime_ns
    stranger = random_protein(np.random.default_rng(1), 50)
    unfiltered = replace(search, options=MmseqsOptions(e_value=1e-6, filtered=False, iterations=1))
    assert unfiltered.search(stranger) == f">query\n{stranger}\n".encode()
    assert (made / "sequences").stat().st_mtime_ns == kept
    assert list(cache.iterdir()) == [made]


@pytest.mark.integration
def test_a_database_that_createdb_made_is_used_as_it_is(target_and_fasta: tuple[str, Path], tmp_path: Path) -> None:
    target, fasta = target_and_fasta
    program = needed_program("mmseqs")
    made = tmp_path / "made"
    subprocess.run([program, "createdb", fasta, made, "-v", "1"], check=True)
    search = Mmseqs(program=program, database=made, cache=tmp_path / "cache", options=MmseqsOptions(iterations=1))
    assert len(parse_a3m(search.search(target), target).names) > 15
    assert not (tmp_path / "cache").exists()


def test_databases_that_cannot_be_searched_are_refused(tmp_path: Path) -> None:
    program = tmp_path / "mmseqs"
    with pytest.raises(InputError, match="no such database"):
        Mmseqs(program=program, database=tmp_path / "none.fasta", cache=tmp_path)
    (tmp_path / "profiles").touch()
    (tmp_path / "profiles.dbtype").write_bytes(b"\2\0\0\0")
    with pytest.raises(InputError, match="profiles: not a database of protein sequences"):
        Mmseqs(program=program, database=tmp_path / "profiles", cache=tmp_path)


# MMseqs2 writes D for B; the alignment has a row below the target's.
UNPACKS = """case "$1" in
unpackdb) mkdir "$3"; printf '>query\\nMKDV\\n>hit\\nMKAV\\n' > "$3/0.a3m" ;;
esac"""


def test_the_steps_of_a_search_are_colabfolds_for_plain_sequences(tmp_path: Path) -> None:
    program = RecordingProgram(tmp_path, "mmseqs", UNPACKS)
    fasta, cache = tmp_path / "db.fasta", tmp_path / "cache"
    fasta.write_text(">a\nMKV\n")
    search = Mmseqs(program=program.path, database=fasta, cache=cache, cpus=3)
    assert search.search("MKBV") == b">query\nMKBV\n>hit\nMKAV\n"
    (made,) = cache.iterdir()
    wanted = [
        f"createdb {fasta} sequences --dbtype 1",
        "createdb query.fasta query --dbtype 1",
        f"search query {made}/sequences hits steps -s 8 --num-iterations 3 -e 0.1 --max-seqs 10000 -a --threads 3",
        f"filterresult query {made}/sequences hits good --qid 0 --qsc 0.8 --diff 0 --max-seq-id 1.0 "
        "--filter-min-enable 100",
        f"result2msa query {made}/sequences good rows --msa-format-mode 6 --filter-msa 1 --filter-min-enable 1000 "
        "--diff 3000 --qid 0.0,0.2,0.4,0.6,0.8,1.0 --qsc 0 --max-seq-id 0.95",
        "unpackdb rows unpacked --unpack-name-mode 0 --unpack-suffix .a3m",
    ]
    assert program.calls == [f"{words} -v 2" for words in wanted]
    # The database is made once; without filters, all hits become rows.
    unfiltered = replace(search, options=MmseqsOptions(filtered=False))
    with pytest.raises(SearchError, match="the first row of an alignment of mmseqs is not the target"):
        unfiltered.search("M" * 70_000)
    words = program.calls[len(wanted) :]
    assert [line.split()[0] for line in words] == ["createdb", "search", "result2msa", "unpackdb"]
    assert "-a --max-seq-len 70000 --threads" in words[1]
    assert words[2] == f"result2msa query {made}/sequences hits rows --msa-format-mode 6 -v 2"
    # A file that has changed since is converted again.
    fasta.write_text(">a\nMKVV\n")
    search.search("MKBV")
    assert len(list(cache.iterdir())) == 2


def test_clusters_are_read_from_the_programs_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences are ordered by length and letters; the last in the file is only there to have words to index."""
    copied = tmp_path / "all.fasta"
    script = f"""case "$1" in
    createdb) cp all.fasta {copied} ;;
    createtsv) printf '0\\t0\\n0\\t2\\n1\\t1\\n3\\t3\\n4\\t1\\n' > "$5" ;;
    esac"""
    program = RecordingProgram(tmp_path, "mmseqs", script)
    monkeypatch.setattr("data_pipeline.search.mmseqs.require_mmseqs", lambda: program.path)
    sequences = {"e": "MK", "b": "mkvla", "d": "MKV", "a": "MKVLA", "c": "MKVL"}
    found = cluster_sequences(sequences, min_identity=0.5, coverage=0.75, cpus=2)
    assert found == {"a": "a", "b": "a", "c": "c", "d": "a", "e": "e"}
    assert copied.read_text().splitlines()[:8] == [">0", "MKVLA", ">1", "MKVL", ">2", "MKV", ">3", "MK"]
    assert copied.read_text().count(">") == 5
    assert program.calls == [
        "createdb all.fasta all --dbtype 1 --shuffle 0 -v 2",
        "cluster all clusters steps --min-seq-id 0.5 -c 0.75 --cov-mode 0 --single-step-clustering 1 --max-seqs 1000 "
        "--threads 2 -v 2",
        "createtsv all all clusters clusters.tsv -v 2",
    ]


@pytest.mark.integration
def test_a_file_that_is_no_fasta_is_a_search_error(tmp_path: Path) -> None:
    path = tmp_path / "empty.fasta"
    path.touch()
    search = Mmseqs(program=needed_program("mmseqs"), database=path, cache=tmp_path / "cache")
    with pytest.raises(SearchError, match="mmseqs failed with exit code"):
        search.search("MKV")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_identity_names_what_changes_the_result_and_nothing_else(tmp_path: Path) -> None:
    program, database = tmp_path / "mmseqs", tmp_path / "db.fasta"
    program.write_text("#!/bin/sh\necho 14-7e284\n")
    program.chmod(0o755)
    database.write_text(">a\nMKV\n")

    def identity(database: Path = database, cpus: int = 4, **options: float) -> str:
        own = MmseqsOptions(**options)  # type: ignore[arg-type]
        return Mmseqs(program=program, database=database, cache=tmp_path, options=own, cpus=cpus).identity()

    assert identity().startswith("mmseqs 14-7e284 -s 8 --num-iterations 3 -e 0.1 --max-seqs 10000 ")
    assert identity().endswith(" in db.fasta:7")
    assert identity(cpus=1) == identity()
    others: list[dict[str, float]] = [
        {"sensitivity": 7},
        {"iterations": 1},
        {"e_value": 1},
        {"max_hits": 9},
        {"filtered": False},
    ]
    assert len({identity(), *(identity(**other) for other in others)}) == 6
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "db.fasta").write_text(">a\nMKV\n")
    assert identity(tmp_path / "db" / "db.fasta") == identity()  # the same database in another place


@pytest.mark.parametrize(
    "wrong", [{"sensitivity": 0}, {"iterations": 0}, {"e_value": 0}, {"e_value": float("nan")}, {"max_hits": 0}]
)
def test_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        MmseqsOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.integration
def test_clusters_are_the_planted_families_whatever_names_and_order() -> None:
    needed_program("mmseqs")
    rng = np.random.default_rng(8)
    sequences: dict[str, str] = {}
    family: dict[str, int] = {}
    for index in range(6):
        ancestor = random_protein(rng, 150)
        for member in range(5):
            name = f"{index}/sp|P{member}|weird name\t>{member}, é"
            sequences[name] = relative(rng, ancestor, 0.8)
            family[name] = index
    sequences |= {"equal": sequences[next(iter(sequences))].lower(), "short": "MK", "unknown": "X" * 30}
    family |= {"equal": 0, "short": 6, "unknown": 7}
    # Half a sequence is covered by the whole one, but does not cover it.
    sequences |= RELATIVES
    family |= {"whole": 8, "half": 9, "close": 8}
    clusters = cluster_sequences(sequences, cpus=1)
    assert clusters.keys() == sequences.keys()
    assert all(clusters[representative] == representative for representative in clusters.values())
    found: dict[str, set[int]] = {}
    for name, cluster in clusters.items():
        found.setdefault(cluster, set()).add(family[name])
    assert sorted(map(sorted, found.values())) == [[index] for index in range(10)]
    shuffled = rng.permutation(list(sequences)).tolist()
    assert cluster_sequences({name: sequences[name] for name in shuffled}, cpus=2) == clusters


@pytest.mark.integration
def test_identity_and_coverage_decide() -> None:
    needed_program("mmseqs")
    other = cluster_sequences(RELATIVES, coverage=0.4, min_identity=0.9)
    assert other["whole"] == other["half"] != other["close"]


@pytest.mark.integration
@pytest.mark.parametrize(
    "sequences",
    [{"a": "MK", "b": "MKV", "c": "X" * 50}, pytest.param({"only": "MKVLAAGIVGLCARSTQWERTY"}, marks=pytest.mark.long)],
)
def test_sequences_without_words_to_index_are_their_own_clusters(sequences: dict[str, str]) -> None:
    needed_program("mmseqs")
    assert cluster_sequences(sequences) == {name: name for name in sequences}


def test_what_cannot_be_clustered_is_refused() -> None:
    assert cluster_sequences({}) == {}
    with pytest.raises(ValueError, match="min_identity must be above 0 and at most 1, got 40"):
        cluster_sequences({"a": "MKV"}, min_identity=40)
    with pytest.raises(ValueError, match="coverage must be above 0 and at most 1, got 0"):
        cluster_sequences({"a": "MKV"}, coverage=0)
    with pytest.raises(ValueError, match=r"the sequence of 'a' must be letters of residues, got '>x"):
        cluster_sequences({"a": ">x\nMKV"})
