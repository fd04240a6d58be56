"""Standard bond lengths, bond angles and atom radii for checks of the geometry of structures.

Bonds and angles within residues are from Engh & Huber (Acta Cryst. A47, 1991; Int. Tables for Crystallography F, 2001),
van der Waals radii from Bondi (J. Phys. Chem. 68, 1964); AlphaFold 2, Suppl. Sec. 1.9.11. `C_N_LENGTH` (Å) and the
cosines `CA_C_N_COSINE` and `C_N_CA_COSINE` are for the peptide bond between residues, which is longer before proline.
`VAN_DER_WAALS_RADIUS` (Å) is in the order of `residues.ATOM_TYPES`.
"""

from functools import cache
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Float

from data_pipeline.residues import ATOM14_NAMES, ATOM_TYPES, THREE_LETTER, UNKNOWN


class MeanAndDeviation(NamedTuple):
    """Mean and standard deviation of a length (Å), of the cosine of an angle, or of an angle in degrees."""

    mean: float
    deviation: float


# The peptide bond; before proline it is longer.
C_N_LENGTH: Final = MeanAndDeviation(1.329, 0.014)
C_N_LENGTH_TO_PROLINE: Final = MeanAndDeviation(1.341, 0.016)
CA_C_N_COSINE: Final = MeanAndDeviation(-0.4473, 0.0311)  # 116.568 +- 1.995 degrees
C_N_CA_COSINE: Final = MeanAndDeviation(-0.5203, 0.0353)  # 121.352 +- 2.315 degrees

_RADIUS: Final = {"C": 1.7, "N": 1.55, "O": 1.52, "S": 1.8}  # Å, by element
VAN_DER_WAALS_RADIUS: Float[np.ndarray, "37"] = np.array([_RADIUS[name[0]] for name in ATOM_TYPES], np.float32)
VAN_DER_WAALS_RADIUS.flags.writeable = False

# Bond, mean and deviation in Å. The first line applies to all residues with these atoms, unless their own line has
# other values.
_BOND_NORMS: Final = """
all  N-CA 1.459 0.020  CA-C 1.525 0.026  C-O 1.229 0.019  CA-CB 1.535 0.022
ALA  CA-CB 1.520 0.021
ARG  CB-CG 1.521 0.027  CG-CD 1.515 0.025  CD-NE 1.460 0.017  NE-CZ 1.326 0.013  CZ-NH1 1.326 0.013  CZ-NH2 1.326 0.013
ASN  CA-CB 1.527 0.026  CB-CG 1.506 0.023  CG-OD1 1.235 0.022  CG-ND2 1.324 0.025
ASP  CB-CG 1.513 0.021  CG-OD1 1.249 0.023  CG-OD2 1.249 0.023
CYS  CA-CB 1.526 0.013  CB-SG 1.812 0.016
GLN  CB-CG 1.521 0.027  CG-CD 1.506 0.023  CD-OE1 1.235 0.022  CD-NE2 1.324 0.025
GLU  CB-CG 1.517 0.019  CG-CD 1.515 0.015  CD-OE1 1.252 0.011  CD-OE2 1.252 0.011
GLY  N-CA 1.456 0.015  CA-C 1.514 0.016  C-O 1.232 0.016
HIS  CB-CG 1.492 0.016  CG-ND1 1.369 0.015  CG-CD2 1.353 0.017  ND1-CE1 1.343 0.025  CD2-NE2 1.415 0.021
HIS  CE1-NE2 1.322 0.023
ILE  CA-CB 1.544 0.023  CB-CG1 1.536 0.028  CB-CG2 1.524 0.031  CG1-CD1 1.500 0.069
LEU  CA-CB 1.533 0.023  CB-CG 1.521 0.029  CG-CD1 1.514 0.037  CG-CD2 1.514 0.037
LYS  CB-CG 1.521 0.027  CG-CD 1.520 0.034  CD-CE 1.508 0.025  CE-NZ 1.486 0.025
MET  CB-CG 1.509 0.032  CG-SD 1.807 0.026  SD-CE 1.774 0.056
PHE  CB-CG 1.509 0.017  CG-CD1 1.383 0.015  CG-CD2 1.383 0.015  CD1-CE1 1.388 0.020  CD2-CE2 1.388 0.020
PHE  CE1-CZ 1.369 0.019  CE2-CZ 1.369 0.019
PRO  N-CA 1.468 0.017  CA-C 1.524 0.020  C-O 1.228 0.020
PRO  CA-CB 1.531 0.020  CB-CG 1.495 0.050  CG-CD 1.502 0.033  N-CD 1.474 0.014
SER  CA-CB 1.525 0.015  CB-OG 1.418 0.013
THR  CA-CB 1.529 0.026  CB-OG1 1.428 0.020  CB-CG2 1.519 0.033
TRP  CB-CG 1.498 0.018  CG-CD1 1.363 0.014  CG-CD2 1.432 0.017  CD1-NE1 1.375 0.017  CE2-NE1 1.371 0.013
TRP  CD2-CE2 1.409 0.012  CD2-CE3 1.399 0.015  CE2-CZ2 1.393 0.017  CE3-CZ3 1.380 0.017  CH2-CZ2 1.369 0.019
TRP  CH2-CZ3 1.396 0.016
TYR  CB-CG 1.512 0.015  CG-CD1 1.387 0.013  CG-CD2 1.387 0.013  CD1-CE1 1.389 0.015  CD2-CE2 1.389 0.015
TYR  CE1-CZ 1.381 0.013  CE2-CZ 1.381 0.013  CZ-OH 1.374 0.017
VAL  CA-CB 1.543 0.021  CB-CG1 1.524 0.021  CB-CG2 1.524 0.021
"""

# Angle at the middle atom, mean and deviation in degrees.
_ANGLE_NORMS: Final = """
all  N-CA-C 111.0 2.7  CA-C-O 120.1 2.1  N-CA-CB 110.6 1.8  C-CA-CB 110.4 2.0
ALA  N-CA-CB 110.1 1.4  C-CA-CB 110.1 1.5
ARG  CA-CB-CG 113.4 2.2  CB-CG-CD 111.6 2.6  CG-CD-NE 111.8 2.1  CD-NE-CZ 123.6 1.4
ARG  NE-CZ-NH1 120.3 0.5  NE-CZ-NH2 120.3 0.5  NH1-CZ-NH2 119.4 1.1
ASN  CA-CB-CG 113.4 2.2  CB-CG-ND2 116.7 2.4  CB-CG-OD1 121.6 2.0  ND2-CG-OD1 121.9 2.3
ASP  CA-CB-CG 113.4 2.2  CB-CG-OD1 118.3 0.9  CB-CG-OD2 118.3 0.9  OD1-CG-OD2 123.3 1.9
CYS  N-CA-CB 110.8 1.5  C-CA-CB 111.5 1.2  CA-CB-SG 114.2 1.1
GLN  CA-CB-CG 113.4 2.2  CB-CG-CD 111.6 2.6  CG-CD-OE1 121.6 2.0  CG-CD-NE2 116.7 2.4  OE1-CD-NE2 121.9 2.3
GLU  CA-CB-CG 113.4 2.2  CB-CG-CD 114.2 2.7  CG-CD-OE1 118.3 2.0  CG-CD-OE2 118.3 2.0  OE1-CD-OE2 123.3 1.2
GLY  N-CA-C 113.1 2.5  CA-C-O 120.6 1.8
HIS  CA-CB-CG 113.6 1.7  CB-CG-ND1 123.2 2.5  CB-CG-CD2 130.8 3.1  CG-ND1-CE1 108.2 1.4  ND1-CE1-NE2 109.9 2.2
HIS  CD2-NE2-CE1 106.6 2.5  CG-CD2-NE2 109.2 1.9  CD2-CG-ND1 106.0 1.4
ILE  N-CA-CB 110.8 2.3  C-CA-CB 111.6 2.0  CA-CB-CG1 111.0 1.9  CB-CG1-CD1 113.9 2.8  CA-CB-CG2 110.9 2.0
ILE  CG1-CB-CG2 111.4 2.2
LEU  N-CA-CB 110.4 2.0  C-CA-CB 110.2 1.9  CA-CB-CG 115.3 2.3  CB-CG-CD1 111.0 1.7  CB-CG-CD2 111.0 1.7
LEU  CD1-CG-CD2 110.5 3.0
LYS  CA-CB-CG 113.4 2.2  CB-CG-CD 111.6 2.6  CG-CD-CE 111.9 3.0  CD-CE-NZ 111.7 2.3
MET  CA-CB-CG 113.3 1.7  CB-CG-SD 112.4 3.0  CG-SD-CE 100.2 1.6
PHE  CA-CB-CG 113.9 2.4  CB-CG-CD1 120.8 0.7  CB-CG-CD2 120.8 0.7  CD1-CG-CD2 118.3 1.3  CG-CD1-CE1 120.8 1.1
PHE  CG-CD2-CE2 120.8 1.1  CD1-CE1-CZ 120.1 1.2  CD2-CE2-CZ 120.1 1.2  CE1-CZ-CE2 120.0 1.8
PRO  N-CA-C 112.1 2.6  CA-C-O 120.2 2.4  N-CA-CB 103.3 1.2  C-CA-CB 111.7 2.1  CA-CB-CG 104.8 1.9
PRO  CB-CG-CD 106.5 3.9  CG-CD-N 103.2 1.5  CA-N-CD 111.7 1.4
SER  N-CA-CB 110.5 1.5  C-CA-CB 110.1 1.9  CA-CB-OG 111.2 2.7
THR  N-CA-CB 110.3 1.9  C-CA-CB 111.6 2.7  CA-CB-OG1 109.0 2.1  CA-CB-CG2 112.4 1.4  CG2-CB-OG1 110.0 2.3
TRP  CA-CB-CG 113.7 1.9  CB-CG-CD1 127.0 1.3  CB-CG-CD2 126.6 1.3  CD1-CG-CD2 106.3 0.8  CG-CD1-NE1 110.1 1.0
TRP  CD1-NE1-CE2 109.0 0.9  CD2-CE2-NE1 107.3 1.0  CG-CD2-CE2 107.3 0.8  CG-CD2-CE3 133.9 0.9  CZ2-CE2-NE1 130.4 1.1
TRP  CE2-CD2-CE3 118.7 1.2  CD2-CE2-CZ2 122.3 1.2  CE2-CZ2-CH2 117.4 1.0  CZ2-CH2-CZ3 121.6 1.2
TRP  CE3-CZ3-CH2 121.2 1.1  CD2-CE3-CZ3 118.8 1.3
TYR  CA-CB-CG 113.4 1.9  CB-CG-CD1 121.0 0.6  CB-CG-CD2 121.0 0.6  CD1-CG-CD2 117.9 1.1  CG-CD1-CE1 121.3 0.8
TYR  CG-CD2-CE2 121.3 0.8  CD1-CE1-CZ 119.8 0.9  CD2-CE2-CZ 119.8 0.9  CE1-CZ-CE2 119.8 1.6
TYR  CE1-CZ-OH 120.1 2.7  CE2-CZ-OH 120.1 2.7
VAL  N-CA-CB 111.5 2.2  C-CA-CB 111.4 1.9  CA-CB-CG1 110.9 1.5  CA-CB-CG2 110.9 1.5  CG1-CB-CG2 110.9 1.6
"""


@cache
def distance_bounds(
    tolerance_factor: float, overlap_tolerance: float
) -> tuple[Float[np.ndarray, "21 14 14"], Float[np.ndarray, "21 14 14"]]:
    """Return the min and the max allowed distances (Å) between any two atoms of each residue type, in atom14 order.

    Atoms bonded to each other or to a common third atom may deviate from the mean by `tolerance_factor` standard
    deviations. The van der Waals spheres of other atoms may overlap by `overlap_tolerance` (Å), and their max distance
    is infinite. Entries are 0 for an atom with itself and where the residue type lacks one of the atoms. The arrays are
    cached and read-only.
    """
    minimum, maximum = np.zeros((21, 14, 14), np.float32), np.zeros((21, 14, 14), np.float32)
    for restype, names in enumerate(ATOM14_NAMES):
        slots = {name: slot for slot, name in enumerate(names) if name}
        for one, first in slots.items():
            for other, second in slots.items():
                if one != other:
                    minimum[restype, first, second] = _RADIUS[one[0]] + _RADIUS[other[0]] - overlap_tolerance
                    maximum[restype, first, second] = np.inf
        for (one, other), norm in _distances(THREE_LETTER[restype]).items():
            margin = tolerance_factor * norm.deviation
            for pair in ((slots[one], slots[other]), (slots[other], slots[one])):
                minimum[restype, *pair], maximum[restype, *pair] = norm.mean - margin, norm.mean + margin
    for table in (minimum, maximum):
        table.flags.writeable = False
    return minimum, maximum


def _distances(residue: str) -> dict[tuple[str, ...], MeanAndDeviation]:
    """Return the distances of bonded atoms and, from bonds and angle, of atoms bonded to a common third atom."""
    bonds = _table_of_residue(_BOND_NORMS, residue)
    distances = dict(bonds)
    for (one, middle, other), (degrees, degrees_off) in _table_of_residue(_ANGLE_NORMS, residue).items():
        first, second = (bonds[tuple(sorted((atom, middle)))] for atom in (one, other))
        angle, angle_off = np.radians(degrees), np.radians(degrees_off)
        a, b, cosine = first.mean, second.mean, np.cos(angle)
        side = np.sqrt(a * a + b * b - 2 * a * b * cosine)
        # Errors of the three measurements are taken as independent.
        parts = (
            (a - b * cosine) / side * first.deviation,
            (b - a * cosine) / side * second.deviation,
            a * b * np.sin(angle) / side * angle_off,
        )
        distances[one, other] = MeanAndDeviation(side, np.sqrt(sum(part * part for part in parts)))
    return distances


def _table_of_residue(table: str, residue: str) -> dict[tuple[str, ...], MeanAndDeviation]:
    """Return mean and deviation of each bond or angle of a residue; its own rows replace rows of 'all'.

    A bond's two atom names are sorted. An unknown residue has no rows.
    """
    atoms = set(ATOM14_NAMES[THREE_LETTER.index(residue)])
    norms: dict[tuple[str, ...], MeanAndDeviation] = {}
    for kind in ("all", residue):
        for line in table.strip().splitlines():
            name, *cells = line.split()
            if name != kind or residue == THREE_LETTER[UNKNOWN]:
                continue
            for bond, mean, deviation in zip(cells[::3], cells[1::3], cells[2::3], strict=True):
                names = tuple(bond.split("-"))
                if atoms.issuperset(names):
                    key = tuple(sorted(names)) if len(names) == 2 else names
                    norms[key] = MeanAndDeviation(float(mean), float(deviation))
    return norms
