"""Ideal backbones built from torsion angles."""

from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline.residues import RESTYPES
from data_pipeline.stereochemistry import C_N_CA_COSINE, C_N_LENGTH, C_N_LENGTH_TO_PROLINE, CA_C_N_COSINE
from helixfold.geometry.rigid import Rigid, rigid_from_three_points
from helixfold.geometry.tables import per_residue

_N, _C = 0, 2  # of atom14
_PROLINE = RESTYPES.index("P")


def backbone_from_torsions(aatype: Int[Tensor, "b r"], phi: Float[Tensor, "b r"], psi: Float[Tensor, "b r"]) -> Rigid:
    """Return backbone frames (b r) of chains with ideal bonds and angles and trans peptide bonds; torsions in radians.

    Residue types are 0 to 19. The first residue is at the origin; its phi and the last residue's psi have no effect.
    """
    atoms = per_residue("ATOM14_RIGID_GROUP_POSITIONS", aatype, phi.dtype)
    step = _next_frames(atoms, phi, psi, aatype)
    first = Rigid(rotation=torch.eye(3).to(phi).expand(len(phi), 3, 3), translation=atoms.new_zeros(len(phi), 3))
    steps = (step[:, residue] for residue in range(aatype.shape[1] - 1))
    chain = list(accumulate(steps, Rigid.compose, initial=first))
    return Rigid(
        rotation=torch.stack([frame.rotation for frame in chain], 1),
        translation=torch.stack([frame.translation for frame in chain], 1),
    )


def _next_frames(
    atoms: Float[Tensor, "b r 14 3"], phi: Float[Tensor, "b r"], psi: Float[Tensor, "b r"], aatype: Int[Tensor, "b r"]
) -> Rigid:
    """Return the frame of each residue but the first, relative to the residue before it."""
    n, c = atoms[:, :-1, _N], atoms[:, :-1, _C]
    next_n, next_c = atoms[:, 1:, _N], atoms[:, 1:, _C]
    ca = torch.zeros_like(n)
    to_proline = aatype[:, 1:] == _PROLINE
    bond = torch.where(to_proline, C_N_LENGTH_TO_PROLINE.mean, C_N_LENGTH.mean).to(phi)
    to_ca, to_c = next_n.norm(dim=-1), next_c.norm(dim=-1)
    n_ca_c_cosine = (next_n * next_c).sum(-1) / (to_ca * to_c)
    trans = torch.full_like(bond, torch.pi)
    # From here on the next residue's atoms are in this residue's frame.
    next_n = _bonded((n, ca, c), bond, torch.full_like(bond, CA_C_N_COSINE.mean), psi[:, :-1])
    next_ca = _bonded((ca, c, next_n), to_ca, torch.full_like(bond, C_N_CA_COSINE.mean), trans)
    next_c = _bonded((c, next_n, next_ca), to_c, n_ca_c_cosine, phi[:, 1:])
    # C of the residue lies on its x axis.
    return rigid_from_three_points(2 * next_ca - next_c, next_ca, next_n)


def _bonded(
    chain: tuple[Float[Tensor, "b r 3"], ...],
    length: Float[Tensor, "b r"],
    cosine: Float[Tensor, "b r"],
    torsion: Float[Tensor, "b r"],
) -> Float[Tensor, "b r 3"]:
    """Return the atom bonded to the last of three atoms, from its bond length, bond angle and torsion."""
    first, second, third = chain
    frame = rigid_from_three_points(second, third, first)  # x along the bond from `second`, `first` at positive y
    sine = (1 - cosine.square()).sqrt()
    return frame.apply(length[..., None] * torch.stack([-cosine, sine * torsion.cos(), sine * torsion.sin()], -1))
