"""Find which residue of a prediction is which of the experiment, whatever either is numbered by."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from data_pipeline.datasets.chain_alignment import query_columns
from data_pipeline.residues import ATOM_ORDER, RESTYPES, UNKNOWN
from data_pipeline.structure import Chain

LEAST_RESIDUES = 3  # that fix a superposition
LEAST_EQUAL = 0.4  # of the shorter chain; any two proteins have some residues that can be aligned
_CA = ATOM_ORDER["CA"]


class ComparisonError(ValueError):
    """Two structures cannot be compared; the text is one sentence that says why."""


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """A chain of a prediction beside a chain of the experiment, residue by residue."""

    predicted: Chain
    reference: Chain
    place: Int[np.ndarray, " r"]  # for each residue of the reference, its position in the prediction; -1 for none

    @property
    def both(self) -> Bool[np.ndarray, " r"]:
        """Residues of the reference whose C-alpha both have: those that are compared."""
        return self.observed & (self.place >= 0) & (self.predicted.atom_mask[self.place, _CA] > 0)

    @property
    def observed(self) -> Bool[np.ndarray, " r"]:
        return np.asarray(self.reference.atom_mask[:, _CA] > 0)

    @property
    def equal(self) -> int:
        """Number of compared residues that are of the same type; unknown ones are like any other."""
        predicted, reference = self.predicted.aatype[self.place[self.both]], self.reference.aatype[self.both]
        return int(((predicted == reference) | (predicted == UNKNOWN) | (reference == UNKNOWN)).sum())

    @property
    def identity(self) -> float:
        return self.equal / max(1, int(self.both.sum()))


def paired(predicted: Chain, reference: Chain) -> Pairing:
    """Residues that correspond: by their sequences, and where a gap can be put in several places, by their numbers."""
    place = query_columns(predicted.sequence, reference.sequence)
    by_sequence = Pairing(predicted=predicted, reference=reference, place=place)
    counted = _by_number(by_sequence)
    if counted is not None and counted.identity >= by_sequence.identity and counted.equal >= by_sequence.equal:
        return counted
    return by_sequence


def best_pairing(predicted: tuple[Chain, ...], reference: tuple[Chain, ...], wanted: str | None = None) -> Pairing:
    """Return the two chains with most residues in common; the first of equal ones, and `wanted` if the name says which.

    `ComparisonError` where they are too few, or of different proteins.
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
    """Return the same by the residues' numbers, up to a shift that most of the aligned ones have; None if it fails."""
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


def letters(chain: Chain, positions: Int[np.ndarray, " n"]) -> str:
    """One-letter codes, X for unknown."""
    return "".join((RESTYPES + "X")[kind] for kind in chain.aatype[positions].tolist())
