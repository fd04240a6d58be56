import gzip
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.parse.fasta import read_fasta
from data_pipeline.parse.stockholm import parse_stockholm
from data_pipeline.search import fasta_chunks, profile_search
from data_pipeline.search.jackhmmer import InProcessJackhmmer, JackhmmerOptions, JackhmmerProgram
from data_pipeline.search.tool import SequenceSearch
from tests.data_pipeline.search.families import needed_program, random_protein, relative
from tests.data_pipeline.search.recording_program import RecordingProgram

OPTIONS = JackhmmerOptions()
WIDE = JackhmmerOptions(e_value=10.0, inclusion_e_value=1.0, filter_f1=0.02, filter_f2=1e-3, filter_f3=1e-5)


def with_indels(rng: np.random.Generator, protein: str) -> str:
    """The protein with one stretch lost and another gained, at random places."""
    lost, gained = rng.integers(5, len(protein) - 15, 2)
    shorter = protein[:lost] + protein[lost + rng.integers(0, 9) :]
    return shorter[:gained] + random_protein(rng, int(rng.integers(0, 12))) + shorter[gained:]


def made_up_database() -> tuple[str, str]:
    """A target, and a FASTA text of its relatives near and far, repeats, duplicates and many others."""
    rng = np.random.default_rng(11)
    target = random_protein(rng, 120)
    records = [(f"other{i}", random_protein(rng, int(rng.integers(10, 400)))) for i in range(150)]
    near = [with_indels(rng, relative(rng, target, identity)) for identity in np.linspace(0.95, 0.2, 60)]
    records += [(f"near{i}", protein) for i, protein in enumerate(near)]
    records += [("three", near[1] + random_protein(rng, 40) + near[9] + near[20]), ("self", target)]
    records += [(f"twin{i}", near[3]) for i in (4, 2, 7)]
    records.append(("odd", target[:50] + "XBZUOJ*" + "K"))
    order = rng.permutation(len(records))
    return target, "".join(f">{records[i][0]} number {i}\n{records[i][1]}\n" for i in order)


@pytest.fixture(scope="module")
def target_and_database(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    target, content = made_up_database()
    path = tmp_path_factory.mktemp("jackhmmer") / "database.fasta"
    path.write_text(content)
    return target, path


def without_author(stockholm: bytes) -> bytes:
    return b"\n".join(line for line in stockholm.split(b"\n") if not line.startswith(b"#=GF AU"))


def in_small_chunks(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(
        profile_search, "read_fasta_chunks", partial(fasta_chunks.read_fasta_chunks, chunk_bytes=chunk_bytes)
    )


def test_relatives_are_found_with_the_target_first(target_and_database: tuple[str, Path]) -> None:
    target, database = target_and_database
    search = InProcessJackhmmer(database, OPTIONS, cpus=1)
    assert isinstance(search, SequenceSearch)
    content = search.search(target)
    assert content.startswith(b"# STOCKHOLM 1.0\n#=GF ID query-i1\n")
    alignment = parse_stockholm(content, target)
    assert alignment.names[0] == "query"
    assert "self/1-120" in alignment.names
    hits = {name.split("/")[0] for name in alignment.names[1:]}
    assert {"near0", "near10", "near20", "three", "self", "twin2", "odd"} <= hits
    assert not any(name.startswith("other") for name in hits)
    assert sum(name.startswith("three/") for name in alignment.names) == 3
    assert alignment.deletion_matrix.any()
    assert b"DE [subseq from] number" in content


def test_rows_are_hits_within_the_inclusion_threshold_and_not_the_reporting_one(
    target_and_database: tuple[str, Path],
) -> None:
    target, database = target_and_database

    def names(options: JackhmmerOptions) -> set[str]:
        return set(parse_stockholm(InProcessJackhmmer(database, options, cpus=1).search(target), target).names)

    few, all_included = (names(replace(OPTIONS, inclusion_e_value=value)) for value in (1e-30, 1e-4))
    assert {"self/1-120", "near0"} <= {name if name.startswith("self") else name.split("/")[0] for name in few}
    assert few < all_included
    # Reporting more sequences lets none of them in.
    assert names(replace(OPTIONS, e_value=10.0, inclusion_e_value=1e-30)) == few


@cache
def whole_result(database: Path, options: JackhmmerOptions, target: str) -> bytes:
    """What is found in a database that is read at once, by one thread."""
    return InProcessJackhmmer(database, options, cpus=1).search(target)


@pytest.mark.parametrize(
    "chunk_bytes",
    [pytest.param(1, marks=pytest.mark.integration), 2_000, pytest.param(10_000, marks=pytest.mark.integration)],
)
@pytest.mark.parametrize("cpus", [pytest.param(1, marks=pytest.mark.integration), 3])
@pytest.mark.parametrize("options", [OPTIONS, replace(OPTIONS, z_value=1e7), replace(WIDE, iterations=2)])
def test_the_result_does_not_depend_on_chunks_and_threads(
    target_and_database: tuple[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    options: JackhmmerOptions,
    cpus: int,
    chunk_bytes: int,
) -> None:
    target, database = target_and_database
    whole = whole_result(database, options, target)
    in_small_chunks(monkeypatch, chunk_bytes)
    assert InProcessJackhmmer(database, options, cpus=cpus).search(target) == whole


def test_several_targets_searched_at_once_have_each_its_own_result(target_and_database: tuple[str, Path]) -> None:
    target, database = target_and_database
    search = InProcessJackhmmer(database, replace(WIDE, iterations=3))
    targets = [target, target[:60], random_protein(np.random.default_rng(0), 90), target[::-1]]
    together = search.search_many(targets)
    assert together == [search.search(each) for each in targets]
    assert len(set(together)) == len(targets)
    assert search.search_many([]) == []


@pytest.mark.integration
@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        replace(WIDE, iterations=3),
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in (
                WIDE,
                replace(OPTIONS, z_value=1e8),
                replace(WIDE, inclusion_e_value=1e-30),
                replace(OPTIONS, filter_f3=1e-30),
            )
        ),
    ],
)
def test_rows_are_those_of_the_program(
    target_and_database: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, options: JackhmmerOptions
) -> None:
    target, database = target_and_database
    program = JackhmmerProgram(database, options, needed_program("jackhmmer"), cpus=2)
    assert isinstance(program, SequenceSearch)
    in_small_chunks(monkeypatch, 5_000)
    search = InProcessJackhmmer(database, options, cpus=2)
    for each in (target, target * 3, target[:5], "M", "X" * 30, "A" * 60, target[:40] + "XBZUOJ" + target[40:]):
        assert without_author(search.search(each)) == without_author(program.search(each))


@pytest.mark.integration
def test_rows_are_those_of_the_program_where_names_are_used_twice(
    target_and_database: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, database = target_and_database
    twice = tmp_path / "database.fasta"
    twice.write_bytes(database.read_bytes() * 2)
    in_small_chunks(monkeypatch, 5_000)
    found = InProcessJackhmmer(twice, OPTIONS).search(target)
    assert parse_stockholm(found, target).names[0] == "000|query"  # HMMER numbers all rows then
    program = JackhmmerProgram(twice, OPTIONS, needed_program("jackhmmer"))
    assert without_author(found) == without_author(program.search(target))


@pytest.mark.integration
def test_rows_are_those_of_the_program_on_samples_of_real_databases(real_data: Path, tmp_path: Path) -> None:
    jackhmmer = needed_program("jackhmmer")
    samples = ["minidb_uniref90__subsampled_1000.fasta.gz", "minidb_mgy_clusters__subsampled_1000.fa.gz"]
    database = tmp_path / "samples.fasta"
    database.write_bytes(b"".join(gzip.decompress((real_data / "fasta" / name).read_bytes()) for name in samples))
    records = database.read_text().split(">")[1:]
    targets = ["".join(record.split("\n")[1:]).strip() for record in records[::150]]
    targets += [record.sequence for record in read_fasta(real_data / "fasta" / "casp14_targets_full_length.fasta")[:8]]
    found = InProcessJackhmmer(database, OPTIONS).search_many(targets)
    program = JackhmmerProgram(database, OPTIONS, jackhmmer, cpus=2)
    for target, content in zip(targets, found, strict=True):
        expected = program.search(target)
        assert without_author(content) == without_author(expected)
        ours, theirs = parse_stockholm(content, target), parse_stockholm(expected, target)
        assert ours.names == theirs.names
        np.testing.assert_array_equal(ours.letters, theirs.letters)
        np.testing.assert_array_equal(ours.deletion_matrix, theirs.deletion_matrix)


def test_a_target_without_relatives_is_alone_in_its_alignment(target_and_database: tuple[str, Path]) -> None:
    _, database = target_and_database
    lonely = random_protein(np.random.default_rng(5), 80)
    alignment = parse_stockholm(InProcessJackhmmer(database, OPTIONS).search(lonely), lonely)
    assert alignment.names == ("query",)


def test_packed_databases_are_searched_in_process_and_refused_for_the_program(
    target_and_database: tuple[str, Path], tmp_path: Path
) -> None:
    target, database = target_and_database
    packed = tmp_path / "database.fasta.gz"
    packed.write_bytes(gzip.compress(database.read_bytes()))
    expected = InProcessJackhmmer(database, OPTIONS).search(target)
    assert InProcessJackhmmer(packed, OPTIONS).search(target) == expected
    with pytest.raises(InputError, match="cannot read gzip files; unpack it"):
        JackhmmerProgram(packed, OPTIONS, Path("/bin/false"))


def test_the_identity_names_tool_options_and_database(target_and_database: tuple[str, Path]) -> None:
    _, database = target_and_database
    identity = InProcessJackhmmer(database, OPTIONS).identity()
    for part in ("jackhmmer", "pyhmmer", "-N 1", "--F3 5e-07", "database.fasta", str(database.stat().st_size)):
        assert part in identity
    assert InProcessJackhmmer(database, OPTIONS, cpus=7).identity() == identity
    assert InProcessJackhmmer(database, replace(OPTIONS, z_value=5.0)).identity() != identity
    program = JackhmmerProgram(database, OPTIONS, needed_program("jackhmmer"))
    assert program.identity().startswith("jackhmmer 3.")
    assert program.identity() != identity


@pytest.mark.parametrize(
    ("target", "problem"),
    [("", "is empty"), ("MK1V", "residue 3: '1' is not"), ("mkv", "residue 1"), ("MK-V", "cannot contain gaps")],
)
def test_a_target_that_is_no_protein_is_refused(
    target_and_database: tuple[str, Path], target: str, problem: str
) -> None:
    _, database = target_and_database
    for search in (InProcessJackhmmer(database, OPTIONS), JackhmmerProgram(database, OPTIONS, Path("/bin/false"))):
        with pytest.raises(InputError, match=problem):
            search.search(target)


def test_a_malformed_database_is_refused_with_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "database.fasta"
    in_small_chunks(monkeypatch, 50)
    database.write_text("".join(f">good{i}\nMKVLLAGTWERTYHG\n" for i in range(50)) + ">bad\nMK.V\n")
    with pytest.raises(InputError, match="line 102, column 3, record 'bad'"):
        InProcessJackhmmer(database, OPTIONS).search("MKVLLAGTWE")
    database.write_text(">good\nMKVL\n>titan\n" + "MKVLLAGTWE" * 10_001 + "\n")
    with pytest.raises(InputError, match=r"record 'titan': 100,010 residues, but HMMER supports at most 100,000"):
        InProcessJackhmmer(database, OPTIONS).search("MKVLLAGTWE")
    for content in ("", " \n"):
        database.write_text(content)
        with pytest.raises(InputError, match="has no sequences"):
            InProcessJackhmmer(database, OPTIONS)
    database.write_text(">good\nMKVL\n")
    search = InProcessJackhmmer(database, OPTIONS)
    database.unlink()
    with pytest.raises(InputError, match="No such file"):
        search.search("MKVLLAGTWE")


def test_a_program_that_fails_is_reported_with_what_it_printed(
    target_and_database: tuple[str, Path], tmp_path: Path
) -> None:
    target, database = target_and_database
    program = tmp_path / "jackhmmer"
    for script, timeout, problem in (
        ("echo no memory >&2; exit 3", None, "exit code 3; it printed: no memory"),
        ("kill -9 $$", None, "killed by SIGKILL"),
        ("sleep 600", 0.5, "did not finish"),
        ("exit 0", None, "did not write output.sto"),
    ):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        with pytest.raises(SearchError, match=problem):
            JackhmmerProgram(database, OPTIONS, program, timeout=timeout).search(target)


def test_the_command_line_is_alphafolds(target_and_database: tuple[str, Path], tmp_path: Path) -> None:
    _, database = target_and_database
    script = 'for last; do target=$result; result=$last; done; shift 3; cat query.fasta > "$1"'
    program = RecordingProgram(tmp_path, "jackhmmer", script)
    found = JackhmmerProgram(database, replace(OPTIONS, z_value=5.0), program.path, cpus=3).search("MKVX")
    assert found == b">query\nMKVX\n"
    (words,) = program.calls
    folder = words.split()[3].removesuffix("output.sto")
    assert words == (
        f"-o /dev/null -A {folder}output.sto --noali --cpu 3 -N 1 -E 0.0001 --incE 0.0001 --F1 0.0005 --F2 5e-05 "
        f"--F3 5e-07 -Z 5.0 {folder}query.fasta {database}"
    )


def test_nothing_is_left_in_the_temporary_directory(
    target_and_database: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, database = target_and_database
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    in_small_chunks(monkeypatch, 1_000)
    InProcessJackhmmer(database, OPTIONS).search(target)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(SearchError, match="TMPDIR"):
        InProcessJackhmmer(database, OPTIONS).search(target)


@pytest.mark.parametrize(
    "wrong", [{"iterations": 0}, {"e_value": 0.0}, {"filter_f2": float("nan")}, {"z_value": float("inf")}]
)
def test_options_without_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        JackhmmerOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cpus must be at least 1"):
        InProcessJackhmmer(Path("x"), OPTIONS, cpus=0)
