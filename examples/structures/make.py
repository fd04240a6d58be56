"""Make the structures next to this file: ideal peptides built from torsion angles, for trying training.

    python examples/structures/make.py

They are neither experimental nor predicted: textbook helices, strands and turns (degrees below), with ideal bonds,
angles and side chains. Running this again writes the same files.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline import residues, stereochemistry
from data_pipeline.io.files import atomic_write
from data_pipeline.protein import Protein
from data_pipeline.residue_geometry import IDEAL_ATOMS
from helixfold.model.geometry.atoms import (
    atom14_from_rigid_groups,
    atom14_mask,
    atom14_to_atom37,
    atom37_mask,
    rigid_groups_from_torsions,
)
from helixfold.model.geometry.rigid import rigid_from_three_points
from helixfold.results.pdb import to_pdb

OXYGEN, SIDE_CHAIN = 3, 5  # slots of atom14; atoms from SIDE_CHAIN on depend on the rotamer
MIN_CLEARANCE = 3.6  # Å between side chains and other atoms, where possible

THREE_LETTER = dict(zip(residues.RESTYPES, residues.THREE_LETTER, strict=False))
Angles = list[tuple[float, float]]  # phi and psi of each residue

TURN = [(59.9, -129.3), (-92.7, 19.7)]  # type II'
CAP = [(-76.0, 1.0), (64.0, 32.0), (-64.0, -172.0), (-99.0, 153.0)]  # ends a helix and reverses the chain
CROSSING = [(-132.0, 34.0), (99.0, 24.0), (-68.0, -174.0), (-104.0, 173.0)]  # packs a helix on a strand
# Chi angles in degrees, the most common rotamers first; missing angles are 180.
ROTAMERS: dict[str, list[tuple[float, ...]]] = {
    "D": [(-70, -15), (-177, 0), (62, -10)],
    "E": [(-67, 180, -10), (-177, 180, 0), (-65, -65, -40)],
    "K": [(-67,), (-177,), (-62, -68), (62,)],
    "L": [(-65, 175), (-177, 65)],
    "N": [(-65, -20), (-174, -20), (62, 0)],
    "P": [(28, -36), (-28, 36)],
    "S": [(62,), (-65,), (180,)],
    "T": [(-65,), (62,), (-175,)],
    "V": [(175,), (-60,), (63,)],
}


@dataclass(frozen=True, kw_only=True)
class Peptide:
    """One file: its name, sequence and backbone."""

    name: str
    sequence: str
    angles: Angles


def helix(length: int) -> Angles:
    return [(-63.0, -42.0)] * length


def polyproline(length: int) -> Angles:
    return [(-75.0, 148.0)] * length


def strands(length: int, *angles: tuple[tuple[float, float], tuple[float, float]]) -> Angles:
    """Return antiparallel strands with turns between them; each strand alternates between two pairs of angles.

    Counted from the turn, residues with the first pair form hydrogen bonds with the previous strand.
    """
    torsions: Angles = []
    for index, pair in enumerate(angles):
        row = [pair[place % 2] for place in range(length)]
        torsions += row[::-1] if index == 0 else [*TURN, *row]
    return torsions


# Fitted so that hydrogen bonds between the strands are about 2.9 Å long and no atoms clash.
HAIRPIN = (((-126.1, 124.0), (-121.3, 124.7)), ((-126.9, 132.2), (-122.6, 129.8)))
MEANDER = (((-132.9, 118.6), (-120.8, 122.1)), ((-123.6, 126.0), (-124.0, 125.1)), ((-120.2, 131.8), (-117.9, 126.5)))
PEPTIDES = (
    Peptide(name="helix_short", sequence="SAEEAAKALAEAAKALAAGA", angles=helix(20)),
    Peptide(name="helix_long", sequence="SPEEALKALAEAAKAALAEAAG", angles=helix(22)),
    Peptide(
        name="helical_hairpin",
        sequence="SPEEAAKALAEANGDSAEAAKALAEAAG",
        angles=[*helix(12), *CAP, *helix(12)],
    ),
    Peptide(name="hairpin_short", sequence="TVTVSVTVTGNTVTVSVTVT", angles=strands(9, *HAIRPIN)),
    Peptide(name="hairpin_long", sequence="SVTVSATVTVTGNTVTVSATVTVS", angles=strands(11, *HAIRPIN)),
    Peptide(name="meander", sequence="TVTVSVGNTVSVTVGNTVTVSV", angles=strands(6, *MEANDER)),
    Peptide(
        name="strand_helix",
        sequence="TVTVSVNGDSAEEAAKALAAG",
        angles=[*strands(6, HAIRPIN[0]), *CROSSING, *helix(11)],
    ),
    Peptide(name="polyproline", sequence="GPAPSPAPVPAPSPAPAPPG", angles=polyproline(20)),
)


def backbone(sequence: str, angles: Angles) -> Float[Tensor, "r 3 3"]:
    """Return the positions of N, CA and C of each residue in Å, with trans peptide bonds."""
    atoms: list[Tensor] = []
    psi_before = 0.0
    for letter, (phi, psi) in zip(sequence, angles, strict=True):
        ideal = {name: torch.tensor(at).double() for name, _, *at in IDEAL_ATOMS[THREE_LETTER[letter]]}
        n, c = ideal["N"], ideal["C"]  # CA is at the origin
        if not atoms:
            atoms = [n, torch.zeros(3).double(), c]
        else:
            bond = stereochemistry.C_N_LENGTH_TO_PROLINE if letter == "P" else stereochemistry.C_N_LENGTH
            cosine = float(n @ c / n.norm() / c.norm())
            atoms.append(next_atom(atoms, bond.mean, stereochemistry.CA_C_N_COSINE.mean, psi_before))
            atoms.append(next_atom(atoms, float(n.norm()), stereochemistry.C_N_CA_COSINE.mean, 180.0))
            atoms.append(next_atom(atoms, float(c.norm()), cosine, phi))
        psi_before = psi
    return torch.stack(atoms).unflatten(0, (-1, 3))


def next_atom(chain: list[Tensor], length: float, cosine: float, torsion: float) -> Float[Tensor, "3"]:
    """Return the next atom from its bond length, the cosine of the bond angle, and the torsion in degrees."""
    first, second, third = chain[-3:]
    frame = rigid_from_three_points(second, third, first)  # x continues along the bond, and `first` has y > 0
    sine, turn = math.sqrt(1 - cosine * cosine), math.radians(torsion)
    local = [-cosine, sine * math.cos(turn), sine * math.sin(turn)]
    return frame.apply(length * torch.tensor(local).double())


def with_rotamers(peptide: Peptide) -> list[Float[Tensor, "r 14 3"]]:
    """Return all atoms in several conformers: with the first rotamer of every residue, with the second, and so on."""
    aatype = types(peptide)
    n, ca, c = backbone(peptide.sequence, peptide.angles)[None].unbind(2)
    frames = rigid_from_three_points(2 * ca - c, ca, n)  # C on the x axis
    conformers = []
    for index in range(max(map(len, ROTAMERS.values()))):
        torsions = []
        for letter, (phi, psi) in zip(peptide.sequence, peptide.angles, strict=True):
            rotamers = ROTAMERS.get(letter, [()])
            torsions.append([180.0, phi, psi, *(*rotamers[index % len(rotamers)], *[180.0] * 4)[:4]])
        turns = torch.deg2rad(torch.tensor([torsions]).double())
        groups = rigid_groups_from_torsions(aatype, frames, torch.stack([turns.sin(), turns.cos()], -1))
        conformers.append(atom14_from_rigid_groups(aatype, groups)[0])
    return conformers


def folded(peptide: Peptide) -> Protein:
    """Return the peptide with side chains, each in the rotamer that is furthest from clashes with other atoms."""
    aatype = types(peptide)
    exists = atom14_mask(aatype, torch.ones(aatype.shape))[0] > 0
    choices = with_rotamers(peptide)
    atoms, is_placed = choices[0].clone(), exists.clone()
    is_placed[:, SIDE_CHAIN:] = False
    # Twice, because the first side chains are placed before the later ones exist.
    for residue in [*range(len(atoms))] * 2:
        side_chain, others = exists[residue].clone(), is_placed.clone()
        side_chain[:SIDE_CHAIN] = others[residue] = False
        others[residue, OXYGEN] = True
        tightness = [
            (MIN_CLEARANCE - torch.cdist(choice[residue, side_chain], atoms[others])).clamp(min=0).square().sum()
            for choice in choices[: len(ROTAMERS.get(peptide.sequence[residue], [()]))]
        ]
        atoms[residue] = choices[int(torch.stack(tightness).argmin())][residue]
        is_placed[residue] = exists[residue]

    mask = atom37_mask(aatype, torch.ones(aatype.shape))
    positions = atom14_to_atom37((atoms - atoms[:, 1].mean(0))[None], aatype, mask.double())[0].numpy()
    return Protein(
        aatype=aatype[0].numpy(),
        atom_positions=positions,
        atom_mask=mask[0].numpy(),
        residue_index=np.arange(1, len(peptide.sequence) + 1),
        chain_index=np.zeros(len(peptide.sequence), np.int64),
        b_factors=np.zeros(mask[0].shape),
    )


def types(peptide: Peptide) -> Int[Tensor, "1 r"]:
    return torch.tensor([[residues.RESTYPES.index(letter) for letter in peptide.sequence]])


def main() -> None:
    """Write every peptide next to this file."""
    for peptide in PEPTIDES:
        remark = "An ideal peptide made from torsion angles by helixfold's examples/structures/make.py; no experiment."
        with atomic_write(Path(__file__).with_name(f"{peptide.name}.pdb")) as temporary:
            temporary.write_text(to_pdb(folded(peptide), [remark]), encoding="ascii")


if __name__ == "__main__":
    main()
