"""Score a predicted chain against a chain of an experimental structure."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.features.ground_truth import ATOM14_ALTERNATIVE, ATOM14_IS_AMBIGUOUS
from data_pipeline.residues import ATOM14_MASK, ATOM14_TO_ATOM37, ATOM37_MASK, ATOM_ORDER, UNKNOWN
from helixfold.analysis.metrics import residue_lddt, superposed_scores
from helixfold.analysis.residues import Pairing

_CA = ATOM_ORDER["CA"]
# The n-th missing atom of the prediction is placed n times this far away, so that it preserves no distance.
_AWAY = 1e5  # Angstrom
# Possible atoms of each predicted residue type; all for unknown residues. In a mutated side chain, only atoms of both
# types are compared.
_POSSIBLE = (ATOM37_MASK > 0) | (np.arange(len(ATOM37_MASK)) == UNKNOWN)[:, None]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of a chain over the experimentally observed residues, from 0 to 1 except RMSD and pLDDT.

    A residue or atom that is missing in the prediction counts as wrong, except in the RMSD (Å) of common residues.
    `residues` counts residues with C-alpha in the reference, and `compared` those with C-alpha in the prediction too.
    `identity` is the fraction of the compared residues with the same type. `lddt` is of all heavy atoms. `plddt` (0 to
    100) is the mean over the compared residues, or None if the prediction's B-factors are not pLDDT.
    """

    predicted_chain: str
    reference_chain: str
    residues: int  # with C-alpha in the reference
    compared: int  # of these residues, with C-alpha in the prediction
    identity: float  # fraction of the compared residues with the same type
    lddt: float  # of all heavy atoms
    lddt_ca: float
    tm_score: float  # normalised by the length of the reference
    gdt_ts: float
    gdt_ha: float
    rmsd: float  # Angstrom, of C-alpha
    plddt: float | None  # mean over the compared residues, 0 to 100; None if the prediction's B-factors are not pLDDT

    def __repr__(self) -> str:
        return (
            f"<Scores of {self.compared} of {self.residues} residues, {self.identity:.0%} identical: "
            f"lDDT {self.lddt:.2f}, lDDT-CA {self.lddt_ca:.2f}, TM-score {self.tm_score:.2f}, "
            f"GDT-TS {self.gdt_ts:.2f}, RMSD {self.rmsd:.1f} Å>"
        )


@dataclass(frozen=True, kw_only=True)
class ResidueScores:
    """Scores of each reference residue with a C-alpha atom; NaN for residues without distances.

    `number` and `letters` are the residue numbers and one-letter codes in the reference. `present` is whether the
    prediction has its C-alpha; otherwise `predicted_number` is 0 and `plddt` is NaN.
    """

    number: Int[np.ndarray, " n"]  # the residue number in the reference
    letters: str  # one-letter codes in the reference
    present: Bool[np.ndarray, " n"]  # whether the prediction has its C-alpha
    predicted_number: Int[np.ndarray, " n"]  # 0 if the prediction lacks the residue
    lddt: Float[np.ndarray, " n"]
    lddt_ca: Float[np.ndarray, " n"]
    plddt: Float[np.ndarray, " n"] | None  # NaN for residues that the prediction lacks


def compared(pairing: Pairing) -> tuple[Scores, ResidueScores]:
    """Return the scores of a predicted chain against its reference chain, as a whole and by residue."""
    observed, both = pairing.observed, pairing.both
    predicted, reference = pairing.predicted, pairing.reference
    place = pairing.place
    superposed = superposed_scores(
        predicted.atom_positions[place[both], _CA], reference.atom_positions[both, _CA], length=int(observed.sum())
    )
    ca_points = np.where(both[:, None], predicted.atom_positions[place, _CA], np.nan)[observed]
    of_ca, lddt_ca = residue_lddt(
        placed(ca_points), reference.atom_positions[observed, _CA], np.arange(int(observed.sum()))
    )
    of_atoms, lddt = _all_atoms(pairing)
    plddt = plddt_of(pairing)
    scores = Scores(
        predicted_chain=predicted.name,
        reference_chain=reference.name,
        residues=int(observed.sum()),
        compared=int(both.sum()),
        identity=pairing.identity,
        lddt=lddt,
        lddt_ca=lddt_ca,
        tm_score=superposed.tm_score,
        gdt_ts=superposed.gdt_ts,
        gdt_ha=superposed.gdt_ha,
        rmsd=superposed.rmsd,
        plddt=None if plddt is None else float(plddt[both].mean()),
    )
    return scores, ResidueScores(
        number=reference.residue_numbers[observed],
        letters="".join(np.array(list(reference.sequence))[observed]),
        present=both[observed],
        predicted_number=np.where(both, predicted.residue_numbers[place], 0)[observed],
        lddt=of_atoms[observed],
        lddt_ca=of_ca,
        plddt=None if plddt is None else plddt[observed],
    )


def plddt_of(pairing: Pairing) -> Float[np.ndarray, " r"] | None:
    """Return the pLDDT of each reference residue, NaN if the prediction lacks it.

    Return None if the prediction's B-factors are not pLDDT. They are considered as pLDDT if all atoms of a residue have
    the same value from 0 to 100, and residues differ.
    """
    chain = pairing.predicted
    present = chain.atom_mask > 0
    lowest = np.where(present, chain.b_factors, np.inf).min(-1)[chain.observed]
    highest = np.where(present, chain.b_factors, -np.inf).max(-1)[chain.observed]
    if (highest - lowest > 0.011).any() or lowest.min() < 0 or highest.max() > 100 or highest.max() == lowest.min():
        return None
    return np.where(pairing.both, np.where(present, chain.b_factors, 0).max(-1)[pairing.place], np.nan)


@dataclass(frozen=True, kw_only=True)
class HeavyAtoms:
    """Heavy atoms of a reference chain that both residue types have, and their predicted positions, in Å.

    `predicted` is NaN if the prediction lacks the atom. `residue` is the index of its residue in the reference chain.
    """

    predicted: Float[np.ndarray, "n 3"]  # Angstrom, NaN if the prediction lacks the atom
    true: Float[np.ndarray, "n 3"]  # Angstrom
    residue: Int[np.ndarray, " n"]  # index in the reference chain


def heavy_atoms(pairing: Pairing) -> HeavyAtoms:
    """Return the heavy atoms of a pairing for lDDT, in the order of the reference's residues.

    Atoms of planar groups whose rotation by half a turn only exchanges names (Asp, Glu, Phe, Tyr) get the names that
    fit better.
    """
    reference, place = pairing.reference, pairing.place
    rows = np.arange(len(place))[:, None]
    slots = ATOM14_TO_ATOM37[reference.aatype]
    exists = (reference.atom_mask[rows, slots] * ATOM14_MASK[reference.aatype]) > 0
    exists &= (place < 0)[:, None] | _POSSIBLE[pairing.predicted.aatype[place]][rows, slots]
    true = reference.atom_positions[rows, slots]
    has = (pairing.predicted.atom_mask[place][rows, slots] > 0) & (place >= 0)[:, None]
    predicted = np.where(has[..., None], pairing.predicted.atom_positions[place][rows, slots], 0)
    swapped = _swapped(pairing, predicted, has, true, exists)
    alternative = np.where(swapped[:, None], ATOM14_ALTERNATIVE[reference.aatype], np.arange(14))
    predicted, has = predicted[rows, alternative], has[rows, alternative]
    points = np.where(has[..., None], predicted, np.nan)[exists]
    residue, _ = exists.nonzero()
    return HeavyAtoms(predicted=points, true=true[exists], residue=residue)


def _all_atoms(pairing: Pairing) -> tuple[Float[np.ndarray, " r"], float]:
    """Return the lDDT of each reference residue, and of all, over heavy atoms that both residue types have."""
    atoms = heavy_atoms(pairing)
    per_residue, whole = residue_lddt(placed(atoms.predicted), atoms.true, atoms.residue)
    return np.pad(per_residue, (0, len(pairing.place) - len(per_residue)), constant_values=np.nan), whole


def _swapped(
    pairing: Pairing,
    predicted: Float[np.ndarray, "r 14 3"],
    has: Bool[np.ndarray, "r 14"],
    true: Float[np.ndarray, "r 14 3"],
    exists: Bool[np.ndarray, "r 14"],
) -> Bool[np.ndarray, " r"]:
    """Return a mask of residues that preserve more distances after exchanging ambiguous atom names."""
    aatype = pairing.reference.aatype
    rows = np.arange(len(true))[:, None]
    ambiguous = ATOM14_IS_AMBIGUOUS[aatype] > 0
    # Atoms are exchanged in pairs, so both of them must exist.
    exchangeable = ambiguous & (ambiguous <= (exists & has)).all(-1)[:, None]
    is_compared = exists & has & (exchangeable | ~ambiguous)
    residue, _ = is_compared.nonzero()
    if not exchangeable.any():
        return np.zeros(len(true), bool)
    preserved = [
        residue_lddt(
            named[is_compared], true[is_compared], residue, of=exchangeable[is_compared], to=~ambiguous[is_compared]
        )[0]
        for named in (predicted, predicted[rows, ATOM14_ALTERNATIVE[aatype]])
    ]
    return np.pad(preserved[1] > preserved[0], (0, len(true) - len(preserved[0])))


def placed(points: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 3"]:
    """Return points with missing ones (NaN) far from all others, so that they preserve no distance."""
    missing = np.flatnonzero(np.isnan(points).any(-1))
    result = points.copy()
    result[missing] = _AWAY * (1 + np.arange(len(missing)))[:, None]
    return result
