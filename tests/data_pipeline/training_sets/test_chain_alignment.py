"""An alignment on another version of the chain's sequence: columns move, nothing is invented."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import Alignment, parse_a3m
from data_pipeline.residues import RESTYPES
from data_pipeline.training_sets import chain_alignment
from data_pipeline.training_sets.chain_alignment import alignment_for_chain, query_columns

QUERY = "MKVLAWTRQEYHNDSPGCIFMKVLAWTRQEYHVVAGQLNPRRSTWYEEDKFCHIMGALTPQSNVKDE"


def rows(alignment: Alignment) -> list[str]:
    """Rows in a3m, deletions as so many 'x'."""
    return [
        "".join("x" * int(count) + chr(letter) for count, letter in zip(counts, letters, strict=True))
        for letters, counts in zip(alignment.letters, alignment.deletion_matrix, strict=True)
    ]


def alignment(*others: str) -> Alignment:
    others_text = "".join(f">r{index}\n{row}\n" for index, row in enumerate(others))
    return parse_a3m(f">r\n{QUERY}\n{others_text}".encode())


def test_the_chains_own_alignment_is_left_as_it_is() -> None:
    given = alignment("-" * len(QUERY))
    assert alignment_for_chain(given, QUERY, "x.a3m") is given


@pytest.mark.parametrize("rows_at_once", [chain_alignment._ROWS_AT_ONCE, 3, 1])
def test_a_domain_keeps_its_columns_and_rows_without_residues_go(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_alignment, "_ROWS_AT_ONCE", rows_at_once)
    other = "WWaaW---cL" + "A" * (len(QUERY) - 7)
    only_before = QUERY[:6] + "-" * (len(QUERY) - 6)
    found = alignment_for_chain(alignment(QUERY, only_before, other), QUERY[6:], "x.a3m")
    assert found.names == ("r", "r0", "r2")
    # What a row has before the first kept column are insertions there: W, W, a, a, W, c.
    assert rows(found) == [QUERY[6:], "xxxxxx" + QUERY[6:], "xxxxxxL" + "A" * (len(QUERY) - 7)]


def test_residues_that_the_query_lacks_are_gaps_and_those_that_the_chain_lacks_are_insertions() -> None:
    chain = "GS" + QUERY[:8] + QUERY[10:20] + "AA" + QUERY[20:]
    other = QUERY[:9] + "kk" + QUERY[9:]
    found = alignment_for_chain(alignment(other, QUERY[:8] + "--" + QUERY[10:]), chain, "x.a3m")
    assert rows(found)[0] == chain
    # Two columns and two insertions lie between: residue 9, two of its own, residue 10.
    assert rows(found)[1] == "--" + QUERY[:8] + "xxxx" + QUERY[10:20] + "--" + QUERY[20:]
    assert rows(found)[2] == "--" + QUERY[:8] + QUERY[10:20] + "--" + QUERY[20:]


def test_mutations_and_unknown_residues_keep_all_columns() -> None:
    chain = "X" + QUERY[1:5] + "G" + QUERY[6:]
    found = alignment_for_chain(alignment(QUERY), chain, "x.a3m")
    assert rows(found) == [chain, QUERY]


def test_another_protein_is_refused_with_its_identity() -> None:
    with pytest.raises(
        InputError, match=r"x.a3m: it was made for another sequence: \d+% of the chain's residues are aligned"
    ):
        alignment_for_chain(alignment(), QUERY[::-1], "x.a3m")
    with pytest.raises(InputError, match="50% of the chain's residues"):
        alignment_for_chain(alignment(), QUERY + "G" * len(QUERY), "x.a3m")


def test_sequences_too_long_to_align_are_refused_and_pieces_of_them_are_not() -> None:
    long = "".join(np.random.default_rng(0).choice(list(RESTYPES), 12_000))
    own = Alignment(
        names=("q",),
        letters=np.frombuffer(long.encode(), np.uint8)[None],
        deletion_matrix=np.zeros((1, len(long)), np.int32),
    )
    assert alignment_for_chain(own, long[50:-50], "x").query == long[50:-50]
    with pytest.raises(InputError, match="another sequence"):
        alignment_for_chain(own, "G" + long[50:-50], "x")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_residue_is_lost_between_the_first_and_last_kept_column(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    length, count = 60, 5
    query = "".join(rng.choice(list(RESTYPES), length))
    letters = rng.choice(np.frombuffer(b"ACDE-", np.uint8), (count, length))
    letters[0] = np.frombuffer(query.encode(), np.uint8)
    deletions = rng.poisson(0.2, (count, length)).astype(np.int32)
    deletions[0] = 0
    kept = np.sort(rng.choice(length, 56, replace=False))
    chain = "".join(query[index] for index in kept)
    given_alignment = Alignment(names=tuple("abcde"), letters=letters, deletion_matrix=deletions)
    columns = query_columns(query, chain)
    found = alignment_for_chain(given_alignment, chain, "x")
    taken = columns[columns >= 0]
    last = taken[-1] + 1
    before = (letters[1:, :last] != ord("-")).sum(1) + deletions[1:, :last].sum(1)
    after = (found.letters[1:] != ord("-")).sum(1) + found.deletion_matrix[1:].sum(1)
    assert np.array_equal(before, after)
    assert found.query == chain
