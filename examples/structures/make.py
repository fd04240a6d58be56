"""Make the structures beside this file: ideal peptides, built from torsion angles alone, to try training with.

    python examples/structures/make.py

No experiment and no program's prediction is in them: textbook helices, strands and turns (degrees below), ideal bonds,
angles and side chains. Running this again writes the same files.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_pipeline import residues, stereochemistry
from data_pipeline.files import replacing
from data_pipeline.protein import Protein
from helixfold.geometry.atoms import (
    atom14_from_rigid_groups,
    atom14_mask,
    atom14_to_atom37,
    atom37_mask,
    rigid_groups_from_torsions,
)
from helixfold.geometry.rigid import rigid_from_three_points
from helixfold.geometry.tables import per_residue
from helixfold.write.pdb import to_pdb

SIDE_CHAIN = 5  # slots of atom14 from here on turn with the rotamer
CLEAR = 3.6  # Angstrom that side chains keep from other atoms where they can

Angles = list[tuple[float, float]]  # phi and psi of each residue

TURN = [(51.0, -131.0), (-94.0, 12.0)]  # type II'
CAP = [(-76.0, 1.0), (64.0, 32.0), (-64.0, -172.0), (-99.0, 153.0)]  # ends a helix, and turns back
# The common ones first; the angles after these are 180.
ROTAMERS: dict[str, list[tuple[float, ...]]] = {
    "D": [(-70, -15), (-177, 0), (62, -10)],
    "E": [(-67, 180, -10), (-177, 180, 0), (-65, -65, -40)],
    "I": [(-65, 170), (-57, -60), (62, 170)],
    "K": [(-67,), (-177,), (-62, -68), (62,)],
    "L": [(-65, 175), (-177, 65)],
    "N": [(-65, -20), (-174, -20), (62, 0)],
    "P": [(28, -36), (-28, 36)],
    "Q": [(-67, 180, -25), (-177, 180, 0), (-65, -65, -40)],
    "R": [(-67,), (-177,), (62,)],
    "S": [(62,), (-65,), (180,)],
    "T": [(-65,), (62,), (-175,)],
    "V": [(175,), (-60,), (63,)],
    "Y": [(-65, -85), (-177, 80), (62, 90)],
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
    """Antiparallel strands with turns between them; in each, residues at the turn and every other have the first angles.

    Those form hydrogen bonds with the strand before.
    """
    found: Angles = []
    for number, pair in enumerate(angles):
        row = [pair[place % 2] for place in range(length)]
        found += row[::-1] if number == 0 else [*TURN, *row]
    return found


HAIRPIN = (((-121.0, 126.0), (-127.0, 129.0)), ((-124.0, 128.0), (-119.0, 134.0)))
MEANDER = (((-134.0, 125.0), (-118.0, 120.0)), ((-123.0, 124.0), (-126.0, 133.0)), ((-120.0, 132.0), (-117.0, 129.0)))
PEPTIDES = (
    Peptide(name="helix_short", sequence="SAEEAAKALAEAAKALAAGA", angles=helix(20)),
    Peptide(name="helix_long", sequence="SPEEALKALAEAAKAALAEAAKALAG", angles=helix(26)),
    Peptide(
        name="helical_hairpin",
        sequence="SPEEAAKALAEAANGDSAEAAAKALAEAAG",
        angles=[*helix(13), *CAP, *helix(13)],
    ),
    Peptide(name="hairpin_short", sequence="TVTVSVTVTGNTVTVSVTVT", angles=strands(9, *HAIRPIN)),
    Peptide(name="hairpin_long", sequence="SVTVSATVTVTGNTVTVSATVTVS", angles=strands(11, *HAIRPIN)),
    Peptide(name="meander", sequence="TVTVSVGNTVSVTVGNTVTVSV", angles=strands(6, *MEANDER)),
    Peptide(name="polyproline", sequence="GPAPSPAPVPAPSPAPAPPG", angles=polyproline(20)),
)


def backbone(sequence: str, angles: Angles) -> Tensor:
    """N, CA and C of each residue (r 3 3), every peptide bond trans."""
    atoms: list[Tensor] = []
    psi_before = 0.0
    for letter, (phi, psi) in zip(sequence, angles, strict=True):
        ideal = {name: torch.tensor(at).double() for name, _, *at in residues.IDEAL_ATOMS[three_letter(letter)]}
        n, c = ideal["N"], ideal["C"]  # CA is at the origin
        if not atoms:
            atoms = [n, torch.zeros(3).double(), c]
        else:
            bond = stereochemistry.C_N_LENGTH_TO_PROLINE if letter == "P" else stereochemistry.C_N_LENGTH
            cosine = float(n @ c / n.norm() / c.norm())
            atoms.append(next_atom(*atoms[-3:], bond.mean, stereochemistry.CA_C_N_COSINE.mean, psi_before))
            atoms.append(next_atom(*atoms[-3:], float(n.norm()), stereochemistry.C_N_CA_COSINE.mean, 180.0))
            atoms.append(next_atom(*atoms[-3:], float(c.norm()), cosine, phi))
        psi_before = psi
    return torch.stack(atoms).unflatten(0, (-1, 3))


def next_atom(first: Tensor, second: Tensor, third: Tensor, length: float, cosine: float, torsion: float) -> Tensor:
    """The atom bonded to `third`, from its bond's length, the angle's cosine, and the torsion angle in degrees."""
    frame = rigid_from_three_points(second, third, first)  # x goes on along the bond, `first` is on the side of y
    sine, turn = math.sqrt(1 - cosine * cosine), math.radians(torsion)
    local = [-cosine, sine * math.cos(turn), sine * math.sin(turn)]
    return frame.apply(length * torch.tensor(local).double())


def all_atoms(peptide: Peptide) -> Protein:
    """The peptide with side chains; each takes the first of its rotamers that keeps most clear of all before it."""
    aatype = torch.tensor([[residues.RESTYPES.index(letter) for letter in peptide.sequence]])
    n, ca, c = backbone(peptide.sequence, peptide.angles)[None].unbind(2)
    frames = rigid_from_three_points(2 * ca - c, ca, n)  # C on the x axis
    exists = atom14_mask(aatype, torch.ones(aatype.shape))[0] > 0
    rotamers = [ROTAMERS.get(letter, [()]) for letter in peptide.sequence]

    choices = []
    for number in range(max(map(len, rotamers))):
        chis = [(*choice[number % len(choice)], 180.0, 180.0, 180.0, 180.0)[:4] for choice in rotamers]
        degrees = [[180.0, *angles, *chi] for angles, chi in zip(peptide.angles, chis, strict=True)]
        turns = torch.deg2rad(torch.tensor([degrees]).double())
        groups = rigid_groups_from_torsions(aatype, frames, torch.stack([turns.sin(), turns.cos()], -1))
        choices.append(atom14_from_rigid_groups(aatype, groups)[0])

    atoms, is_placed = choices[0].clone(), exists.clone()
    is_placed[:, SIDE_CHAIN:] = False
    for residue, options in enumerate(rotamers):
        side_chain = exists[residue].clone()
        side_chain[:SIDE_CHAIN] = False
        others = is_placed.clone()
        others[residue] = False
        tightness = [
            (CLEAR - torch.cdist(choice[residue, side_chain], atoms[others])).clamp(min=0).square().sum()
            for choice in choices[: len(options)]
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


def three_letter(letter: str) -> str:
    return residues.THREE_LETTER[residues.RESTYPES.index(letter)]


def main() -> None:
    """Write every peptide beside this file."""
    for peptide in PEPTIDES:
        remark = "An ideal peptide made from torsion angles by helixfold's examples/structures/make.py; no experiment."
        with replacing(Path(__file__).with_name(f"{peptide.name}.pdb")) as temporary:
            temporary.write_text(to_pdb(all_atoms(peptide), [remark]), encoding="ascii")


if __name__ == "__main__":
    main()
