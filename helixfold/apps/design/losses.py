"""Losses by which designs are judged while they are made, the smaller the better, as in ColabDesign.

A loss is a function from a `DesignPass` to a number for each sample; whoever designs from Python may add others. Those
here have ColabDesign's definitions (`colabdesign.af.loss`), or BindCraft's where they say so, and their constants as
defaults.
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
_LARGEST_ERROR = 31.0
# Added to counts and probabilities (ColabDesign).
_SMALL = 1e-8
# Subtracted from the logits of distances that are not contacts.
_FAR = 1e7
# Factor and power of the number of residues: the radius of gyration of globular proteins in Angstrom (BindCraft).
_GLOBULE = 2.38, 0.365
_CLOSE_ENDS = 7.0  # Angstrom
_GLYCINE, _CA, _CB = RESTYPES.index("G"), ATOM_ORDER["CA"], ATOM_ORDER["CB"]


@dataclass(frozen=True, kw_only=True)
class KnownAtoms:
    """Atoms that a design is to have, in Angstrom, and for which residues; the others are free."""

    positions: Float[Tensor, "b r 37 3"]
    mask: Float[Tensor, "b r 37"]


@dataclass(frozen=True, kw_only=True)
class DesignPass:
    """Values that a loss may read: the network's input and outputs, the sequence, and the kind of each residue.

    `designed` is 1 for residues whose predicted confidence counts (with a binder, its own). `target` is 1 for residues
    to bind, and `hotspots` is 1 for target residues that the binder must touch, if any. `chain_index` is the index of
    each residue's chain.
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
        """Return whether two residues are of one chain."""
        return rearrange(self.chain_index, "b i -> b i 1") == rearrange(self.chain_index, "b j -> b 1 j")

    @property
    def bound(self) -> Float[Tensor, "b r"]:
        """Return the residues that are to be bound: the hotspots if there are any, or the whole target."""
        return torch.where((self.hotspots > 0).any(-1, keepdim=True), self.hotspots, self.target)

    @property
    def offsets(self) -> Int[Tensor, "b i j"]:
        """Return how far residues are apart along the chain."""
        if self.batch.offsets is not None:
            return self.batch.offsets.long()
        numbers = self.batch.residue_index
        return rearrange(numbers, "b i -> b i 1") - rearrange(numbers, "b j -> b 1 j")


Loss = Callable[[DesignPass], Float[Tensor, " b"]]


@dataclass(frozen=True, kw_only=True)
class WeightedLoss:
    """A loss and its weight in the sum that a design makes small; of weight 0 it is only reported."""

    loss: Loss
    weight: float = 1.0


def plddt_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return one minus the mean pLDDT, 0 to 1, of the designed residues."""
    return _mean(1 - plddt(made.outputs.logits.lddt) / 100, made.designed)


def pae_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return the mean predicted aligned error of designed residues and all others, in both directions, by 31 A."""
    return _mean(_errors(made), made.designed[..., None] * made.batch.seq_mask[:, None])


def interface_pae_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return the mean predicted aligned error between designed residues and what they are to bind, the hotspots or the
    whole target, in both directions, by 31 A.
    """
    return _mean(_errors(made), made.designed[..., None] * made.bound[:, None])


def interface_ptm_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return one minus ipTM, 0 to 1 (BindCraft)."""
    scores = tm_of_alignments(_error_logits(made), made.batch.seq_mask, ~made.same_chain)
    return 1 - (scores * made.batch.seq_mask).amax(-1)


def gyration_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return by how many Angstrom the radius of gyration of designed residues exceeds a globular protein's (BindCraft).

    It is an exponential linear unit, above -1 for radii that are smaller.
    """
    alpha, weights = made.outputs.structure.positions[..., _CA, :], made.designed[..., None]
    count = weights.sum(1)
    center = (alpha * weights).sum(1) / count
    squared = ((alpha - center[:, None]).square() * weights).sum((1, 2)) / count[:, 0]
    return elu((squared + _SMALL).sqrt() - _GLOBULE[0] * count[:, 0] ** _GLOBULE[1])


def termini_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return by how many Angstrom the ends of the designed residues are further apart than 7 (BindCraft)."""
    alpha = made.outputs.structure.positions[..., _CA, :]
    numbers = torch.arange(alpha.shape[1], device=alpha.device)
    first = torch.where(made.designed > 0, numbers, alpha.shape[1]).amin(1)
    last = torch.where(made.designed > 0, numbers, -1).amax(1)
    every = torch.arange(len(alpha), device=alpha.device)
    return (torch.linalg.vector_norm(alpha[every, first] - alpha[every, last], dim=-1) - _CLOSE_ENDS).relu()


@dataclass(frozen=True, kw_only=True)
class ContactLoss:
    """Loss of designed residues without contacts in their own chain.

    For each residue, the `contacts` pairs count whose distances are most likely below `cutoff` Å, among pairs at least
    `separation` apart along the chain. The `residues` residues with the lowest loss count. If `is_binary`, the loss is
    minus the logarithm of the probability of a contact, else the cross-entropy to the distances below the cutoff.
    """

    contacts: int = 2
    cutoff: float = 14.0
    separation: int = 9
    is_binary: bool = False
    residues: int | None = None  # None: all

    def __call__(self, made: DesignPass) -> Float[Tensor, " b"]:
        pairs = contact_losses(made.outputs.logits.distogram, self.cutoff, is_binary=self.is_binary)
        counted = made.same_chain & (made.offsets.abs() >= self.separation) & (made.batch.seq_mask[:, None] > 0)
        return _least(_least(pairs, self.contacts, counted), self.residues, made.designed > 0)


@dataclass(frozen=True, kw_only=True)
class InterfaceContactLoss:
    """Loss of a binder without contacts to its target, or of hotspots without contacts to the binder.

    The numbers mean what they mean in `ContactLoss`; the cutoff is the largest distance that the network tells apart.
    """

    contacts: int = 1
    cutoff: float = LAST_DISTANCE
    is_binary: bool = False
    residues: int | None = None

    def __call__(self, made: DesignPass) -> Float[Tensor, " b"]:
        pairs = contact_losses(made.outputs.logits.distogram, self.cutoff, is_binary=self.is_binary)
        rows, columns = made.designed, made.target
        if bool((made.hotspots > 0).any()):
            rows, columns = made.hotspots, made.designed
        counted = (columns[:, None] > 0).expand_as(pairs)
        return _least(_least(pairs, self.contacts, counted), self.residues, rows > 0)


def helix_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return how unlikely residues are within 6 A of the third one after them, as in helices; weigh it below 0 for
    fewer helices.
    """
    pairs = contact_losses(made.outputs.logits.distogram, 6.0, is_binary=True)
    return _mean(pairs, (made.offsets == 3) * outer_mask(made.batch.seq_mask))


def binder_helix_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return the same of pairs of designed residues alone (BindCraft)."""
    pairs = contact_losses(made.outputs.logits.distogram, 6.0, is_binary=True)
    return _mean(pairs, (made.offsets == 3) * made.same_chain * outer_mask(made.designed))


def distogram_loss(made: DesignPass) -> Float[Tensor, " b"]:
    """Return the cross-entropy of the predicted distances to the distances of the known atoms, for fixed backbones.

    Distances are of C-beta atoms, or of C-alpha where the designed residue is glycine. Raise `InputError` for a design
    without known atoms.
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
    """Return how unlikely it is that each pair is closer than `cutoff` Angstrom.

    A bin counts as closer if its lower edge is.
    """
    lower = torch.linspace(FIRST_DISTANCE, LAST_DISTANCE, logits.shape[-1] - 1, device=logits.device)
    close = (torch.cat([lower.new_zeros(1), lower]) < cutoff).to(logits.dtype)
    if is_binary:
        return -(close * logits.softmax(-1) + _SMALL).sum(-1).log()
    wanted = (logits - _FAR * (1 - close)).softmax(-1)
    return -(wanted * logits.log_softmax(-1)).sum(-1)


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
    """Return the weighted sum of all losses of one sample, and each of them."""
    found = {name: each.loss(made).sum() for name, each in losses.items()}
    summed = torch.stack([losses[name].weight * value for name, value in found.items()]).sum()
    return summed, {name: float(value.detach()) for name, value in found.items()}


def _errors(made: DesignPass) -> Float[Tensor, "b i j"]:
    errors = predicted_aligned_error(_error_logits(made))[0] / _LARGEST_ERROR
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
    """Return the mean of the `count` smallest of the values that are counted, 0 if there are none."""
    ordered = values.masked_fill(~counted, math.inf).sort(-1).values
    places = torch.arange(values.shape[-1], device=values.device)
    taken = ordered.isfinite() & (places < (values.shape[-1] if count is None else count))
    return torch.where(taken, ordered, 0.0).sum(-1) / (taken.sum(-1) + _SMALL)
