"""Losses that a design minimises, as in ColabDesign.

A loss is a function from a `DesignPass` to a number for each sample; Python programs may add others. The losses here
have ColabDesign's definitions and constants (`colabdesign.af.loss`), or BindCraft's where it is named. `LOSSES` has
them by the names of the option --loss.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import elu, one_hot

from data_pipeline.io.errors import InputError
from data_pipeline.residues import ATOM_ORDER, RESTYPES
from helixfold.apps.design.sequence import DesignedSequence
from helixfold.model.batch import Batch
from helixfold.model.confidence import plddt, predicted_aligned_error, tm_of_alignments
from helixfold.model.evoformer import outer_mask
from helixfold.model.geometry.atoms import pseudo_beta
from helixfold.model.heads import FIRST_DISTANCE, LAST_DISTANCE
from helixfold.model.outputs import Outputs

# Angstrom by which predicted errors are divided, so that the loss is about 0 to 1.
_ERROR_SCALE = 31.0
# Added to counts and probabilities (ColabDesign).
_SMALL = 1e-8
# Subtracted from the logits of distances that are not contacts.
_FAR_PENALTY = 1e7
# Factor and power of the number of residues: the radius of gyration of globular proteins in Angstrom (BindCraft).
_GLOBULE_RADIUS = 2.38, 0.365
_MAX_ENDS_DISTANCE = 7.0  # Angstrom
_GLYCINE, _CA, _CB = RESTYPES.index("G"), ATOM_ORDER["CA"], ATOM_ORDER["CB"]


@dataclass(frozen=True, kw_only=True)
class KnownAtoms:
    """Atoms that a design should have: positions in Å, and a mask that is 1 for these atoms; all others are free."""

    positions: Float[Tensor, "b r 37 3"]
    mask: Float[Tensor, "b r 37"]


@dataclass(frozen=True, kw_only=True)
class DesignPass:
    """Values that a loss may read, from one forward pass: the network's input and outputs, sequence and masks.

    `designed` is 1 for residues whose confidence and contacts count; in a design of a binder, they are the binder's.
    `target` is 1 for residues to bind, and `hotspots` is 1 for target residues that the binder should touch, if any.
    `chain_index` is the index of each residue's chain. `known` are the atoms that the design should have, if any.
    """

    outputs: Outputs
    batch: Batch
    sequence: DesignedSequence
    designed: Float[Tensor, "b r"]
    target: Float[Tensor, "b r"]
    hotspots: Float[Tensor, "b r"]
    chain_index: Int[Tensor, "b r"]
    known: KnownAtoms | None = None

    @property
    def same_chain(self) -> Bool[Tensor, "b i j"]:
        """Return, for each pair of residues, whether they are in the same chain."""
        return rearrange(self.chain_index, "b i -> b i 1") == rearrange(self.chain_index, "b j -> b 1 j")

    @property
    def bound(self) -> Float[Tensor, "b r"]:
        """Return a mask of the residues to bind: the hotspots if a sample has any, otherwise the whole target."""
        return torch.where((self.hotspots > 0).any(-1, keepdim=True), self.hotspots, self.target)

    @property
    def offsets(self) -> Int[Tensor, "b i j"]:
        """Return the residue number of i minus the residue number of j, or the batch's own offsets (cyclic chains)."""
        if self.batch.offsets is not None:
            return self.batch.offsets.long()
        numbers = self.batch.residue_index
        return rearrange(numbers, "b i -> b i 1") - rearrange(numbers, "b j -> b 1 j")


# A function that returns the loss of each sample; the smaller, the better.
Loss = Callable[[DesignPass], Float[Tensor, " b"]]


@dataclass(frozen=True, kw_only=True)
class WeightedLoss:
    """A loss and its weight in the sum that a design minimises; a loss of weight 0 is only reported."""

    loss: Loss
    weight: float = 1.0


def plddt_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return 1 minus the mean pLDDT (as 0 to 1) of the designed residues."""
    return _mean(1 - plddt(made.outputs.logits.lddt) / 100, made.designed)


def pae_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return the mean predicted aligned error between designed residues and all residues, divided by 31 Å.

    The pairs include pairs of designed residues. Both directions of each pair are averaged.
    """
    return _mean(_errors(made), made.designed[..., None] * made.batch.seq_mask[:, None])


def interface_pae_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return the mean predicted aligned error between designed residues and residues to bind, divided by 31 Å.

    Residues to bind are the hotspots, or the whole target without hotspots. Both directions of each pair are averaged.
    """
    return _mean(_errors(made), made.designed[..., None] * made.bound[:, None])


def interface_ptm_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return 1 minus the predicted ipTM of all chains, 0 to 1 (BindCraft)."""
    scores = tm_of_alignments(_error_logits(made), made.batch.seq_mask, ~made.same_chain)
    return 1 - (scores * made.batch.seq_mask).amax(-1)


def gyration_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return by how many Å the radius of gyration of designed residues exceeds a globular protein's (BindCraft).

    The radius is of C-alpha atoms. For a smaller radius, the loss is negative, but above -1 (an exponential linear
    unit of the difference).
    """
    alpha, weights = made.outputs.structure.positions[..., _CA, :], made.designed[..., None]
    count = weights.sum(1)
    center = (alpha * weights).sum(1) / count
    squared = ((alpha - center[:, None]).square() * weights).sum((1, 2)) / count[:, 0]
    return elu((squared + _SMALL).sqrt() - _GLOBULE_RADIUS[0] * count[:, 0] ** _GLOBULE_RADIUS[1])


def termini_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return by how many Å the distance of the ends of the designed residues exceeds 7 Å, or 0 (BindCraft).

    The ends are the C-alpha atoms of the first and last designed residue.
    """
    alpha = made.outputs.structure.positions[..., _CA, :]
    numbers = torch.arange(alpha.shape[1], device=alpha.device)
    first = torch.where(made.designed > 0, numbers, alpha.shape[1]).amin(1)
    last = torch.where(made.designed > 0, numbers, -1).amax(1)
    every = torch.arange(len(alpha), device=alpha.device)
    return (torch.linalg.vector_norm(alpha[every, first] - alpha[every, last], dim=-1) - _MAX_ENDS_DISTANCE).relu()


@dataclass(frozen=True, kw_only=True)
class ContactLoss:
    """Loss that is small if designed residues have contacts within their own chain.

    A contact is a distance below `cutoff` Å to a residue at least `separation` residues away along the chain. For each
    designed residue, the loss is the mean over its `contacts` most probable contacts. The result is the mean over the
    `residues` designed residues with the lowest loss. See `contact_losses` for `is_binary`.
    """

    contacts: int = 2
    cutoff: float = 14.0
    separation: int = 9
    is_binary: bool = False
    residues: int | None = None  # None: all

    def __call__(self, made: DesignPass) -> Float[Tensor, " b"]:
        """Return the loss of each sample."""
        pairs = contact_losses(made.outputs.logits.distogram, self.cutoff, is_binary=self.is_binary)
        counted = made.same_chain & (made.offsets.abs() >= self.separation) & (made.batch.seq_mask[:, None] > 0)
        return _least(_least(pairs, self.contacts, counted), self.residues, made.designed > 0)


@dataclass(frozen=True, kw_only=True)
class InterfaceContactLoss:
    """Loss that is small if a binder's residues have contacts to the target or, with hotspots, these to the binder.

    The fields have the same meaning as in `ContactLoss`. With hotspots, `residues` counts hotspots instead of designed
    residues. The default cutoff is the last edge of the distogram's bins.
    """

    contacts: int = 1
    cutoff: float = LAST_DISTANCE
    is_binary: bool = False
    residues: int | None = None  # None: all

    def __call__(self, made: DesignPass) -> Float[Tensor, " b"]:
        """Return the loss of each sample."""
        pairs = contact_losses(made.outputs.logits.distogram, self.cutoff, is_binary=self.is_binary)
        rows, columns = made.designed, made.target
        if bool((made.hotspots > 0).any()):
            rows, columns = made.hotspots, made.designed
        counted = (columns[:, None] > 0).expand_as(pairs)
        return _least(_least(pairs, self.contacts, counted), self.residues, rows > 0)


def helix_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return the mean loss of contacts below 6 Å between residues whose numbers differ by 3, as in helices.

    The loss of a contact is minus the logarithm of its probability. Residues of all chains count. A positive weight
    favours helices, and a negative weight avoids them.
    """
    pairs = contact_losses(made.outputs.logits.distogram, 6.0, is_binary=True)
    return _mean(pairs, (made.offsets == 3) * outer_mask(made.batch.seq_mask))


def binder_helix_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return the same as `helix_loss`, but only for pairs of designed residues in one chain (BindCraft)."""
    pairs = contact_losses(made.outputs.logits.distogram, 6.0, is_binary=True)
    return _mean(pairs, (made.offsets == 3) * made.same_chain * outer_mask(made.designed))


def distogram_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return the mean cross-entropy between the predicted distogram and the distances of the known atoms.

    Distances are between C-beta atoms, or C-alpha where the designed residue is glycine. Pairs without known atoms do
    not count. Raise `InputError` for a design without known atoms.
    """
    if made.known is None:
        raise InputError("the loss dgram needs atoms that the design is to have; leave it out, or give a structure")
    logits, known, aatype = made.outputs.logits.distogram, made.known, made.batch.aatype
    beta = pseudo_beta(aatype, known.positions)
    has_beta = torch.where(aatype == _GLYCINE, known.mask[..., _CA], known.mask[..., _CB])
    squared = (beta[:, :, None] - beta[:, None]).square().sum(-1, keepdim=True)
    edges = torch.linspace(FIRST_DISTANCE, LAST_DISTANCE, logits.shape[-1] - 1, device=logits.device).to(logits.dtype)
    true = one_hot((squared > edges.square()).sum(-1), logits.shape[-1]).to(logits.dtype)
    losses = -(true * logits.log_softmax(-1)).sum(-1)
    return _mean(losses, outer_mask(has_beta * made.batch.seq_mask))


def contact_losses(logits: Float[Tensor, "b i j v"], cutoff: float, *, is_binary: bool) -> Float[Tensor, "b i j"]:
    """Return a loss for each pair of residues that is small if the distogram predicts a distance below `cutoff` Å.

    With `is_binary`, it is minus the logarithm of the probability of such a distance. Otherwise it is the cross-entropy
    to the same distogram limited to such distances. Bins count if their lower edge is below the cutoff.
    """
    lower = torch.linspace(FIRST_DISTANCE, LAST_DISTANCE, logits.shape[-1] - 1, device=logits.device)
    close = (torch.cat([lower.new_zeros(1), lower]) < cutoff).to(logits.dtype)
    if is_binary:
        return -(close * logits.softmax(-1) + _SMALL).sum(-1).log()
    contact_distogram = (logits - _FAR_PENALTY * (1 - close)).softmax(-1)
    return -(contact_distogram * logits.log_softmax(-1)).sum(-1)


# The losses by the names of the option --loss.
LOSSES: dict[str, Loss] = {
    "plddt": plddt_loss,
    "pae": pae_loss,
    "i_pae": interface_pae_loss,
    "con": ContactLoss(),
    "i_con": InterfaceContactLoss(),
    "i_ptm": interface_ptm_loss,
    "rg": gyration_loss,
    "termini": termini_loss,
    "helix": helix_loss,
    "dgram": distogram_loss,
}


def total(losses: dict[str, WeightedLoss], made: DesignPass) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """Return the weighted sum of all losses, with gradients, and the value of each loss by name, without its weight.

    `made` is a pass of a single sample.
    """
    values = {name: each.loss(made).sum() for name, each in losses.items()}
    summed = torch.stack([losses[name].weight * value for name, value in values.items()]).sum()
    return summed, {name: float(value.detach()) for name, value in values.items()}


def _errors(made: DesignPass) -> Float[Tensor, "b i j"]:
    errors = predicted_aligned_error(_error_logits(made))[0] / _ERROR_SCALE
    return (errors + errors.mT) / 2


def _error_logits(made: DesignPass) -> Float[Tensor, "b i j v"]:
    logits = made.outputs.logits.aligned_error
    if logits is None:
        raise InputError(
            "this model predicts no aligned errors; leave the losses pae, i_pae and i_ptm out, or take another"
        )
    return logits


def _mean(values: Float[Tensor, "b *n"], weights: Float[Tensor, "b *n"]) -> Float[Tensor, " b"]:
    return (values * weights).flatten(1).sum(1) / (weights.flatten(1).sum(1) + _SMALL)


def _least(values: Float[Tensor, "*b n"], count: int | None, counted: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
    """Return the mean of the `count` smallest values (None: all) where `counted` is true, or 0 without any."""
    ordered = values.masked_fill(~counted, math.inf).sort(-1).values
    places = torch.arange(values.shape[-1], device=values.device)
    taken = ordered.isfinite() & (places < (values.shape[-1] if count is None else count))
    return torch.where(taken, ordered, 0.0).sum(-1) / (taken.sum(-1) + _SMALL)
