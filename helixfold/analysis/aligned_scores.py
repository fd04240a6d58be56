"""Score an interface by its predicted aligned error (PAE) and pLDDT: ipSAE, LIS, pDockQ and pDockQ2.

Each function takes arrays of two chains of n and m residues. PAE is in Angstrom, of the second chain's residues when
the complex is aligned on residues of the first; pLDDT is from 0 to 100.
"""

import math

import numpy as np
from jaxtyping import Bool, Float, Int

# Angstrom of PAE, below which ipSAE counts a pair of residues, and up to which LIS does (each by its authors).
_IPSAE_CUTOFF, _LIS_CUTOFF = 10.0, 12.0
# Residues, the least for which ipSAE takes the TM-score's scale.
_LEAST_RESIDUES = 27
# Angstrom, the TM-score's scale in pDockQ2.
_PDOCKQ2_SCALE = 10.0


def ipsae(pae: Float[np.ndarray, "n m"]) -> float:
    """Return ipSAE from 0 to 1, the expected TM-score of those residues that have a small error to the best residue.

    Dunbrack 2025 (doi:10.1101/2025.02.10.637595): the score called ipSAE there, with the TM-score's scale of the number
    of residues whose error is below 10 Angstrom when the complex is aligned on that residue. 0 if there are none.
    """
    errors = pae.astype(np.float64)
    counted = errors < _IPSAE_CUTOFF
    residues = counted.sum(1)
    scale = 1.24 * np.cbrt(np.maximum(residues, _LEAST_RESIDUES) - 15) - 1.8
    terms = counted / (1 + (errors / scale[:, None]) ** 2)
    return float((terms.sum(1) / np.maximum(residues, 1)).max(initial=0))


def lis(pae: Float[np.ndarray, "n m"]) -> float:
    """Return the local interaction score from 0 to 1, the mean of 1 - PAE / 12 Angstrom where PAE is at most 12.

    Kim et al. 2024 (doi:10.1101/2024.02.19.580970). 0 if no pair of residues has such an error.
    """
    errors = pae[pae <= _LIS_CUTOFF].astype(np.float64)
    return float((1 - errors / _LIS_CUTOFF).mean()) if len(errors) else 0.0


def pdockq(contacts: int, plddt: float) -> float:
    """Return pDockQ from 0 to 0.74, the DockQ expected from the number of contacts and the interface's mean pLDDT.

    Bryant et al. 2022 (doi:10.1038/s41467-022-28865-w). Contacts are pairs of residues, one of each chain, whose C-beta
    atoms (C-alpha of glycine) are at most 8 Angstrom apart. 0 if there are none.
    """
    return 0.724 * _logistic(0.052 * (plddt * math.log10(contacts) - 152.611)) + 0.018 if contacts else 0.0


def pdockq2(pae: Float[np.ndarray, "n m"], contact: Bool[np.ndarray, "n m"], plddt: float) -> float:
    """Return pDockQ2 from 0 to 1, the DockQ expected from the errors of the contacts and the interface's mean pLDDT.

    Zhu et al. 2023 (doi:10.1093/bioinformatics/btad424), with the contacts of two chains only and with the mean pLDDT
    of both sides, as the program ipsae computes it. Contacts are those of `pdockq`; 0 if there are none.
    """
    errors = pae[contact].astype(np.float64)
    if not len(errors):
        return 0.0
    certain = (1 / (1 + (errors / _PDOCKQ2_SCALE) ** 2)).mean()
    return 1.31 * _logistic(0.075 * (plddt * float(certain) - 84.733)) + 0.005


def residues_in_contact(contact: Bool[np.ndarray, "n m"]) -> tuple[Int[np.ndarray, " a"], Int[np.ndarray, " b"]]:
    """Return the indices of the residues of each chain that have a contact."""
    return np.flatnonzero(contact.any(1)), np.flatnonzero(contact.any(0))


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))
