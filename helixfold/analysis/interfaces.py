"""Score a predicted complex, its chains, and the interface of each pair of chains, without a reference.

Scores of interfaces from predicted aligned error (PAE) and pLDDT are ipSAE, LIS, pDockQ and pDockQ2. Their functions
take arrays of two chains of n and m residues. PAE is in Angstrom, of the second chain's residues if the complex is
aligned on residues of the first; pLDDT is from 0 to 100. `CONTACT` (Å) is the max distance of C-beta atoms in contact,
and `CLASH` (Å) the distance below which atoms of two chains overlap.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER, RESTYPES
from helixfold.analysis.chain_tm import TmScores

# Angstrom, maximum distance of C-beta atoms (C-alpha of glycine) in contact: Bryant et al. 2022.
CONTACT: Final = 8.0
# Angstrom: closer atoms of two chains overlap. Even a disulfide bond is longer.
CLASH: Final = 2.0
_CA, _CB, _GLYCINE = ATOM_ORDER["CA"], ATOM_ORDER["CB"], RESTYPES.index("G")


@dataclass(frozen=True, kw_only=True)
class DirectedScores:
    """Scores (0 to 1) of the residues of the chain `scored` if the complex is aligned on residues of `aligned`.

    The scores are the results of the functions of the same names.
    """

    aligned: str
    scored: str
    ipsae: float
    pdockq2: float
    lis: float


@dataclass(frozen=True, kw_only=True)
class InterfaceScores:
    """Scores of the interface of two chains; scores that need missing PAE or aligned-error logits are None.

    `contacts` counts pairs of residues, and `residues` the residues with contacts in each chain. `plddt` (0 to 100) is
    the mean over residues with contacts, and `pae` (Å) over the contacts in both directions; None without contacts.
    `iptm` is from 0 to 1, and `pdockq` from 0 to 0.74.
    """

    chains: tuple[str, str]
    contacts: int  # pairs of residues
    residues: tuple[int, int]  # number of residues with contacts in each chain
    plddt: float | None  # 0 to 100, mean over residues with contacts; None without contacts
    pae: float | None  # Angstrom, mean over the contacts in both directions; None without contacts
    iptm: float | None  # 0 to 1
    pdockq: float  # 0 to 0.74
    directions: tuple[DirectedScores, DirectedScores] | None

    @property
    def ipsae(self) -> float | None:
        """Maximum ipSAE of both directions."""
        return max(each.ipsae for each in self.directions) if self.directions else None

    @property
    def pdockq2(self) -> float | None:
        """Maximum pDockQ2 of both directions."""
        return max(each.pdockq2 for each in self.directions) if self.directions else None

    @property
    def lis(self) -> float | None:
        """Mean LIS of both directions."""
        return sum(each.lis for each in self.directions) / 2 if self.directions else None

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as plain values for JSON, with the scores of both directions."""
        return {
            "chains": list(self.chains),
            "contacts": self.contacts,
            "interface_residues": list(self.residues),
            "interface_plddt": self.plddt,
            "interface_pae": self.pae,
            "iptm": self.iptm,
            "ipsae": self.ipsae,
            "pdockq": self.pdockq,
            "pdockq2": self.pdockq2,
            "lis": self.lis,
            "directions": [asdict(each) for each in self.directions or ()],
        }


@dataclass(frozen=True, kw_only=True)
class ChainScores:
    """Scores of one chain of a complex.

    `residues` is its number of residues, `plddt` (0 to 100) their mean, and `ptm` is from 0 to 1, or None without
    aligned-error logits.
    """

    name: str
    residues: int
    plddt: float  # 0 to 100, mean over its residues
    ptm: float | None  # 0 to 1; None without aligned-error logits


@dataclass(frozen=True, kw_only=True)
class ComplexScores:
    """Scores of a predicted complex. pTM, ipTM and ranking confidence are None without aligned-error logits.

    The ranking confidence is 0.8 ipTM + 0.2 pTM. `interfaces` has all pairs of chains, also without contacts.
    """

    ptm: float | None  # 0 to 1
    iptm: float | None  # 0 to 1
    ranking_confidence: float | None  # 0 to 1, 0.8 ipTM + 0.2 pTM
    chains: tuple[ChainScores, ...]
    interfaces: tuple[InterfaceScores, ...]  # of all pairs of chains, in order

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as plain values for JSON."""
        return {
            "ptm": self.ptm,
            "iptm": self.iptm,
            "ranking_confidence": self.ranking_confidence,
            "chains": [asdict(each) for each in self.chains],
            "interfaces": [each.to_dict() for each in self.interfaces],
        }


def complex_scores(
    protein: Protein,
    chain_names: Sequence[str],
    *,
    plddt: Float[np.ndarray, " r"],
    pae: Float[np.ndarray, "r r"] | None = None,
    tm: TmScores | None = None,
) -> ComplexScores:
    """Return the scores of a predicted complex.

    `chain_names` are in the order of the protein's chain indices. `plddt` is from 0 to 100; `pae` is in Å, of residue j
    if aligned on residue i. `tm` has the scores from aligned-error logits. Raise ValueError if the arrays are
    inconsistent, if names are equal, or if there are fewer than two chains.
    """
    _check(protein, chain_names, plddt, pae, tm)
    places = [np.flatnonzero(protein.chain_index == index) for index in range(len(chain_names))]
    chains = tuple(
        ChainScores(
            name=name,
            residues=len(place),
            plddt=float(plddt[place].mean(dtype=np.float64)),
            ptm=None if tm is None else float(tm.by_chain[index, index]),
        )
        for index, (name, place) in enumerate(zip(chain_names, places, strict=True))
    )
    interfaces = tuple(
        _interface(
            (chain_names[first], chain_names[second]),
            _distances(protein, places[first], places[second]) <= CONTACT,
            (plddt[places[first]], plddt[places[second]]),
            None
            if pae is None
            else (pae[np.ix_(places[first], places[second])], pae[np.ix_(places[second], places[first])]),
            None if tm is None else tm.pair_iptm(first, second),
        )
        for first, second in combinations(range(len(chain_names)), 2)
    )
    return ComplexScores(
        ptm=None if tm is None else tm.ptm,
        iptm=None if tm is None else tm.iptm,
        ranking_confidence=None if tm is None else tm.ranking_confidence,
        chains=chains,
        interfaces=interfaces,
    )


def _interface(
    chains: tuple[str, str],
    contact: Bool[np.ndarray, "n m"],
    plddt: tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]],
    pae: tuple[Float[np.ndarray, "n m"], Float[np.ndarray, "m n"]] | None,
    iptm: float | None,
) -> InterfaceScores:
    """Return the scores of a pair of chains; `pae` has the errors of both directions in Angstrom."""
    count, residues = int(contact.sum()), residues_in_contact(contact)
    confident = np.concatenate([plddt[0][residues[0]], plddt[1][residues[1]]])
    mean_plddt = float(confident.mean(dtype=np.float64)) if count else None
    directions, mean_pae = None, None
    if pae is not None:
        forward, backward = (
            DirectedScores(
                aligned=aligned,
                scored=scored,
                ipsae=ipsae(errors),
                pdockq2=pdockq2(errors, contacts, mean_plddt or 0.0),
                lis=lis(errors),
            )
            for (aligned, scored), errors, contacts in (
                (chains, pae[0], contact),
                (chains[::-1], pae[1], contact.T),
            )
        )
        directions = forward, backward
        contact_errors = np.concatenate([pae[0][contact], pae[1][contact.T]])
        mean_pae = float(contact_errors.mean(dtype=np.float64)) if count else None
    return InterfaceScores(
        chains=chains,
        contacts=count,
        residues=(len(residues[0]), len(residues[1])),
        plddt=mean_plddt,
        pae=mean_pae,
        iptm=iptm,
        pdockq=pdockq(count, mean_plddt or 0.0),
        directions=directions,
    )


def _distances(
    protein: Protein, first: Int[np.ndarray, " n"], second: Int[np.ndarray, " m"]
) -> Float[np.ndarray, "n m"]:
    """Return distances in Angstrom between C-beta atoms (C-alpha of glycine); infinite if the atom is missing."""
    atom = np.where(protein.aatype == _GLYCINE, _CA, _CB)
    every = np.arange(len(atom))
    present = protein.atom_mask[every, atom] > 0.5
    points = np.where(present[:, None], protein.atom_positions[every, atom].astype(np.float64), np.nan)
    distances = np.sqrt(np.square(points[first, None] - points[second]).sum(-1))
    return np.where(np.isnan(distances), np.inf, distances)


def _check(
    protein: Protein,
    chain_names: Sequence[str],
    plddt: np.ndarray,
    pae: np.ndarray | None,
    tm: TmScores | None,
) -> None:
    """Raise `ValueError` unless names, shapes and ranges of the values fit together."""
    length, chains = len(protein.aatype), len(chain_names)
    if chains < 2:
        raise ValueError(f"a complex must have at least two chains, got {chains}")
    if len(set(chain_names)) < chains:
        raise ValueError(f"chains must have different names, got {', '.join(chain_names)}")
    if not np.array_equal(np.unique(protein.chain_index), np.arange(chains)):
        raise ValueError(
            f"chain_index must have residues of each of {chains} chains, numbered from 0, got "
            f"{np.unique(protein.chain_index).tolist()}"
        )
    if plddt.shape != (length,) or not ((plddt >= 0) & (plddt <= 100)).all():
        raise ValueError(f"plddt must have a value from 0 to 100 for each of {length} residues")
    if pae is not None and (pae.shape != (length, length) or not (pae.min() >= 0 and np.isfinite(pae.max()))):
        raise ValueError(f"pae must be finite, at least 0 and of shape {(length, length)}, got shape {pae.shape}")
    if tm is not None and tm.by_chain.shape != (chains, chains):
        raise ValueError(f"tm must have scores of {chains} chains, got shape {tm.by_chain.shape}")


# Angstrom, maximum PAE of pairs that count in ipSAE and in LIS, as in their publications.
_IPSAE_CUTOFF, _LIS_CUTOFF = 10.0, 12.0
# Minimum number of residues in the scale of ipSAE.
_MIN_IPSAE_RESIDUES = 27
# Angstrom, scale of errors in pDockQ2.
_PDOCKQ2_SCALE = 10.0


def ipsae(pae: Float[np.ndarray, "n m"]) -> float:
    """Return ipSAE (0 to 1): the expected TM-score of the residues with a small error to the best residue.

    Dunbrack 2025 (doi:10.1101/2025.02.10.637595). The scale of the TM-score follows from the number of residues whose
    error is below 10 Angstrom if the complex is aligned on the best residue. 0 without such residues.
    """
    errors = pae.astype(np.float64)
    is_confident = errors < _IPSAE_CUTOFF
    residues = is_confident.sum(1)
    scale = 1.24 * np.cbrt(np.maximum(residues, _MIN_IPSAE_RESIDUES) - 15) - 1.8
    terms = is_confident / (1 + (errors / scale[:, None]) ** 2)
    return float((terms.sum(1) / np.maximum(residues, 1)).max(initial=0))


def lis(pae: Float[np.ndarray, "n m"]) -> float:
    """Return the local interaction score (0 to 1): the mean of 1 - PAE / 12 Angstrom over pairs with PAE up to 12.

    Kim et al. 2024 (doi:10.1101/2024.02.19.580970). 0 without such pairs.
    """
    errors = pae[pae <= _LIS_CUTOFF].astype(np.float64)
    return float((1 - errors / _LIS_CUTOFF).mean()) if len(errors) else 0.0


def pdockq(contacts: int, plddt: float) -> float:
    """Return pDockQ (0 to 0.74): the DockQ expected from the number of contacts and the mean pLDDT of the interface.

    Bryant et al. 2022 (doi:10.1038/s41467-022-28865-w). Contacts are pairs of residues, one of each chain, whose C-beta
    atoms (C-alpha of glycine) are at most 8 Angstrom apart. 0 without contacts.
    """
    return 0.724 * _logistic(0.052 * (plddt * math.log10(contacts) - 152.611)) + 0.018 if contacts else 0.0


def pdockq2(pae: Float[np.ndarray, "n m"], contact: Bool[np.ndarray, "n m"], plddt: float) -> float:
    """Return pDockQ2 (0 to 1): the DockQ expected from the PAE of contacts and the mean pLDDT of the interface.

    Zhu et al. 2023 (doi:10.1093/bioinformatics/btad424), with the contacts of two chains only and the mean pLDDT of
    both sides, as in the program ipsae. Contacts are as in `pdockq`; 0 without contacts.
    """
    errors = pae[contact].astype(np.float64)
    if not len(errors):
        return 0.0
    certain = (1 / (1 + (errors / _PDOCKQ2_SCALE) ** 2)).mean()
    return 1.31 * _logistic(0.075 * (plddt * float(certain) - 84.733)) + 0.005


def residues_in_contact(contact: Bool[np.ndarray, "n m"]) -> tuple[Int[np.ndarray, " a"], Int[np.ndarray, " b"]]:
    """Return the indices of the residues with a contact in each chain."""
    return np.flatnonzero(contact.any(1)), np.flatnonzero(contact.any(0))


def chain_clashes(
    positions: Float[np.ndarray, "n 3"], chain_index: Int[np.ndarray, " n"], closer_than: float = CLASH
) -> dict[tuple[int, int], int]:
    """Return the number of pairs of atoms of two chains that are up to `closer_than` Å apart, by the chains' indices.

    `positions` has heavy atoms and `chain_index` the chain of each. Pairs of chains without clashes are omitted.
    """
    from scipy.spatial import cKDTree  # noqa: PLC0415 (scores do not need SciPy)

    pairs = cKDTree(positions).query_pairs(closer_than, output_type="ndarray")
    between = np.sort(chain_index[pairs], axis=1)
    between = between[between[:, 0] != between[:, 1]]
    chain_pairs, counts = np.unique(between, axis=0, return_counts=True)
    return {
        (first, second): count for (first, second), count in zip(chain_pairs.tolist(), counts.tolist(), strict=True)
    }


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))
