import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from pyhmmer.easel import TextSequence
from pyhmmer.plan7 import Background, Builder, Pipeline

from data_pipeline.io.errors import InputError
from data_pipeline.search import profile_search
from data_pipeline.search.fasta_chunks import FastaChunk, read_fasta_chunks
from data_pipeline.search.profile_search import AMINO, Hits, search_profiles
from tests.data_pipeline.search.families import random_protein, relative

THRESHOLDS = {"E": 1e-4, "domE": 10.0, "incE": 1e-12, "incdomE": 0.01, "F1": 0.02, "F2": 1e-3, "F3": 1e-5}


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> tuple[profile_search.ProteinProfile, Path]:
    rng = np.random.default_rng(4)
    ancestor = random_protein(rng, 80)
    proteins = [relative(rng, ancestor, identity) for identity in np.linspace(0.9, 0.1, 300)]
    database = tmp_path_factory.mktemp("family") / "database.fasta"
    database.write_text("".join(f">p{i}\n{protein}\n" for i, protein in enumerate(proteins)))
    sequence = TextSequence(name="query", sequence=ancestor).digitize(AMINO)
    return Builder(AMINO).build(sequence, Background(AMINO))[0], database


def in_single_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_search, "read_fasta_chunks", lambda path: read_fasta_chunks(path, 1))


def passed(hits: Hits) -> list[tuple[str, float, bool]]:
    return [(hit.name, hit.evalue, hit.included) for hit in hits if hit.reported]


def test_e_values_are_those_of_one_search_of_all_sequences(
    family: tuple[profile_search.ProteinProfile, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, database = family
    [whole] = search_profiles([profile], database, THRESHOLDS, cpus=1)
    in_single_records(monkeypatch)
    [merged] = search_profiles([profile], database, THRESHOLDS, cpus=2)
    assert passed(merged) == passed(whole)
    assert merged.searched_sequences == whole.searched_sequences == 300
    assert merged.Z == 300
    assert merged.domZ == whole.domZ
    included = [hit.included for hit in merged if hit.reported]
    assert any(included)
    assert not all(included)
    assert len(passed(merged)) < len(merged) <= 300  # chunks alone let more pass than all together


def test_few_chunks_are_waiting_and_few_files_kept(
    family: tuple[profile_search.ProteinProfile, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, database = family
    lock = threading.Lock()
    waiting, most, files = 0, 0, 0

    def counted(path: Path) -> Iterator[FastaChunk]:
        nonlocal waiting, most
        for chunk in read_fasta_chunks(path, 1):
            with lock:
                waiting += 1
                most = max(most, waiting)
            yield chunk

    original = profile_search._search_chunk

    def finished(profiles: Sequence[profile_search.ProteinProfile], *arguments: object) -> list[Hits]:
        nonlocal waiting, files
        hits = original(profiles, *arguments)  # type: ignore[arg-type]
        with lock:
            waiting -= 1
            files = max(files, len(list(tmp_path.rglob("*.fasta"))))
        return hits

    monkeypatch.setattr(profile_search, "read_fasta_chunks", counted)
    monkeypatch.setattr(profile_search, "_search_chunk", finished)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    search_profiles([profile], database, THRESHOLDS, cpus=2)
    assert most <= 8
    assert files <= 2
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_one_chunk_ends_the_search(
    family: tuple[profile_search.ProteinProfile, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, database = family
    in_single_records(monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def refuse(self: object, *_: object) -> None:
        raise ValueError("not today")

    refusing = type("Refusing", (Pipeline,), {"search_hmm": refuse})
    monkeypatch.setattr(profile_search, "Pipeline", refusing)
    with pytest.raises(InputError, match="line 1: HMMER cannot search the records starting here: not today"):
        search_profiles([profile], database, THRESHOLDS, cpus=2)
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_which_nothing_is_selected_is_refused(family: tuple[profile_search.ProteinProfile, Path]) -> None:
    profile, database = family
    with pytest.raises(InputError, match="has no sequences"):
        search_profiles([profile], database, THRESHOLDS, cpus=1, select=lambda chunk: FastaChunk(content=b"\n", line=1))


def test_hits_are_copied_few_times(family: tuple[profile_search.ProteinProfile, Path]) -> None:
    profile, database = family
    [hits] = search_profiles([profile], database, THRESHOLDS, cpus=1)
    merged = profile_search._MergedHits()
    for _ in range(21):
        merged.add(hits)
    assert [chunks for chunks, _ in merged._parts] == [16, 4, 1]
    assert merged.total().searched_sequences == 21 * 300
