"""Hits that cover too little, are the target itself, are too young or have no atoms are refused."""

from datetime import date

import pytest

from data_pipeline.templates.filters import TemplateOptions, check_hit
from data_pipeline.templates.from_hits import templates_from_hits
from data_pipeline.templates.result import RejectionReason, UnusableHitError
from tests.data_pipeline.templates.structures import (
    ANY_DATE,
    QUERY,
    RELEASED,
    SEQUENCE,
    Shelf,
    good_hit,
    make_chain,
    make_hit,
    make_structure,
    reason_of,
)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(make_structure(make_chain("A", SEQUENCE)))


def test_columns_of_exactly_a_tenth_are_too_few() -> None:
    query = QUERY[:30]
    hit = make_hit(query[:3], "KTA")
    source = Shelf(make_structure(make_chain("A", "KTAYLAKQREL")))
    options = TemplateOptions(min_residues=1)
    assert templates_from_hits(query, [hit], source, options).rejected[0].reason is RejectionReason.COVERAGE
    assert templates_from_hits(query[:29], [hit], source, options).used


def test_pieces_of_the_target_are_refused_if_they_are_nearly_all_of_it(shelf: Shelf) -> None:
    source = Shelf(make_structure(make_chain("A", QUERY)))
    assert reason_of(make_hit(QUERY, QUERY), source) is RejectionReason.DUPLICATE
    # 31 of 33 residues are 94 %
    assert templates_from_hits(QUERY, [make_hit(QUERY[1:32], QUERY[1:32], query_start=1)], source, ANY_DATE).used
    assert reason_of(make_hit(QUERY[:32], QUERY[:32]), source) is RejectionReason.DUPLICATE


@pytest.mark.parametrize(
    ("letters", "refused"),
    [
        (QUERY[:20], True),
        (QUERY[:19], False),  # exactly 95 %
        (QUERY[1:20], False),
        ("W" + QUERY[1:20], False),  # as long, but no piece of the target
        (QUERY[:10] + QUERY[11:20], False),
    ],
)
def test_only_a_piece_of_the_target_longer_than_95_percent_of_it_is_a_duplicate(letters: str, refused: bool) -> None:
    hit, query = make_hit(QUERY[:20], QUERY[:20]), QUERY[:20]
    if not refused:
        check_hit(query, hit, letters, TemplateOptions())
        return
    with pytest.raises(UnusableHitError) as raised:
        check_hit(query, hit, letters, TemplateOptions())
    assert raised.value.reason is RejectionReason.DUPLICATE


def test_nine_residues_are_too_short(shelf: Shelf) -> None:
    assert reason_of(make_hit(QUERY[1:10], SEQUENCE[3:12], query_start=1, hit_start=3), shelf) is RejectionReason.SHORT
    hit = make_hit(QUERY[1:11], SEQUENCE[3:13], query_start=1, hit_start=3)
    assert templates_from_hits(QUERY, [hit], shelf, ANY_DATE).used


def test_dates_come_from_the_table_before_the_file_and_from_both(shelf: Shelf) -> None:
    day_before, same_day = TemplateOptions(latest_release=date(2001, 2, 2)), TemplateOptions(latest_release=RELEASED)
    assert reason_of(good_hit(), shelf, day_before) is RejectionReason.RELEASED_LATER
    assert templates_from_hits(QUERY, [good_hit()], shelf, same_day).used
    undated = Shelf(make_structure(make_chain("A", SEQUENCE), release_date=None))
    assert reason_of(good_hit(), undated, same_day) is RejectionReason.DATE_UNKNOWN
    assert templates_from_hits(QUERY, [good_hit()], undated, ANY_DATE).used[0].release_date is None
    undated.release_dates = {"1abc": RELEASED}
    assert templates_from_hits(QUERY, [good_hit()], undated, same_day).used[0].release_date == RELEASED
    assert reason_of(good_hit(), undated, day_before) is RejectionReason.RELEASED_LATER
    empty = Shelf()
    empty.release_dates = {"1abc": RELEASED}
    assert reason_of(good_hit(), empty, day_before) is RejectionReason.RELEASED_LATER


def test_hits_without_atoms_are_refused() -> None:
    chain = make_chain("A", SEQUENCE, unobserved=range(3, 23))
    assert reason_of(good_hit(), Shelf(make_structure(chain))) is RejectionReason.NO_ATOMS
    one = make_chain("A", SEQUENCE, unobserved=[*range(3, 12), *range(13, 23)])
    assert templates_from_hits(QUERY, [good_hit()], Shelf(make_structure(one)), ANY_DATE).used[0].aligned == 1


def test_chains_with_impossible_distances_are_refused() -> None:
    chain = make_chain("A", SEQUENCE)
    chain.atom_positions[30:] += 160
    assert reason_of(good_hit(), Shelf(make_structure(chain))) is RejectionReason.BROKEN_CHAIN
    chain.atom_mask[30] = 0  # a gap may be of any width
    chain.atom_positions[:] += 500
    chain.atom_positions[30] = 0
    assert templates_from_hits(QUERY, [good_hit()], Shelf(make_structure(chain)), ANY_DATE).used


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="max_templates must be at least 0"):
        TemplateOptions(max_templates=-1)
    with pytest.raises(ValueError, match="min_align_ratio must be within"):
        TemplateOptions(min_align_ratio=1.1)
