"""A server's pairs: equally many rows of every sequence of a complex, or one sentence."""

import io
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import SearchError, ServerUnavailableError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.search import server_archive
from data_pipeline.search.alignment_server import AlignmentServer, ServerOptions
from data_pipeline.search.mmseqs_server import ServerPairing, ServerSearch
from data_pipeline.search.server_archive import PAIRED_FILE, DamagedArchiveError, ServerAlignments
from data_pipeline.search.tool import PairingSearch
from tests.data_pipeline.search.mock_server import MockServer, archive, failing, mock_server, paired_block, state
from tests.data_pipeline.search.test_mmseqs_server import Time

CHAINS = ["MKVLA", "ACDXY", "GHIKL"]
NUMBERED = {101: "MKV", 102: "ACDE"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockServer]:
    monkeypatch.setenv("NO_PROXY", "*")
    with mock_server() as running:
        yield running


def known(server: MockServer, time: Time | None = None, **given: object) -> AlignmentServer:
    time = time or Time()
    options = ServerOptions(url=server.url, **given)  # type: ignore[arg-type]
    return AlignmentServer(options, clock=time.clock, sleep=time.sleep, rng=np.random.default_rng(0))


def read(content: bytes, sequences: Mapping[int, str] = NUMBERED, blocks: int = 1) -> list[bytes]:
    """The a3m of each sequence in a `pair.a3m` with this content."""
    packed = io.BytesIO(archive({"pair.sh": b"#!/bin/bash", PAIRED_FILE: content}))
    with ServerAlignments(packed, [PAIRED_FILE], sequences, blocks=blocks) as found:
        return list(found.paired_a3ms())


@pytest.mark.parametrize("strategy", ["greedy", "complete"])
@pytest.mark.parametrize("environmental", [False, True])
def test_every_sequence_gets_as_many_rows(server: MockServer, strategy: str, *, environmental: bool) -> None:
    pairing = ServerPairing(known(server, pair_strategy=strategy, pair_environmental=environmental))
    found = [parse_a3m(content, sequence) for content, sequence in zip(pairing.search(CHAINS), CHAINS, strict=True)]
    mode = f"pair{strategy}{'-env' if environmental else ''}"
    assert server.queries == [{"q": ">101\nMKVLA\n>102\nACDXY\n>103\nGHIKL\n", "mode": mode}]
    assert server.endpoints == ["/ticket/pair"]
    assert isinstance(pairing, PairingSearch)
    assert pairing.identity() == f"mmseqs2 server {server.url} mode {mode}"
    for number, alignment in enumerate(found, start=101):
        rows = ["query", f"P{number}_0", f"P{number}_1", *([f"Q{number}_0"] if environmental else [])]
        assert alignment.names == tuple(rows)


def test_rows_of_gaps_stand_for_a_sequence_without_part_in_a_pair() -> None:
    content = b">101\nMKV\n>DUMMY\n---\n>x\nMKI\n\0>102\nACDE\n>y\nACD-\n>DUMMY\n----\n\0"
    first, second = read(content)
    assert first == b">query\nMKV\n>DUMMY\n---\n>x\nMKI\n"
    assert second == b">query\nACDE\n>y\nACD-\n>DUMMY\n----\n"


def test_a_server_without_environmental_pairs_may_send_one_block() -> None:
    assert [each.count(b">") for each in read(paired_block({"101": "MKV", "102": "ACDE"}, "P", 3), blocks=2)] == [4, 4]


ROW = {101: b">a\nMKI\n", 102: b">b\nACDD\n"}
QUERY = {number: f">{number}\n{sequence}\n".encode() for number, sequence in NUMBERED.items()}


@pytest.mark.parametrize(
    ("content", "blocks", "problem"),
    [
        (
            QUERY[101] + ROW[101] * 2 + b"\0" + QUERY[102] + ROW[102],
            1,
            "pair.a3m of the server's answer has 2 rows for sequence 101 but 1 for sequence 102; "
            "paired rows need equal numbers",
        ),
        (QUERY[101] + b"\0" + QUERY[102] + ROW[102], 1, "has 0 rows for sequence 101 but 1 for sequence 102"),
        (
            b"\0".join([QUERY[101] + ROW[101], QUERY[102] + ROW[102], QUERY[101] + ROW[101] * 3]),
            2,
            r"has 1\+3 rows for sequence 101 but 1 for sequence 102",
        ),
        (
            b"\0".join([QUERY[101] + ROW[101], QUERY[102], QUERY[101], QUERY[102] + ROW[102]]),
            2,
            r"has 1\+0 rows for sequence 101 but 0\+1 for sequence 102",
        ),
        (QUERY[101], 1, "pair.a3m of the server's answer lacks 1 of 2 sequences"),
        (b"", 1, "lacks 2 of 2 sequences"),
        (QUERY[101] + b"\0" + QUERY[102] + b"\0" + QUERY[101], 1, "is for '>101', which was not requested, or occurs"),
        (b"\0".join([QUERY[101], QUERY[102]] * 3), 2, "is for '>101', which was not requested, or occurs too often"),
        (QUERY[101] + b"\0>102\nMKV\n", 1, r"is for another sequence than requested \('>102'\)"),
        (QUERY[101] + b"\0" + QUERY[102] + b"\0>103\nMKV\n", 1, "is for '>103', which was not requested"),
    ],
)
def test_rows_that_do_not_belong_together_are_refused(content: bytes, blocks: int, problem: str) -> None:
    with pytest.raises(SearchError, match=problem):
        read(content, blocks=blocks)


def test_what_is_cut_off_one_sequence_is_cut_off_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_archive, "MAX_TEXT_BYTES", 60)
    long = b">y\nACDEaaaaaaaaaaaa\n"
    first, second = read(QUERY[101] + b">x\nMKI\n" * 5 + b"\0" + QUERY[102] + long * 5 + b"\0")
    assert (first.count(b">x"), second.count(b">y")) == (2, 2)
    monkeypatch.setattr(server_archive, "MAX_TEXT_BYTES", 2**25)
    monkeypatch.setattr(server_archive, "MAX_ROWS", 3)
    assert [each.count(b">") for each in read(paired_block({"101": "MKV", "102": "ACDE"}, "P", 5))] == [4, 4]


def test_faults_that_pass_are_waited_out_and_a_dead_server_is_dead_for_all_searches(server: MockServer) -> None:
    server.answers["submit"] = [failing(429), *server.answers["submit"]]
    server.answers["state"] = [state("RUNNING"), *server.answers["state"]]
    time = Time()
    assert len(list(ServerPairing(known(server, time)).search(CHAINS))) == 3
    assert len(time.pauses) == 2
    server.answers["submit"] = [failing(500)]
    dead = known(server)
    with pytest.raises(ServerUnavailableError, match="it answered 500"):
        list(ServerPairing(dead).search(CHAINS))
    asked = len(server.requests)
    with pytest.raises(ServerUnavailableError, match="it answered 500"):
        ServerSearch(dead).search("MKVLA")
    assert len(server.requests) == asked


@pytest.mark.parametrize("sequences", [[], ["MKV"], ["MKV", "MKV"], ["MKV", "ACD", "MKV"], ["MKV", "A>1\nC"]])
def test_only_different_sequences_are_paired(server: MockServer, sequences: Sequence[str]) -> None:
    with pytest.raises(ValueError, match=r"two or more different sequences|upper-case letters"):
        list(ServerPairing(known(server)).search(sequences))
    assert server.requests == []


GOOD = paired_block({"101": "MKV", "102": "ACDE"}, "P", 2) + paired_block({"101": "MKV", "102": "ACDE"}, "Q", 1)
PIECES = [*QUERY.values(), *ROW.values(), b"\0", b"\n", b">", b"\r\n", b">103\nMKV\n", b">x\n", b"--", b"mk", b" "]


@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.sampled_from(PIECES), st.integers(0, 9)), max_size=3))
def test_changed_pairs_are_equally_many_or_refused(changes: list[tuple[int, bytes, int]]) -> None:
    content = GOOD
    for place, put, lost in changes:
        content = content[:place] + put + content[place + lost :]
    check(content)


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join))
def test_any_text_gives_as_many_rows_for_each_or_an_own_error(content: bytes) -> None:
    check(content)


def check(content: bytes) -> None:
    try:
        found = read(content, blocks=2)
    except (SearchError, DamagedArchiveError):
        return
    assert [each.split(b"\n")[1].decode() for each in found] == list(NUMBERED.values())
    assert len({each.count(b"\n>") for each in found}) == 1
