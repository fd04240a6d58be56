"""Pair the residues of a prediction and an experimental structure by sequence, whatever their numbers.

`MIN_RESIDUES` is the min number of residues to compare. Two chains are the same protein if the fraction `MIN_EQUAL` of
the shorter one is equal.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from data_pipeline.io.errors import InputError
from data_pipeline.residues import ATOM_ORDER, UNKNOWN
from data_pipeline.structure import Chain
from data_pipeline.templates.pairwise_alignment import align
from data_pipeline.training_sets.chain_alignment import query_columns

MIN_RESIDUES = 3  # a superposition needs three points
MIN_EQUAL = 0.4  # fraction of the shorter chain; some residues of any two proteins can be aligned
_CA = ATOM_ORDER["CA"]


class ComparisonError(InputError):
    """Two structures cannot be compared; the text is one sentence with the reason."""


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """A predicted chain paired with a reference chain, residue by residue.

    `place` has the index in the prediction of each reference residue, or -1.
    """

    predicted: Chain
    reference: Chain
    place: Int[np.ndarray, " r"]  # for each reference residue, its index in the prediction, or -1

    @property
    def both(self) -> Bool[np.ndarray, " r"]:
        """Mask of reference residues that are compared: their C-alpha atom is in both structures."""
        return self.observed & (self.place >= 0) & (self.predicted.atom_mask[self.place, _CA] > 0)

    @property
    def observed(self) -> Bool[np.ndarray, " r"]:
        """Mask of reference residues with a C-alpha atom."""
        return np.asarray(self.reference.atom_mask[:, _CA] > 0)

    @property
    def equal(self) -> int:
        """Number of compared residues of the same type; an unknown residue counts as equal to any other."""
        predicted, reference = self.predicted.aatype[self.place[self.both]], self.reference.aatype[self.both]
        return int(((predicted == reference) | (predicted == UNKNOWN) | (reference == UNKNOWN)).sum())

    @property
    def identity(self) -> float:
        """Fraction (0 to 1) of the compared residues that have the same type; 0 if none is compared."""
        return self.equal / max(1, int(self.both.sum()))


def paired(predicted: Chain, reference: Chain) -> Pairing:
    """Return the pairing of the residues of two chains by aligning their sequences.

    The pairing by residue numbers, which may be shifted, is used if it has at least as many equal residues and as high
    an identity. It decides where a gap is if several places are possible.
    """
    place = query_columns(predicted.sequence, reference.sequence)
    by_sequence = Pairing(predicted=predicted, reference=reference, place=place)
    by_number = _by_number(by_sequence)
    if by_number is not None and by_number.identity >= by_sequence.identity and by_number.equal >= by_sequence.equal:
        return by_number
    return by_sequence


def best_pairing(
    predicted: tuple[Chain, ...], reference: tuple[Chain, ...], chain_name: str | None = None, *, homologs: bool = False
) -> Pairing:
    """Return the pairing of two chains, one from each structure, with the most equal residues.

    `chain_name` is the name of the reference chain to compare; it is ignored if the reference has no such chain. Chains
    of different proteins are aligned with BLOSUM62 if `homologs` is True. Raise `ComparisonError` if fewer than three
    residues can be compared, or if the proteins are different and `homologs` is False.
    """
    if not predicted or not reference:
        raise ComparisonError(f"the {'reference' if predicted else 'prediction'} has no protein chains")
    named = tuple(chain for chain in reference if chain.name == chain_name)
    pairings = [paired(one, other) for other in named or reference for one in predicted]
    if homologs and not any(map(_is_same_protein, pairings)):
        pairings = [_aligned(each.predicted, each.reference) for each in pairings]
    best = max(pairings, key=lambda pairing: (pairing.equal, pairing.identity))
    compared = int(best.both.sum())
    if compared < MIN_RESIDUES:
        raise ComparisonError(
            f"they have {compared} common residues with C-alpha atoms; at least {MIN_RESIDUES} are needed"
        )
    if not homologs and not _is_same_protein(best):
        raise ComparisonError(
            f"they are different proteins: only {best.equal} of {_shorter(best)} residues of the shorter one are equal"
        )
    return best


def _shorter(pairing: Pairing) -> int:
    """Return the number of residues with a C-alpha atom in the chain that has fewer of them."""
    return min(int(pairing.observed.sum()), int((pairing.predicted.atom_mask[:, _CA] > 0).sum()))


def _is_same_protein(pairing: Pairing) -> bool:
    """Return whether enough residues are in both chains, and enough residues of the shorter one are equal."""
    return int(pairing.both.sum()) >= MIN_RESIDUES and pairing.equal >= MIN_EQUAL * _shorter(pairing)


def _aligned(predicted: Chain, reference: Chain) -> Pairing:
    """Return the pairing of two chains by a global alignment of their sequences."""
    place = align("global", reference.sequence, predicted.sequence).partner
    return Pairing(predicted=predicted, reference=reference, place=place)


def _by_number(pairing: Pairing) -> Pairing | None:
    """Return the pairing by residue numbers, after the most frequent shift of aligned residues; None if impossible."""
    predicted, reference, place = pairing.predicted, pairing.reference, pairing.place
    observed = reference.observed
    numbers, predicted_numbers = reference.residue_numbers[observed], predicted.residue_numbers
    aligned = observed & (place >= 0)
    if (
        not aligned.any()
        or len(np.unique(numbers)) < len(numbers)
        or len(np.unique(predicted_numbers)) < len(predicted_numbers)
    ):
        return None
    shifts, counts = np.unique(
        predicted_numbers[place[aligned]] - reference.residue_numbers[aligned], return_counts=True
    )
    position = {number: index for index, number in enumerate(predicted_numbers.tolist())}
    shifted = np.full(len(place), -1, np.int64)
    shifted[observed] = [position.get(number, -1) for number in (numbers + shifts[counts.argmax()]).tolist()]
    return Pairing(predicted=predicted, reference=reference, place=shifted)
