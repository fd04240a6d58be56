"""Residues of a prediction and of the experiment find each other, whatever either is numbered by."""

from dataclasses import replace
from pathlib import Path

import gemmi
import numpy as np
import pytest

from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER, RESTYPES
from data_pipeline.structure import Chain
from helixfold.analysis.residues import ComparisonError, best_pairing, paired
from helixfold.analysis.scores import compared

CA = ATOM_ORDER["CA"]


def chain(sequence: str, *, first: int = 1, name: str = "A", missing: tuple[int, ...] = ()) -> Chain:
    """A helix-like chain of C-alphas."""
    length = len(sequence)
    turn = np.arange(length) * np.radians(100)
    positions, mask = np.zeros((length, 37, 3), np.float32), np.zeros((length, 37), np.float32)
    positions[:, CA] = np.stack([2.3 * np.cos(turn), 2.3 * np.sin(turn), 1.5 * np.arange(length)], -1)
    mask[:, CA] = 1
    mask[list(missing)] = 0
    return Chain(
        name=name,
        sequence=sequence,
        aatype=np.array([RESTYPES.find(letter) if letter in RESTYPES else 20 for letter in sequence]),
        atom_positions=positions,
        atom_mask=mask,
        b_factors=np.zeros_like(mask),
        observed=mask.any(-1),
        residue_names=tuple("ALA" for _ in sequence),
        residue_numbers=np.arange(first, first + length),
        insertion_codes=tuple(" " for _ in sequence),
    )


def cut(whole: Chain, kept: np.ndarray) -> Chain:
    """Only some residues, whose sequence is all that the file tells."""
    return replace(
        whole,
        sequence="".join(whole.sequence[index] for index in kept.tolist()),
        aatype=whole.aatype[kept],
        atom_positions=whole.atom_positions[kept],
        atom_mask=whole.atom_mask[kept],
        b_factors=whole.b_factors[kept],
        observed=whole.observed[kept],
        residue_names=tuple(whole.residue_names[index] for index in kept.tolist()),
        residue_numbers=whole.residue_numbers[kept],
        insertion_codes=tuple(whole.insertion_codes[index] for index in kept.tolist()),
    )


FULL = "MSKAGGELVDKWRTAGGGSSPLFNEAGYIQHC"


def test_equal_sequences_need_no_numbers() -> None:
    assert paired(chain(FULL), chain(FULL, first=501)).place.tolist() == list(range(len(FULL)))


def test_a_tag_and_cut_ends_are_no_hindrance() -> None:
    found = paired(chain(FULL), chain("GHHHHHH" + FULL[4:-3], first=-6))
    assert found.place.tolist() == [-1] * 7 + list(range(4, len(FULL) - 3))
    assert found.identity == 1
    scores, _ = compared(found)
    assert (scores.residues, scores.compared) == (len(FULL), len(FULL) - 7)


@pytest.mark.parametrize("shift", [0, 100])
def test_a_gap_that_fits_in_several_places_is_where_the_numbers_have_it(shift: int) -> None:
    """Of AGGGSS the experiment saw A..GSS; by letters alone, the two missing G could be any."""
    kept = np.array([index for index in range(len(FULL)) if index not in (15, 16)])
    for first_missing in (15, 16):
        kept = np.array([index for index in range(len(FULL)) if index not in (first_missing, 4)])
        reference = cut(chain(FULL, first=1 + shift), kept)
        assert paired(chain(FULL), reference).place.tolist() == kept.tolist()


def test_numbers_that_do_not_fit_the_letters_are_not_believed() -> None:
    kept = np.array([*range(10), *range(14, len(FULL))])
    renumbered = replace(cut(chain(FULL), kept), residue_numbers=np.arange(1, len(kept) + 1))
    assert paired(chain(FULL), renumbered).place.tolist() == kept.tolist()


def test_mutations_and_unknown_residues_are_compared() -> None:
    mutant = FULL[:8] + "Y" + FULL[9:20] + "X" + FULL[21:]
    found = paired(chain(FULL), chain(mutant))
    assert found.place.tolist() == list(range(len(FULL)))
    assert found.equal == len(FULL) - 1


def test_the_chain_with_most_in_common_is_taken_and_the_first_of_equals() -> None:
    other = chain("PEPTIDESAREHERE", name="A")
    fuller, first = chain(FULL, name="C"), chain(FULL, name="B", missing=(3, 4))
    again = chain(FULL, name="D")
    assert best_pairing((chain(FULL),), (other, first, fuller, again)).reference.name == "C"
    assert best_pairing((chain(FULL),), (other, first, fuller, again), "B").reference.name == "B"
    assert best_pairing((chain(FULL),), (other, fuller), "no such chain").reference.name == "C"


def test_what_cannot_be_compared_is_one_sentence() -> None:
    with pytest.raises(ComparisonError, match="the reference has no protein chains"):
        best_pairing((chain(FULL),), ())
    with pytest.raises(ComparisonError, match="the prediction has no protein chains"):
        best_pairing((), (chain(FULL),))
    with pytest.raises(ComparisonError, match="2 common residues with C-alpha atoms; at least 3 are needed"):
        best_pairing((chain("AG"),), (chain("AG"),))
    with pytest.raises(ComparisonError, match="different proteins: only 5 of 20 residues of the shorter one are equal"):
        best_pairing((chain("A" * 5 + "C" * 15),), (chain("W" * 15 + "A" * 5),))


def test_modified_residues_altlocs_and_models_are_read_as_what_they_are(real_data: Path) -> None:
    """MSE stands for MET, one of several positions counts, and of several models the first."""
    for name, letters in (("1a8o", "M"), ("1psm", None), ("4cxl", None)):
        reference = read_structure(real_data / "core" / f"{name}.cif.gz").chains[0]
        predicted = replace(reference, residue_numbers=np.arange(1, len(reference.aatype) + 1))
        scores, residues = compared(best_pairing((predicted,), (reference,)))
        assert (scores.lddt, scores.lddt_ca, scores.gdt_ha) == (1, 1, 1)
        assert scores.tm_score == pytest.approx(1, abs=1e-4)
        assert letters is None or letters in residues.letters
    names = {residue.name for residue in gemmi.read_structure(str(real_data / "core/1a8o.cif.gz"))[0][0]}
    assert "MSE" in names
