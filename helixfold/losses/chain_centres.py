"""Loss of the distances between the chains of a complex, which keeps chains from being predicted on top of each other.

It is described for AlphaFold-Multimer and is not in DeepMind's program.
"""

from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.geometry.rigid import length
from helixfold.losses.labels import Labels

_CA = ATOM_ORDER["CA"]
_TOLERANCE = 4.0  # Angstrom by which two centres may be too near
_UNIT = 20.0  # Angstrom that count as an error of 1
# Added to squared distances, so that their roots have a gradient where two centres coincide, and to counts.
_SMALL_DISTANCE, _COUNT_FLOOR = 1e-10, 1e-8


def centre_of_mass_loss(
    positions: Float[Tensor, "b r 37 3"], labels: Labels, asym_id: Int[Tensor, "b r"]
) -> Float[Tensor, " b"]:
    """Return the mean over pairs of chains of how much nearer than in the truth their centres are, squared.

    A centre is the mean of a chain's observed C-alphas. Centres that are at most 4 Angstrom too near, or too far apart,
    cost nothing; beyond, an error counts in units of 20 Angstrom. A complex of one chain has a loss of 0.
    AlphaFold-Multimer (Evans et al. 2022), Sec. 2.5, Eq. 1.
    """
    mask = labels.all_atom_mask[..., _CA]
    same_chain = asym_id[:, :, None] == asym_id[:, None, :]
    members = same_chain * rearrange(mask, "b j -> b 1 j")
    sizes = members.sum(-1).clamp(min=1)

    def distances(points: Float[Tensor, "b r 37 3"]) -> Float[Tensor, "b r r"]:
        # The centre of each residue's chain, and the distances of all of these.
        centres = members @ points[..., _CA, :] / sizes[..., None]
        return length(centres[:, :, None] - centres[:, None], _SMALL_DISTANCE**0.5)

    excess = (distances(positions) - distances(labels.all_atom_positions) + _TOLERANCE) / _UNIT
    # So that a pair of chains counts once however many residues they have.
    weight = mask / sizes
    counted = ~same_chain * rearrange(weight, "b i -> b i 1") * rearrange(weight, "b j -> b 1 j")
    return (counted * excess.clamp(max=0).square()).sum((1, 2)) / (counted.sum((1, 2)) + _COUNT_FLOOR)
