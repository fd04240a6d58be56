import gzip
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.parse.stockholm import a3m_to_stockholm, deduplicated, without_empty_columns
from data_pipeline.parse.template_hit import parse_hmmsearch
from data_pipeline.search import fasta_chunks, profile_search
from data_pipeline.search.hmmsearch import HmmsearchOptions, HmmsearchProgram, InProcessHmmsearch, build_profile
from data_pipeline.search.tool import TemplateSearch
from tests.data_pipeline.search.families import family_a3m, needed_program, random_protein, relative
from tests.data_pipeline.search.recording_program import RecordingProgram

OPTIONS = HmmsearchOptions()
STRICT = HmmsearchOptions(filter_f1=1e-6, filter_f2=1e-6, filter_f3=1e-9, e_value=1e-3)


def made_up() -> tuple[str, bytes, bytes]:
    """A target, its family's alignment, and pdb_seqres with relatives and nucleic acids among other chains."""
    rng = np.random.default_rng(3)
    target = random_protein(rng, 90)
    alignment = a3m_to_stockholm(
        family_a3m(rng, "query", target, 20) + f">gapped\n{target[:40]}wyw{'-' * 50}\n".encode()
    )
    chains = [(f"{i + 1000}_A", random_protein(rng, int(rng.integers(20, 300)))) for i in range(120)]
    chains += [
        (f"{i + 2000}_B", relative(rng, target, identity)) for i, identity in enumerate(np.linspace(0.9, 0.2, 20))
    ]
    chains += [("3000_C", target + random_protein(rng, 30) + relative(rng, target[20:], 0.6))]
    records = [f">{name} mol:protein length:{len(chain)}  Chain\n{chain}\n" for name, chain in chains]
    nucleic = [f">{i + 4000}_N mol:na length:90  RNA\n{target}\n" for i in range(5)]
    order = rng.permutation(len(records) + len(nucleic))
    return target, alignment, "".join([*records, *nucleic][i] for i in order).encode()


@pytest.fixture(scope="module")
def search_case(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes, Path]:
    target, alignment, content = made_up()
    path = tmp_path_factory.mktemp("hmmsearch") / "pdb_seqres.txt"
    path.write_bytes(content)
    return target, alignment, path


def program(database: Path, options: HmmsearchOptions) -> HmmsearchProgram:
    return HmmsearchProgram(database, options, needed_program("hmmsearch"), needed_program("hmmbuild"), cpus=2)


def without_author(stockholm: bytes) -> bytes:
    return b"\n".join(line for line in stockholm.split(b"\n") if not line.startswith(b"#=GF AU"))


def in_small_chunks(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(
        profile_search, "read_fasta_chunks", partial(fasta_chunks.read_fasta_chunks, chunk_bytes=chunk_bytes)
    )


def test_relatives_are_hits_and_nucleic_acids_are_not(search_case: tuple[str, bytes, Path]) -> None:
    target, alignment, database = search_case
    search = InProcessHmmsearch(database, OPTIONS)
    assert isinstance(search, TemplateSearch)
    hits = parse_hmmsearch(search.search(alignment), target)
    assert [hit.name.split("_")[0] for hit in hits[:3]] == ["3000", "3000", "2000"]
    assert not any("_N" in hit.name for hit in hits)
    assert len(hits) > 20  # AlphaFold's limits keep what is barely similar


@pytest.mark.parametrize("chunk_bytes", [1, 3_000])
@pytest.mark.parametrize("cpus", [1, 3])
def test_the_result_does_not_depend_on_chunks_and_threads(
    search_case: tuple[str, bytes, Path], monkeypatch: pytest.MonkeyPatch, cpus: int, chunk_bytes: int
) -> None:
    _, alignment, database = search_case
    whole = InProcessHmmsearch(database, OPTIONS, cpus=1).search(alignment)
    in_small_chunks(monkeypatch, chunk_bytes)
    assert InProcessHmmsearch(database, OPTIONS, cpus=cpus).search(alignment) == whole


@pytest.mark.integration
@pytest.mark.parametrize(
    "options", [OPTIONS, STRICT, replace(OPTIONS, inclusion_e_value=1e-5, domain_inclusion_e_value=1e-8)]
)
def test_hits_are_those_of_the_program(
    search_case: tuple[str, bytes, Path], monkeypatch: pytest.MonkeyPatch, options: HmmsearchOptions
) -> None:
    _, alignment, database = search_case
    in_small_chunks(monkeypatch, 3_000)
    found = InProcessHmmsearch(database, options).search(alignment)
    assert found
    assert without_author(found) == without_author(program(database, options).search(alignment))


@pytest.mark.integration
def test_nucleic_acids_do_not_count_in_e_values(search_case: tuple[str, bytes, Path], tmp_path: Path) -> None:
    _, alignment, database = search_case
    records = database.read_text().split(">")[1:]
    proteins = tmp_path / "proteins.txt"
    proteins.write_text("".join(f">{record}" for record in records if "mol:protein" in record))
    assert proteins.stat().st_size < database.stat().st_size
    expected = InProcessHmmsearch(proteins, OPTIONS).search(alignment)
    assert InProcessHmmsearch(database, OPTIONS).search(alignment) == expected
    assert without_author(program(database, OPTIONS).search(alignment)) == without_author(expected)
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(database.read_bytes()))
    assert InProcessHmmsearch(packed, OPTIONS).search(alignment) == expected
    assert without_author(program(packed, OPTIONS).search(alignment)) == without_author(expected)


@pytest.mark.integration
def test_hits_are_those_of_the_program_for_real_alignments(real_data: Path, tmp_path: Path) -> None:
    database = tmp_path / "pdb_seqres.fasta"
    sample = real_data / "fasta" / "minidb_pdb_seqres_2022_09_28__subsampled_1000.fasta.gz"
    database.write_bytes(gzip.decompress(sample.read_bytes()))
    search, reference = InProcessHmmsearch(database, OPTIONS), program(database, OPTIONS)
    names = ["2q2k_A__uniref90_hits.sto.gz", "3l4q_C__uniref90_hits.sto.gz", "T1084_D1__uniref90_hits.sto.gz"]
    for name in names:
        content = gzip.decompress((real_data / "msa" / name).read_bytes())
        cleaned = without_empty_columns(deduplicated(content))
        found = search.search(cleaned)
        assert found.count(b"#=GS") > 20
        assert without_author(found) == without_author(reference.search(cleaned))


def test_an_alignment_in_blocks_is_read_whole(search_case: tuple[str, bytes, Path]) -> None:
    _, alignment, database = search_case
    rows = [line.rsplit(maxsplit=1) for line in alignment.decode().splitlines() if line and line[:1] not in "#/"]
    (reference,) = (line.split()[-1] for line in alignment.decode().splitlines() if line.startswith("#=GC RF"))
    assert "." in reference
    text = "# STOCKHOLM 1.0\n"
    for columns in (slice(0, 41), slice(41, 70), slice(70, None)):
        text += "".join(f"{name} {row[columns]}\n" for name, row in rows) + f"#=GC RF {reference[columns]}\n\n"
    search = InProcessHmmsearch(database, OPTIONS)
    assert search.search(f"{text}//\n".encode()) == search.search(alignment)


def test_nothing_found_is_an_empty_file_without_hits(search_case: tuple[str, bytes, Path]) -> None:
    target, _, database = search_case
    lonely = a3m_to_stockholm(f">query\n{random_protein(np.random.default_rng(8), 40)}\n".encode())
    assert InProcessHmmsearch(database, STRICT).search(lonely) == b""
    assert program(database, STRICT).search(lonely) == b""
    assert parse_hmmsearch(b"", target) == ()


def test_the_identity_names_tool_options_and_database(search_case: tuple[str, bytes, Path]) -> None:
    _, _, database = search_case
    identity = InProcessHmmsearch(database, OPTIONS).identity()
    for part in ("hmmsearch", "pyhmmer", "--F1 0.1", "--incdomE 100.0", "pdb_seqres.txt"):
        assert part in identity
    assert InProcessHmmsearch(database, STRICT).identity() != identity
    assert program(database, OPTIONS).identity().startswith("hmmbuild 3.")


@pytest.mark.parametrize(
    ("alignment", "problem"),
    [
        (b"", "no alignment row"),
        (b"# STOCKHOLM 1.0\n\nquery MKVL\n//\n", "has no line '#=GC RF'"),
        (b"# STOCKHOLM 1.0\n\nquery MKVL\n#=GC RF xxx\n//\n", "has 4 columns, but its line '#=GC RF' has 3"),
        (b"# STOCKHOLM 1.0\n\nquery MKVL\n#=GC RF ....\n//\n", "has no line '#=GC RF'"),
        (b"# STOCKHOLM 1.0\n\nquery MKVL\n#=GC RF x xx\n//\n", "has no line '#=GC RF'"),
        (b"# STOCKHOLM 1.0\n\nquery MKVL\n#=GC RF xx\xc3\xa9\n//\n", "cannot build a profile"),
        (b"# STOCKHOLM 1.0\n\nquery MK1L\n#=GC RF xxxx\n//\n", "1"),
        (b"# STOCKHOLM 1.0\n\nquery MKVL\nother MKV\n#=GC RF xxxx\n//\n", "other"),
    ],
)
def test_an_alignment_that_gives_no_profile_is_refused(alignment: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        build_profile(alignment)


def test_a_program_that_fails_is_reported_with_what_it_printed(
    search_case: tuple[str, bytes, Path], tmp_path: Path
) -> None:
    _, alignment, database = search_case
    failing, fine = tmp_path / "failing", tmp_path / "fine"
    failing.write_text("#!/bin/sh\necho no licence >&2\nexit 4\n")
    fine.write_text("#!/bin/sh\n")
    for path in (failing, fine):
        path.chmod(0o755)
    for hmmsearch, hmmbuild, problem in (
        (failing, fine, "failing failed with exit code 4; it printed: no licence"),
        (fine, failing, "failing failed with exit code 4"),
        (fine, fine, "did not write output.sto"),
    ):
        with pytest.raises(SearchError, match=problem):
            HmmsearchProgram(database, OPTIONS, hmmsearch, hmmbuild).search(alignment)
    with pytest.raises(InputError, match="has no line '#=GC RF'"):
        HmmsearchProgram(database, OPTIONS, fine, fine).search(b"# STOCKHOLM 1.0\n\nquery MKVL\n//\n")


def test_the_command_lines_are_alphafolds(search_case: tuple[str, bytes, Path], tmp_path: Path) -> None:
    _, alignment, database = search_case
    build = RecordingProgram(tmp_path, "hmmbuild", f"cp query.sto {tmp_path}/alignment")
    script = f'for last; do database=$last; done; cp "$database" {tmp_path}/searched; echo hits > "$4"'
    search = RecordingProgram(tmp_path, "hmmsearch", script)
    program = HmmsearchProgram(database, OPTIONS, search.path, build.path, cpus=2)
    assert program.search(alignment) == b"hits\n"
    assert (tmp_path / "alignment").read_bytes() == alignment
    (words,), (searched,) = build.calls, search.calls
    folder = words.split()[-1].removesuffix("query.sto")
    assert words == f"-n query --hand --amino {folder}query.hmm {folder}query.sto"
    assert searched == (
        f"-o /dev/null -A {folder}output.sto --noali --cpu 2 --F1 0.1 --F2 0.1 --F3 0.1 -E 100.0 --domE 100.0 "
        f"--incE 100.0 --incdomE 100.0 {folder}query.hmm {folder}proteins.fasta"
    )
    proteins = [record for record in database.read_text().split(">") if "mol:protein" in record]
    assert (tmp_path / "searched").read_text() == "".join(f">{record}" for record in proteins)
    # A plain database of proteins alone is searched where it is, and one in gzip is unpacked.
    plain, packed = tmp_path / "plain.fasta", tmp_path / "packed.fasta.gz"
    plain.write_bytes((tmp_path / "searched").read_bytes())
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    replace(program, database=plain).search(alignment)
    assert search.calls[1].endswith(f"query.hmm {plain}")
    replace(program, database=packed).search(alignment)
    assert search.calls[2].endswith("proteins.fasta")
    assert (tmp_path / "searched").read_bytes() == plain.read_bytes()
    (tmp_path / "hmmsearch").write_text('#!/bin/sh\n: > "$4"\n')
    assert program.search(alignment) == b""  # no hits


def test_options_without_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="filter_f1 must be a positive number, got 0"):
        HmmsearchOptions(filter_f1=0.0)
    with pytest.raises(ValueError, match="e_value"):
        HmmsearchOptions(e_value=float("nan"))
    with pytest.raises(ValueError, match="cpus must be at least 1"):
        InProcessHmmsearch(tmp_path, OPTIONS, cpus=0)
