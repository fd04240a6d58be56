"""The user's own structures are used where they fit the target, and told about where they do not."""

import os
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.residues import GAP
from data_pipeline.templates.from_files import UserTemplateOptions, templates_from_files, unused_files
from data_pipeline.templates.result import RejectionReason, TemplateResult
from tests.data_pipeline.templates.structures import QUERY, RELEASED, make_chain, make_structure, write

OPTIONS = UserTemplateOptions()
UNRELATED = "GSGWPDNCGTYMPDNWCGHTGGSPNDWYCMTPGGNDHW"


def related(changed: int) -> str:
    """The target with its first residues changed."""
    return QUERY[:changed].translate(str.maketrans("MKTAYIQR", "LRSSFVEK")) + QUERY[changed:]


def reasons(result: TemplateResult) -> dict[str, RejectionReason]:
    assert all(rejection.sentence.startswith(rejection.name) for rejection in result.rejected)
    return {rejection.name: rejection.reason for rejection in result.rejected}


def test_chains_are_placed_by_alignment(tmp_path: Path) -> None:
    chain = make_chain("B", "GSH" + QUERY[:12] + QUERY[15:] + "GG", unobserved=[5])
    write(tmp_path, make_structure(chain))
    result = templates_from_files(QUERY, tmp_path, OPTIONS)
    features = result.features
    residue = np.r_[3:15, [-1] * 3, 15:33]
    np.testing.assert_allclose(
        features["template_all_atom_positions"][0],
        np.where((residue >= 0)[:, None, None], chain.atom_positions[residue], 0),
        atol=1e-3,
    )
    np.testing.assert_array_equal(features["template_aatype"][0] == GAP, residue < 0)
    assert not features["template_all_atom_masks"][0, 2].any()  # in the sequence, but not observed
    assert features["template_domain_names"] == ("1abc_B",)
    used = result.used[0]
    assert (used.rank, used.release_date, used.aligned, used.identity) == (1, RELEASED, 29, 1.0)
    assert used.note == ""


def test_best_chains_come_first_and_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    names = []
    for changed, name in ((8, "b"), (2, "c"), (8, "a"), (0, "d")):
        names.append(write(tmp_path, make_structure(make_chain("A", related(changed) + "GG")), f"{name}.pdb"))
    expected = ("d_A", "c_A", "a_A", "b_A")
    result = templates_from_files(QUERY, tmp_path, OPTIONS)
    assert result.features["template_domain_names"] == expected
    assert [used.rank for used in result.used] == [1, 2, 3, 4]
    few = templates_from_files(QUERY, tmp_path, replace(OPTIONS, max_templates=2))
    assert few.features["template_domain_names"] == expected[:2]
    assert reasons(few) == {"a_A": RejectionReason.ENOUGH, "b_A": RejectionReason.ENOUGH}
    twice = templates_from_files(QUERY, [tmp_path, names[3]], OPTIONS)
    assert twice.features["template_domain_names"] == expected
    named = templates_from_files(QUERY, names[1], OPTIONS)
    assert named.features["template_domain_names"] == ("c_A",)


def test_partners_and_copies_in_the_same_file_are_told(tmp_path: Path) -> None:
    copies = [make_chain("A", QUERY, unobserved=[0]), make_chain("B", QUERY), make_chain("C", UNRELATED)]
    write(tmp_path, make_structure(*copies, make_chain("D", "MKT")))
    result = templates_from_files(QUERY, tmp_path, OPTIONS)
    assert result.features["template_domain_names"] == ("1abc_B",)
    told = reasons(result)
    assert told.pop("1abc_D")
    assert told == {"1abc_A": RejectionReason.REPEATED, "1abc_C": RejectionReason.UNRELATED}
    assert "chain B of the file" in result.rejected[0].sentence


def test_short_and_small_stretches_are_refused(tmp_path: Path) -> None:
    write(tmp_path, make_structure(make_chain("A", "WWCWHYWWC")))
    query = "WWCWHYWWC" + QUERY
    assert reasons(templates_from_files(query, tmp_path, OPTIONS)) == {"1abc_A": RejectionReason.SHORT}
    write(tmp_path, make_structure(make_chain("A", QUERY)))
    assert reasons(templates_from_files(QUERY + "GS" * 200, tmp_path, OPTIONS)) == {"1abc_A": RejectionReason.COVERAGE}


def test_chains_without_atoms_where_aligned_are_refused(tmp_path: Path) -> None:
    chain = make_chain("A", QUERY + UNRELATED, unobserved=range(len(QUERY)))
    write(tmp_path, make_structure(chain))
    assert reasons(templates_from_files(QUERY, tmp_path, OPTIONS)) == {"1abc_A": RejectionReason.NO_ATOMS}


def test_doubtful_identity_is_used_with_a_word(tmp_path: Path, real_data: Path) -> None:
    # leghaemoglobin-like 1it2 on human haemoglobin's alpha chain: one fold, a quarter of the residues
    query = (
        "VLSPADKTNVKAAWGKVGAHAGEYGAEALERMFLSFPTTKTYFPHFDLSHGSAQVKGHGKKVADALTNAVAHVDDMPNALSALSDLHAHKLRVDPVNFKLLS"
        "HCLLVTLAAHLPAEFTPAVHASLDKFLASVSTVLTSKYR"
    )
    path = real_data / "train_mmcif" / "3g46_A.cif.gz"
    if not path.is_file():
        pytest.skip("needs train_mmcif/3g46_A.cif.gz")
    result = templates_from_files(query, path, replace(OPTIONS, max_e_value=1.0))
    assert result.used[0].identity < 0.3
    assert ("may be wrong" in result.used[0].note) == (result.used[0].identity < 0.25)


def test_doubt_is_told_below_a_quarter_of_identity(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    similar = dict(zip("MKTAYIQRSVFHLEDGN", "LRSSFVEKTIYNMDEAS", strict=True))
    query = "".join(rng.choice(list(similar), 200))
    kept = rng.random(200) < 0.2
    sequence = "".join(letter if keep else similar[letter] for letter, keep in zip(query, kept, strict=True))
    write(tmp_path, make_structure(make_chain("A", sequence)))
    result = templates_from_files(query, tmp_path, OPTIONS)
    assert 0.1 < result.used[0].identity < 0.25
    assert "the alignment may be wrong" in result.used[0].note


def test_dates_are_asked_only_on_demand(tmp_path: Path) -> None:
    write(tmp_path, make_structure(make_chain("A", QUERY)))
    write(tmp_path, make_structure(make_chain("A", QUERY), release_date=None), "undated.pdb")
    assert len(templates_from_files(QUERY, tmp_path, OPTIONS).used) == 2
    earlier = replace(OPTIONS, latest_release=date(2001, 2, 2))
    told = reasons(templates_from_files(QUERY, tmp_path, earlier))
    assert told == {"1abc_A": RejectionReason.RELEASED_LATER, "undated_A": RejectionReason.DATE_UNKNOWN}


def test_other_files_are_told_and_never_read(tmp_path: Path) -> None:
    write(tmp_path, make_structure(make_chain("A", QUERY)))
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "more").mkdir()
    told = reasons(templates_from_files(QUERY, tmp_path, OPTIONS))
    assert told == {"notes.txt": RejectionReason.NOT_A_STRUCTURE, "more": RejectionReason.NOT_A_STRUCTURE}


def test_nothing_to_read_and_unreadable_files_are_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no structure files for templates"):
        templates_from_files(QUERY, tmp_path, OPTIONS)
    with pytest.raises(InputError, match="no structure files for templates"):
        templates_from_files(QUERY, [], OPTIONS)
    with pytest.raises(InputError, match=r"gone\.pdb: cannot be read"):
        templates_from_files(QUERY, tmp_path / "gone.pdb", OPTIONS)
    with pytest.raises(InputError, match="cannot be read"):
        templates_from_files(QUERY, "a\0b", OPTIONS)
    (tmp_path / "bad.cif").write_text("nothing")
    with pytest.raises(InputError, match=r"bad\.cif"):
        templates_from_files(QUERY, tmp_path, OPTIONS)


def test_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, make_structure(make_chain("A", QUERY, seed=number)), f"{number}.pdb")
    first, second = (templates_from_files(QUERY, tmp_path, OPTIONS) for _ in range(2))
    assert first.used == second.used
    assert first.rejected == second.rejected
    for field in ("template_aatype", "template_all_atom_positions", "template_all_atom_masks"):
        assert first.features[field].tobytes() == second.features[field].tobytes()  # type: ignore[literal-required]


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="max_e_value must be at least 0"):
        UserTemplateOptions(max_e_value=float("nan"))
    with pytest.raises(ValueError, match="min_coverage must be within"):
        UserTemplateOptions(min_coverage=2)


def test_real_structures_are_templates_of_their_own_chains(real_data: Path) -> None:
    query = "TTCCPSIVARSNFNVCRLPGTPEAICATYTGCIIIPGATCPGDYAN"  # crambin
    files = [real_data / "mmcif" / name for name in ("1cbn.cif.gz", "1crn.cif.gz", "2hhb.cif.gz")]
    if not all(map(os.path.exists, files)):
        pytest.skip("needs crambin and haemoglobin")
    result = templates_from_files(query, files, OPTIONS)
    assert {used.name for used in result.used} == {"1cbn_A", "1crn_A"}
    assert all(used.aligned == 46 for used in result.used)
    assert {rejection.name[:4] for rejection in result.rejected} == {"2hhb"}


def test_each_file_without_a_template_is_named(tmp_path: Path) -> None:
    bad = write(tmp_path, make_structure(make_chain("A", UNRELATED), name="x"))
    good = write(tmp_path, make_structure(make_chain("A", QUERY), name="x_2"))
    result = templates_from_files(QUERY, [bad, good], OPTIONS)
    assert [template.name for template in result.used] == ["x_2_A"]
    (sentence,) = unused_files([bad, good], [result])
    assert sentence.startswith(f"{bad} gives no template: x_A: ")
    assert unused_files([tmp_path], [result]) == ()
