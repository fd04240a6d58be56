"""Two versions of one sequence find each other; related ones share a stretch, unrelated ones none worth having."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.residues import AMBIGUOUS_LETTERS, RESTYPES
from data_pipeline.templates.pairwise_alignment import align
from data_pipeline.templates.result import RejectionReason, UnusableHitError

SEQUENCE = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFEVV"


def test_missing_loops_and_tags_leave_the_rest_in_place() -> None:
    observed = SEQUENCE[4:20] + SEQUENCE[27:60]
    alignment = align("global", observed, "GSHHHHHH" + SEQUENCE)
    np.testing.assert_array_equal(alignment.partner, 8 + np.r_[4:20, 27:60])
    assert alignment.identities == len(observed)


def test_unknown_residues_align_and_equal_nothing() -> None:
    alignment = align("global", SEQUENCE[:30] + "XU" + SEQUENCE[32:], SEQUENCE[:30] + "XU" + SEQUENCE[32:])
    np.testing.assert_array_equal(alignment.partner, np.arange(len(SEQUENCE)))
    assert alignment.identities == len(SEQUENCE) - 2


def test_local_alignment_leaves_out_what_is_unrelated() -> None:
    rng = np.random.default_rng(0)
    tail = "".join(rng.choice(list(RESTYPES), 200))
    alignment = align("local", SEQUENCE, tail + SEQUENCE[10:50])
    np.testing.assert_array_equal(alignment.partner[10:50], 200 + np.arange(40))
    assert (alignment.partner >= 0).sum() < 45
    assert alignment.e_value(240) < 1e-10


def test_chance_alignments_have_e_values_about_one() -> None:
    rng = np.random.default_rng(0)
    values = []
    for _ in range(40):
        first, second = ("".join(rng.choice(list(RESTYPES), 150)) for _ in range(2))
        values.append(align("local", first, second).e_value(150))
    assert 0.05 < np.median(values) < 5
    assert min(values) > 1e-3


def test_sequences_that_share_nothing_are_not_aligned() -> None:
    alignment = align("local", "WWWW", "GGGG")
    assert (alignment.partner == -1).all()
    assert alignment.identities == 0


def test_sequences_too_long_for_memory_are_refused() -> None:
    with pytest.raises(UnusableHitError, match="20,000 and 20,000 residues are too long") as error:
        align("global", "A" * 20_000, "A" * 20_000)
    assert error.value.reason is RejectionReason.TOO_LONG


sequences = st.text(RESTYPES + AMBIGUOUS_LETTERS, min_size=1, max_size=30)


@settings(max_examples=200, deadline=None)
@given(first=sequences, second=sequences, local=st.booleans())
def test_partners_rise_and_none_is_given_twice(first: str, second: str, local: bool) -> None:
    alignment = align("local" if local else "global", first, second)
    partners = alignment.partner[alignment.partner >= 0]
    assert alignment.partner.shape == (len(first),)
    assert (np.diff(partners) > 0).all()
    assert (partners < len(second)).all()
    assert 0 <= alignment.identities <= len(partners)


@settings(max_examples=100, deadline=None)
@given(sequence=st.text(RESTYPES, min_size=1, max_size=40), before=st.integers(0, 10), after=st.integers(0, 10))
def test_pieces_are_found_whole(sequence: str, before: int, after: int) -> None:
    alignment = align("global", sequence, "W" * before + sequence + "W" * after)
    assert alignment.identities == len(sequence)
