"""Torsion angles of residues, computed from atom positions."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline import residues
from helixfold.model.geometry.rigid import rigid_from_three_points, unit
from helixfold.model.geometry.tables import per_residue

_CA, _C, _N, _O = (residues.ATOM_ORDER[name] for name in ("CA", "C", "N", "O"))


@dataclass(frozen=True, kw_only=True)
class Torsions:
    """Sine and cosine of pre-omega, phi, psi and chi1 to chi4, or of the last four.

    In `alternative_sin_cos`, 180 degrees are added to the chi angles of symmetric groups. `mask` is 1 where the residue
    has the torsion and its four atoms are observed.
    """

    sin_cos: Float[Tensor, "*batch r n 2"]
    alternative_sin_cos: Float[Tensor, "*batch r n 2"]
    mask: Float[Tensor, "*batch r n"]


def torsions_from_atom37(
    aatype: Int[Tensor, "*batch r"], positions: Float[Tensor, "*batch r 37 3"], mask: Float[Tensor, "*batch r 37"]
) -> Torsions:
    """Return all seven torsions of every residue (AlphaFold 2, Suppl. Table 2), with mask 0 where atoms are missing.

    Where the mask is 0 the angles are computed from atoms at the origin. AlphaFold's template features contain these
    angles, too: the phi after a gap depends on the position of the template in space.
    """
    before = (
        torch.nn.functional.pad(positions, (0, 0, 0, 0, 1, 0))[..., :-1, :, :],
        torch.nn.functional.pad(mask, (0, 0, 1, 0))[..., :-1, :],
    )
    this = (positions, mask)
    backbone = (
        ((before, _CA), (before, _C), (this, _N), (this, _CA)),
        ((before, _C), (this, _N), (this, _CA), (this, _C)),
        ((this, _N), (this, _CA), (this, _C), (this, _O)),
    )
    quadruples = [torch.stack([points[..., index, :] for (points, _), index in atoms], -2) for atoms in backbone]
    masks = [torch.stack([present[..., index] for (_, present), index in atoms], -1).prod(-1) for atoms in backbone]
    chi_atoms, chi_mask, chi_sign = _chis(aatype, *this)
    before_psi, psi, chis = _sin_cos(torch.cat([torch.stack(quadruples, -3), chi_atoms], -3)).split([2, 1, 4], -2)
    # Psi is measured to the oxygen, which lies opposite to the next nitrogen.
    sin_cos = torch.cat([before_psi, -psi, chis], -2)
    sign = torch.cat([chi_sign.new_ones(*aatype.shape, 3), chi_sign], -1)
    return Torsions(
        sin_cos=sin_cos,
        alternative_sin_cos=sin_cos * sign[..., None],
        mask=torch.cat([torch.stack(masks, -1), chi_mask], -1),
    )


def chis_from_atom37(
    aatype: Int[Tensor, "*batch r"], positions: Float[Tensor, "*batch r 37 3"], mask: Float[Tensor, "*batch r 37"]
) -> Torsions:
    """Return the chi angles of every residue, with mask 0 where atoms are missing."""
    atoms, chi_mask, sign = _chis(aatype, positions, mask)
    sin_cos = _sin_cos(atoms)
    return Torsions(sin_cos=sin_cos, alternative_sin_cos=sin_cos * sign[..., None], mask=chi_mask)


def _chis(
    aatype: Int[Tensor, "*batch r"], positions: Float[Tensor, "*batch r 37 3"], mask: Float[Tensor, "*batch r 37"]
) -> tuple[Float[Tensor, "*batch r 4 4 3"], Float[Tensor, "*batch r 4"], Float[Tensor, "*batch r 4"]]:
    """Return the four atoms of each chi angle, whether it is defined, and -1 if it is symmetric, else 1."""
    # Gaps in templates have residue type 21; like unknown residues they have no atoms.
    aatype = aatype.clamp(max=residues.RESTYPES_WITH_X.index("X"))
    atoms = per_residue("CHI_ATOM_INDICES", aatype).flatten(-2)
    points = positions.gather(-2, atoms[..., None].expand(*atoms.shape, 3)).unflatten(-2, (4, 4))
    observed = mask.gather(-1, atoms).unflatten(-1, (4, 4)).prod(-1)
    exists, symmetric = (per_residue(name, aatype, mask.dtype) for name in ("CHI_ANGLES_MASK", "CHI_PI_PERIODIC"))
    return points, exists * observed, 1 - 2 * symmetric


def _sin_cos(atoms: Float[Tensor, "*batch r n 4 3"]) -> Float[Tensor, "*batch r n 2"]:
    """Return sine and cosine of torsions, each of four atoms."""
    frame = rigid_from_three_points(atoms[..., 1, :], atoms[..., 2, :], atoms[..., 0, :])
    return unit(frame.invert_apply(atoms[..., 3, :])[..., 1:].flip(-1))
