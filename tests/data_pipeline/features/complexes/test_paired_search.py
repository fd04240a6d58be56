"""Paired rows are searched once, stored with each sequence, and never mixed with those of another search."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from data_pipeline.features.complexes.paired_search import paired_alignments, search_pairs_ahead
from data_pipeline.io.errors import SearchError, TooLargeError
from data_pipeline.search.plan import PairingStep
from data_pipeline.search.result_files import ResultFiles

CHAINS = ["MKV", "ACDE"]


@dataclass
class Pairing:
    """A search whose rows are of its last run alone."""

    rows: Sequence[bytes] = (b"", b"")
    runs: int = 0
    asked: list[list[str]] = field(default_factory=list)

    def identity(self) -> str:
        return "pairing"

    def search(self, sequences: Sequence[str]) -> Iterator[bytes]:
        self.runs += 1
        self.asked.append(list(sequences))
        for sequence, rows in zip(sequences, self.rows, strict=True):
            yield b">query\n%b\n>run%d\n%b\n%b" % (sequence.encode(), self.runs, b"-" * len(sequence), rows)


class Complex:
    """A complex of two sequences with a directory for the results of each."""

    def __init__(self, directory: Path) -> None:
        self.tool = Pairing()
        self.directories = [directory / "A", directory / "B"]
        self.files = [each / "paired_hits.a3m" for each in self.directories]
        for each in self.directories:
            each.mkdir()

    def pair(self, sequences: Sequence[str] = CHAINS) -> list[tuple[str, ...]]:
        step = PairingStep(result_file="paired_hits.a3m", tool=self.tool)
        return [each.names for each in paired_alignments(sequences, step, self.directories)]


@pytest.fixture
def pair(tmp_path: Path) -> Complex:
    return Complex(tmp_path)


def test_a_result_is_used_again(pair: Complex) -> None:
    assert pair.pair() == pair.pair() == [("query", "run1")] * 2
    assert pair.tool.asked == [CHAINS]
    assert [file.read_bytes().split(b"\n")[1].decode() for file in pair.files] == CHAINS


def test_another_partner_a_changed_or_a_missing_result_is_searched_for_again(pair: Complex) -> None:
    pair.pair()
    assert pair.pair(["MKV", "ACDF"]) == [("query", "run2")] * 2
    assert pair.pair() == [("query", "run3")] * 2
    pair.files[1].write_bytes(b">query\nACDE\n")
    assert pair.pair() == [("query", "run4")] * 2
    pair.files[0].unlink()
    assert pair.pair() == pair.pair() == [("query", "run5")] * 2


def test_a_run_that_is_killed_between_two_results_leaves_no_mixture(
    pair: Complex, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.pair()
    pair.files[0].unlink()
    save = ResultFiles.save

    def killed(self: ResultFiles, *arguments: object) -> object:
        if self.directory == pair.directories[1]:
            raise KeyboardInterrupt
        return save(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as context:
        context.setattr(ResultFiles, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            pair.pair()
    assert pair.pair() == [("query", "run3")] * 2


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([b">a\nMKI\n", b""], r"B/paired_hits\.a3m: 2 paired rows, but .*A/paired_hits\.a3m has 3; expected equal"),
        ([b">a\nMK\n", b">a\nACDE\n"], "the row has 2 columns"),
        ([b"", b" >a\nACDE\n"], "3 paired rows"),
    ],
)
def test_a_result_that_cannot_be_used_is_not_kept(pair: Complex, rows: Sequence[bytes], problem: str) -> None:
    pair.tool.rows = rows
    with pytest.raises(SearchError, match=f"the result of a search cannot be read and is not stored: .*{problem}"):
        pair.pair()
    assert not any(file.exists() for file in pair.files)
    pair.tool.rows = (b"", b"")
    assert pair.pair() == [("query", "run2")] * 2


class BatchedPairing(Pairing):
    """A search that takes many complexes at once; `AAA` fails it, and rows of `WWW` are no alignment."""

    def search_many(self, complexes: Sequence[Sequence[str]]) -> list[list[bytes]]:
        if ["AAA", "ACDE"] in complexes:
            raise SearchError("no luck")
        results = [list(self.search(sequences)) for sequences in complexes]
        return [[b"?"] * 2 if "WWW" in each else found for each, found in zip(complexes, results, strict=True)]


def test_complexes_are_searched_together_and_a_bad_one_stops_no_other(tmp_path: Path) -> None:
    step = PairingStep(result_file="paired_hits.a3m", tool=BatchedPairing())
    complexes = [CHAINS, ["WWW", "ACDE"], ["ACDE", "MKV"]]
    places = [[tmp_path / f"{number}{chain}" for chain in "AB"] for number in range(3)]
    search_pairs_ahead(list(zip(complexes, places, strict=True)), step)
    assert [(place[0] / "paired_hits.a3m").is_file() for place in places] == [True, False, True]
    asked = step.tool.asked  # type: ignore[attr-defined]
    assert asked == complexes
    assert len(paired_alignments(CHAINS, step, places[0])) == 2
    search_pairs_ahead([(CHAINS, places[0])], step)
    assert len(asked) == 3
    search_pairs_ahead([(["AAA", "ACDE"], places[1])], step)
    assert not (places[1][0] / "paired_hits.a3m").exists()
    search_pairs_ahead([(CHAINS, places[1])], PairingStep(result_file="paired_hits.a3m", tool=Pairing()))
    assert not (places[1][0] / "paired_hits.a3m").exists()


def test_rows_that_no_longer_fit_are_neither_searched_again_nor_stored(
    pair: Complex, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.pair()
    kept = [file.read_bytes() for file in pair.files]

    def too_large(*_: object, **__: object) -> None:
        raise TooLargeError("read fewer rows")

    monkeypatch.setattr("data_pipeline.features.complexes.paired_search.parse_a3m", too_large)
    with pytest.raises(TooLargeError, match="read fewer rows"):
        pair.pair()
    assert pair.tool.runs == 1
    with pytest.raises(TooLargeError, match="read fewer rows"):
        pair.pair(["MKV", "ACDF"])
    assert [file.read_bytes() for file in pair.files] == kept


def test_a_stored_result_that_is_no_alignment_is_searched_again(pair: Complex) -> None:
    """An earlier version stored whatever a server sent."""
    pair.pair()
    for directory, content in zip(pair.directories, (b">query\nMKV\n", b">query\nMKV\n"), strict=True):
        ResultFiles(directory=directory).save("paired_hits.a3m", "pairing", b"MKV:ACDE", content, bytes)
    assert pair.pair() == [("query", "run2")] * 2
