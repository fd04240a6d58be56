"""UniProt accessions and PDB ids are fetched once, and every way in which that can fail is one sentence."""

from dataclasses import fields
from pathlib import Path

import pytest

from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.target_files import read_targets
from data_pipeline.io.errors import InputError
from data_pipeline.search import entries
from data_pipeline.search.entries import EntryServers, fetch_sequence, fetch_structure, is_entry
from tests.support.entry_server import HBA, HBB, MODEL, serving_entries


def servers(address: str) -> EntryServers:
    return EntryServers(**{each.name: address for each in fields(EntryServers)})


@pytest.mark.parametrize("word", ["P69905", "p69905", "A0A024R1R8", "P69905-2", "4HHB", "4hhb", "4hhb_A", "1ubq_AA1"])
def test_ids_are_recognised(word: str) -> None:
    assert is_entry(word)


@pytest.mark.parametrize(
    "word", ["MKTAYIAKQR", "P6990", "0HHB", "4HHB_", "4HHB_ABCDE", "4HHB.fasta", "a/4HHB", "P69905_A", ""]
)
def test_other_words_are_no_ids(word: str) -> None:
    assert not is_entry(word)


def test_a_sequence_is_fetched_once_and_named_after_its_accession(tmp_path: Path) -> None:
    said: list[str] = []
    with serving_entries() as (address, paths):
        path = fetch_sequence("p69905", tmp_path / "cache", servers(address), said.append)
    # Without the server, from the cache.
    assert fetch_sequence("P69905", tmp_path / "cache", servers(address), said.append) == path
    assert paths == ["/uniprotkb/P69905.fasta"]
    assert said == [f"P69905: {address}/uniprotkb/P69905.fasta"]
    assert path.read_text() == f">P69905 Hemoglobin subunit alpha OS=Homo sapiens OX=9606\n{HBA}\n"


def test_an_entry_of_the_pdb_is_a_complex_of_its_proteins(tmp_path: Path) -> None:
    with serving_entries() as (address, _):
        (whole,) = read_targets([fetch_sequence("4hhb", tmp_path, servers(address), print)])
        (chain,) = read_targets([fetch_sequence("4HHB_X", tmp_path, servers(address), print)])
        with pytest.raises(InputError, match="4HHB: the entry has no protein chain E; its chains are A, C, X, D"):
            fetch_sequence("4HHB_E", tmp_path, servers(address), print)
    assert isinstance(whole, ComplexInput)
    assert (whole.name, whole.target.chain_ids) == ("4HHB", ("A", "C", "X", "D"))
    assert whole.target.sequences == (HBA, HBA, HBB, HBB)
    assert (chain.name, chain.sequence) == ("4HHB_X", HBB)
    assert (tmp_path / "4HHB_X.fasta").read_text().startswith(">4HHB_X HEMOGLOBIN (BETA CHAIN)\n")


def test_structures_come_from_the_pdb_and_from_the_newest_version_of_alphafold_db(tmp_path: Path) -> None:
    with serving_entries() as (address, paths):
        assert fetch_structure("4hhb", tmp_path, servers(address), print).read_bytes().startswith(b"data_4HHB")
        assert fetch_structure("P69905", tmp_path, servers(address), print).read_bytes() == MODEL
    # The path is the answer's, the server the configured one.
    assert paths[1:] == ["/api/prediction/P69905", "/files/AF-P69905-F1-model_v6.cif"]
    assert fetch_structure("P69905", tmp_path, servers(address), print).read_bytes() == MODEL


def test_a_busy_server_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(entries.time, "sleep", waits.append)
    with serving_entries(failures=2) as (address, paths):
        fetch_sequence("P69905", tmp_path, servers(address), print)
    assert (len(paths), len(waits)) == (3, 2)
    with (
        serving_entries(failures=9) as (address, paths),
        pytest.raises(InputError, match=r"1ABC: cannot be fetched from 127.0.0.1:[0-9]+ \(status 503 "),
    ):
        fetch_sequence("1ABC", tmp_path, servers(address), print)
    assert len(paths) == 3


@pytest.mark.parametrize(
    ("fetch", "word", "problem"),
    [
        (fetch_sequence, "P12345", "P12345: 127.0.0.1:[0-9]+ has no such entry"),
        (fetch_sequence, "Q00000", "Q00000: the server has no sequence for it; the entry may be deleted or merged"),
        (fetch_structure, "Q00000", "Q00000: the answer of http://127.0.0.1:[0-9]+ has no structure"),
        (fetch_structure, "1ABC", "1ABC: the server did not send an mmCIF file"),
        (fetch_structure, "4HHB_A", "4HHB_A: expected an entry without a chain; pass 4HHB"),
    ],
)
def test_what_a_server_lacks_is_one_sentence_and_not_cached(
    fetch: object, word: str, problem: str, tmp_path: Path
) -> None:
    assert callable(fetch)
    with serving_entries() as (address, _), pytest.raises(InputError, match=problem):
        fetch(word, tmp_path, servers(address), print)
    assert not [*tmp_path.iterdir()]


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries.time, "sleep", lambda _: None)
    problem = "P69905: cannot be fetched from 127.0.0.1:1 .*; without a network, download the file elsewhere and pass"
    with pytest.raises(InputError, match=problem):
        fetch_sequence("P69905", tmp_path, servers("http://127.0.0.1:1"), print)
