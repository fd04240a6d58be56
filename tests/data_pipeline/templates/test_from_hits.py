"""Every hit becomes the template that AlphaFold makes of it, or is in the result with its reason."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.parse.template_hit import TemplateHit
from data_pipeline.residues import GAP, HHBLITS_TO_OUR_AATYPE, RESTYPES
from data_pipeline.templates.filters import TemplateOptions
from data_pipeline.templates.from_hits import templates_from_hits
from data_pipeline.templates.result import RejectionReason
from data_pipeline.templates.structure_directory import StructureDirectory
from tests.data_pipeline.parse.hhr_files import read_hhr
from tests.data_pipeline.templates.structures import (
    ANY_DATE,
    BACKBONE,
    QUERY,
    RELEASED,
    ROWS,
    SEQUENCE,
    Shelf,
    good_hit,
    make_chain,
    make_hit,
    make_structure,
    moved,
    reason_of,
    write,
)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(make_structure(make_chain("A", SEQUENCE)))


def test_residues_stand_where_the_alignment_puts_them(shelf: Shelf) -> None:
    hit = make_hit("KTAYIA--KQRQ", "KT-YLAKQRELW", query_start=1, hit_start=3)
    chain = make_chain("A", "GSH" + "KTYLAKQRELW" + "GG")
    result = templates_from_hits(QUERY, [hit], Shelf(make_structure(chain)), TemplateOptions(min_align_ratio=0.0))
    features = result.features
    expected = {1: 3, 2: 4, 4: 5, 5: 6, 6: 7, 7: 10, 8: 11, 9: 12, 10: 13}
    for position in range(len(QUERY)):
        if position in expected:
            residue = expected[position]
            np.testing.assert_array_equal(
                features["template_all_atom_positions"][0, position], chain.atom_positions[residue]
            )
            assert features["template_aatype"][0, position] == chain.aatype[residue]
            assert features["template_all_atom_masks"][0, position].sum() == BACKBONE
        else:
            assert features["template_aatype"][0, position] == GAP
            assert not features["template_all_atom_masks"][0, position].any()
            assert not features["template_all_atom_positions"][0, position].any()
    assert features["template_domain_names"] == ("1abc_A",)
    np.testing.assert_array_equal(features["template_sum_probs"], [[10]])
    assert (result.used[0].rank, result.used[0].release_date, result.used[0].aligned) == (1, RELEASED, len(expected))
    assert result.used[0].note == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "PF00042.1 Globin"}, RejectionReason.NAME),
        ({"name": ""}, RejectionReason.NAME),
        ({"name": "../../x_A"}, RejectionReason.NAME),
        ({"name": "x" * 300 + "_A"}, RejectionReason.NAME),
        ({"name": "2abc_A"}, RejectionReason.NO_FILE),
        ({"aligned_columns": 3}, RejectionReason.COVERAGE),
        ({"query": QUERY[1:5]}, RejectionReason.INCONSISTENT),
        ({"indices_hit": np.arange(-3, 17)}, RejectionReason.INCONSISTENT),
        ({"indices_hit": np.arange(20) * 2}, RejectionReason.INCONSISTENT),
        ({"query": "-" * 20, "indices_query": np.full(20, -1)}, RejectionReason.INCONSISTENT),
        ({"query": "W" * 20}, RejectionReason.OTHER_TARGET),
        ({"query": "W" * 20, "indices_query": np.arange(10**6, 10**6 + 20)}, RejectionReason.OTHER_TARGET),
        ({"hit_sequence": "WWWWWWWWWWWWWWWWWWWW"}, RejectionReason.OTHER_SEQUENCE),
    ],
)
def test_hits_that_cannot_be_used_are_refused_for_a_reason(
    shelf: Shelf, changes: dict[str, object], reason: RejectionReason
) -> None:
    assert reason_of(good_hit(**changes), shelf) is reason


def test_residues_that_a_table_of_hits_lacks_come_from_the_chain(shelf: Shelf) -> None:
    """MMseqs2's table has X in their place."""
    plain, known = good_hit(), good_hit(hit_sequence="X" * 20)
    wanted, found = (templates_from_hits(QUERY, [hit], shelf, TemplateOptions()) for hit in (plain, known))
    assert found.used == wanted.used
    for name, value in wanted.features.items():
        np.testing.assert_array_equal(found.features[name], value)
    beyond = np.arange(30, 50)
    assert reason_of(good_hit(hit_sequence="X" * 20, indices_hit=beyond), shelf) is RejectionReason.OTHER_SEQUENCE
    assert reason_of(good_hit(hit_sequence="X" * 20, name="1abc_B"), shelf) is RejectionReason.NO_CHAIN
    own = Shelf(make_structure(make_chain("A", QUERY)))
    whole = good_hit(
        query=QUERY, hit_sequence="X" * 33, indices_query=np.arange(33), indices_hit=np.arange(33), aligned_columns=33
    )
    assert reason_of(whole, own) is RejectionReason.DUPLICATE


def test_withdrawn_entries_are_followed_to_their_successor(shelf: Shelf) -> None:
    shelf.obsolete = {"1old": "1mid", "1mid": "1abc", "1bad": None}
    result = templates_from_hits(QUERY, [good_hit(name="1OLD_A")], shelf, ANY_DATE)
    assert result.features["template_domain_names"] == ("1abc_A",)
    assert result.used[0].note == "successor of 1old"
    assert reason_of(good_hit(name="1BAD_A"), shelf) is RejectionReason.OBSOLETE


def test_target_cut_since_the_search_keeps_its_hits(shelf: Shelf) -> None:
    result = templates_from_hits(QUERY, [moved(good_hit(), query=5, hit_by=70)], shelf, ANY_DATE)
    expected = templates_from_hits(QUERY, [good_hit()], shelf, ANY_DATE)
    np.testing.assert_array_equal(
        result.features["template_all_atom_positions"], expected.features["template_all_atom_positions"]
    )


def test_unknown_residues_of_the_target_may_be_named_in_the_hit(shelf: Shelf) -> None:
    selenocysteine = QUERY[:5] + "U" + QUERY[6:]
    for letter in "CXU":
        row = ROWS[0][:4] + letter + ROWS[0][5:]
        assert templates_from_hits(selenocysteine, [good_hit(query=row)], shelf, ANY_DATE).used[0].aligned == 20


def test_hits_of_another_target_alone_are_wrong_input(shelf: Shelf) -> None:
    with pytest.raises(InputError, match="for another target: hit 1, 1abc_A: it is aligned to 'K' at residue 2"):
        templates_from_hits("A" * 40, [good_hit()], shelf, ANY_DATE)
    with pytest.raises(InputError, match="aligned to residues 2 to 21, but the target has 9"):
        templates_from_hits("A" * 9, [good_hit()], shelf, ANY_DATE)
    assert not templates_from_hits(QUERY, [], shelf, ANY_DATE).rejected


def test_hhsearch_hits_go_by_probability_and_hmmsearch_hits_by_place() -> None:
    source = Shelf(*(make_structure(make_chain("A", SEQUENCE, seed=seed), name=f"{seed}abc") for seed in range(4)))
    hits = [good_hit(name=f"{k}abc_A", index=k + 1, sum_probs=probs) for k, probs in enumerate((2.0, 9.0, 2.0, 5.0))]
    result = templates_from_hits(QUERY, hits, source, TemplateOptions(max_templates=3))
    assert result.features["template_domain_names"] == ("1abc_A", "3abc_A", "0abc_A")
    assert [rejection.reason for rejection in result.rejected] == [RejectionReason.ENOUGH]

    def as_hmmsearch(hit: TemplateHit) -> TemplateHit:
        return replace(hit, sum_probs=None)

    result = templates_from_hits(QUERY, [*map(as_hmmsearch, hits)], source, ANY_DATE)
    assert result.features["template_domain_names"] == ("0abc_A",)
    assert [rejection.reason for rejection in result.rejected] == [RejectionReason.REPEATED] * 3
    np.testing.assert_array_equal(result.features["template_sum_probs"], [[0]])


def test_source_of_real_files_is_read(tmp_path: Path) -> None:
    write(tmp_path, make_structure(make_chain("A", SEQUENCE)))
    result = templates_from_hits(
        QUERY, [good_hit()], StructureDirectory(tmp_path), TemplateOptions(latest_release=RELEASED)
    )
    assert result.used[0].name == "1abc_A"
    (tmp_path / "2abc.cif").write_text("data_x\nloop_\n")
    assert reason_of(good_hit(name="2abc_A"), StructureDirectory(tmp_path)) is RejectionReason.UNREADABLE


@st.composite
def alignments(draw: st.DrawFn) -> tuple[str, str, str, str, int, int]:
    """Target, chain, aligned rows of a stretch of each, and where the rows begin."""
    columns = draw(st.lists(st.sampled_from("mmmqh"), min_size=10, max_size=40))
    residues = st.text(RESTYPES, min_size=len(columns), max_size=len(columns))
    target, chain = draw(residues), draw(residues)
    query_row = "".join("-" if kind == "h" else letter for kind, letter in zip(columns, target, strict=True))
    hit_row = "".join("-" if kind == "q" else letter for kind, letter in zip(columns, chain, strict=True))
    ends = st.text(RESTYPES, max_size=5)
    query_end, hit_end = draw(ends), draw(ends)
    query = query_end + query_row.replace("-", "") + draw(ends)
    sequence = hit_end + hit_row.replace("-", "") + draw(ends)
    return query, sequence, query_row, hit_row, len(query_end), len(hit_end)


@settings(max_examples=200, deadline=None)
@given(case=alignments(), unobserved=st.sets(st.integers(0, 9)), others=st.permutations(range(3)))
def test_each_aligned_residue_is_placed_once_whatever_the_order_of_hits(
    case: tuple[str, str, str, str, int, int], unobserved: set[int], others: list[int]
) -> None:
    query, sequence, query_row, hit_row, query_start, hit_start = case
    hit = make_hit(query_row, hit_row, query_start=query_start, hit_start=hit_start)
    chain = make_chain("A", sequence, unobserved=[index for index in unobserved if index < len(sequence)])
    source = Shelf(make_structure(chain), make_structure(make_chain("A", sequence, seed=1), name="2abc"))
    options = TemplateOptions(min_residues=1, min_align_ratio=0.0, max_subsequence_ratio=1.0)
    hits = [hit, replace(hit, name="2abc_A", index=2), replace(hit, name="3abc_A", index=3)]
    result = templates_from_hits(query, hits, source, options)
    again = templates_from_hits(query, [hits[index] for index in others], source, options)
    names = [description.name for description in result.used]
    for index, name in enumerate(description.name for description in again.used):
        for field in ("template_aatype", "template_all_atom_positions", "template_all_atom_masks"):
            first, second = result.features[field], again.features[field]  # type: ignore[literal-required]
            np.testing.assert_array_equal(first[names.index(name)], second[index])
    if "1abc_A" not in names:
        return
    both = (hit.indices_query >= 0) & (hit.indices_hit >= 0)
    partner = dict(zip(hit.indices_query[both].tolist(), hit.indices_hit[both].tolist(), strict=True))
    own = names.index("1abc_A")
    for position in range(len(query)):
        mask = result.features["template_all_atom_masks"][own, position]
        atoms = result.features["template_all_atom_positions"][own, position]
        if position in partner:
            np.testing.assert_array_equal(mask, chain.atom_mask[partner[position]])
            np.testing.assert_array_equal(atoms, chain.atom_positions[partner[position]])
            assert result.features["template_aatype"][own, position] == chain.aatype[partner[position]]
        else:
            assert not mask.any()
            assert not atoms.any()
            assert result.features["template_aatype"][own, position] == GAP


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("ACX-w*"), st.sampled_from("ACX-w*")), max_size=12),
    indices=st.lists(st.integers(-3, 2**40), min_size=12, max_size=12),
    name=st.sampled_from(["1abc_A", "1abc_Z", "", "x"]),
)
def test_any_hit_is_used_or_refused(rows: list[tuple[str, str]], indices: list[int], name: str) -> None:
    query_row, hit_row = "".join(row[0] for row in rows), "".join(row[1] for row in rows)
    hit = replace(make_hit(query_row, hit_row, name=name), indices_hit=np.array(indices[: len(rows)], np.int64))
    source = Shelf(make_structure(make_chain("A", "ACXACXACCCA")))
    options = TemplateOptions(min_residues=1, min_align_ratio=0.0)
    for candidate in (hit, make_hit(query_row, hit_row, name=name)):
        try:
            result = templates_from_hits("AACXCAXCA", [candidate], source, options)
        except InputError as error:
            assert "another target" in str(error)
        else:
            assert len(result.used) + len(result.rejected) == 1


@pytest.mark.parity
def test_real_hits_give_alphafolds_features(reference: Path, real_data: Path) -> None:
    query = "MAAHKGAEHHHKAAEHHEQAAKHHHAAAEHHEKGEHEQAAHHADTAYAHHKHAEEHAAQAAKHDAEHHAPKPH"
    hits = read_hhr(real_data / "templates" / "openfold__test_data__pdb70_hits.hhr.gz")
    options = TemplateOptions(latest_release=date(2100, 1, 1))
    result = templates_from_hits(query, hits, StructureDirectory(real_data / "mmcif"), options)
    features = result.features
    # the rest of AlphaFold's seven are entries whose files are not there
    assert features["template_domain_names"] == ("3u8v_A", "4zey_A", "1psm_A", "3zee_A", "4i6p_A", "2q2k_A")
    assert {rejection.reason for rejection in result.rejected} == {RejectionReason.NO_FILE}
    with np.load(reference / "pipeline" / "dm200_templates.npz") as alphafold:
        own = [alphafold["template_domain_names"].tolist().index(name) for name in features["template_domain_names"]]
        for name in ("template_all_atom_positions", "template_all_atom_masks", "template_sum_probs"):
            np.testing.assert_array_equal(features[name], alphafold[name][own])  # type: ignore[literal-required]
        aatype = HHBLITS_TO_OUR_AATYPE[alphafold["template_aatype"][own].argmax(axis=-1)]
        np.testing.assert_array_equal(features["template_aatype"], aatype)
        assert [str(used.release_date) for used in result.used] == alphafold["template_release_date"][own].tolist()
