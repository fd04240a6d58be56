"""Find which residues of a prediction and of an experimental structure correspond, whatever their numbers are."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from data_pipeline.io.errors import InputError
from data_pipeline.residues import ATOM_ORDER, UNKNOWN
from data_pipeline.structure import Chain
from data_pipeline.training_sets.chain_alignment import query_columns

LEAST_RESIDUES = 3  # fewer do not fix a superposition
LEAST_EQUAL = 0.4  # share of the shorter chain; some residues of any two proteins can be aligned
_CA = ATOM_ORDER["CA"]


class ComparisonError(InputError):
    """Error for two structures that cannot be compared; the text is one sentence that says why."""


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """A chain of a prediction paired with a chain of the reference, residue by residue."""

    predicted: Chain
    reference: Chain
    place: Int[np.ndarray, " r"]  # for each residue of the reference, its position in the prediction; -1 for none

    @property
    def both(self) -> Bool[np.ndarray, " r"]:
        """Mask of the reference's residues whose C-alpha atom is in both structures: those that are compared."""
        return self.observed & (self.place >= 0) & (self.predicted.atom_mask[self.place, _CA] > 0)

    @property
    def observed(self) -> Bool[np.ndarray, " r"]:
        return np.asarray(self.reference.atom_mask[:, _CA] > 0)

    @property
    def equal(self) -> int:
        """Number of compared residues of the same type; an unknown residue counts as equal to any other."""
        predicted, reference = self.predicted.aatype[self.place[self.both]], self.reference.aatype[self.both]
        return int(((predicted == reference) | (predicted == UNKNOWN) | (reference == UNKNOWN)).sum())

    @property
    def identity(self) -> float:
        return self.equal / max(1, int(self.both.sum()))


def paired(predicted: Chain, reference: Chain) -> Pairing:
    """Pair the residues of two chains by aligning their sequences.

    Where a gap can be put in several places, the residues' numbers decide.
    """
    place = query_columns(predicted.sequence, reference.sequence)
    by_sequence = Pairing(predicted=predicted, reference=reference, place=place)
    counted = _by_number(by_sequence)
    if counted is not None and counted.identity >= by_sequence.identity and counted.equal >= by_sequence.equal:
        return counted
    return by_sequence


def best_pairing(predicted: tuple[Chain, ...], reference: tuple[Chain, ...], wanted: str | None = None) -> Pairing:
    """Return the pairing of two chains, one from each structure, with the most equal residues.

    `wanted` is the name of the reference's chain to compare, if it has one of that name. Raise `ComparisonError` if
    fewer than three residues can be compared, or if the proteins are different.
    """
    if not predicted or not reference:
        raise ComparisonError(f"the {'reference' if predicted else 'prediction'} holds no protein")
    named = tuple(chain for chain in reference if chain.name == wanted)
    pairings = [paired(one, other) for other in named or reference for one in predicted]
    best = max(pairings, key=lambda pairing: (pairing.equal, pairing.identity))
    compared = int(best.both.sum())
    if compared < LEAST_RESIDUES:
        raise ComparisonError(
            f"they have {compared} residues with C-alpha atoms in common, and {LEAST_RESIDUES} are the fewest that can "
            "be compared"
        )
    shorter = min(int(best.observed.sum()), int((best.predicted.atom_mask[:, _CA] > 0).sum()))
    if best.equal < LEAST_EQUAL * shorter:
        raise ComparisonError(
            f"they are different proteins: of the shorter one's {shorter} residues {best.equal} are equal when aligned"
        )
    return best


def _by_number(pairing: Pairing) -> Pairing | None:
    """Return the pairing by residue numbers, up to the most frequent shift of the aligned ones; None if impossible."""
    predicted, reference, place = pairing.predicted, pairing.reference, pairing.place
    observed = reference.observed
    numbers, own = reference.residue_numbers[observed], predicted.residue_numbers
    aligned = observed & (place >= 0)
    if not aligned.any() or len(np.unique(numbers)) < len(numbers) or len(np.unique(own)) < len(own):
        return None
    shifts, counts = np.unique(own[place[aligned]] - reference.residue_numbers[aligned], return_counts=True)
    position = {number: index for index, number in enumerate(own.tolist())}
    shifted = np.full(len(place), -1, np.int64)
    shifted[observed] = [position.get(number, -1) for number in (numbers + shifts[counts.argmax()]).tolist()]
    return Pairing(predicted=predicted, reference=reference, place=shifted)
