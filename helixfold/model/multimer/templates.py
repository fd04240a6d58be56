"""AlphaFold-Multimer's embedding of templates: they see the pair stream, and their average is added to it."""

from functools import partial

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor, nn

from helixfold.batch import Batch, MultimerBatch, with_chains
from helixfold.config import TemplateConfig
from helixfold.geometry.atoms import distogram
from helixfold.geometry.torsions import chis_from_atom37
from helixfold.model.layers import LayerNorm, Linear
from helixfold.model.template_frames import BACKBONE_ATOMS, directions
from helixfold.model.templates import (
    TEMPLATE_BINS,
    TEMPLATE_TYPES,
    TemplateAngleEmbedder,
    TemplatePairBlock,
    template_types,
)
from helixfold.model.update import Executor, Stream, Update
from helixfold.ops.linear import linear
from helixfold.ops.norm_linear import norm_linear
from helixfold.ops.weights import Affine

# Type, sine, cosine and mask of the chi angles.
ANGLE_CHANNELS = TEMPLATE_TYPES + 4 + 4 + 4
# Unit vectors between alpha carbons that are closer than this many Angstrom are shorter than 1 (DeepMind's program).


class MultimerTemplatePairBlock(TemplatePairBlock):
    """One block of the template pair stack, with the triangle multiplications before the attentions."""

    def updates(self) -> tuple[Update, ...]:
        return (
            self.triangle_outgoing,
            self.triangle_incoming,
            self.triangle_starting,
            self.triangle_ending,
            self.pair_transition,
        )


class MultimerTemplatePairEmbedder(nn.Module):
    """Embedding of templates as pair representations, which start from the pair stream (AlphaFold-Multimer).

    Each feature has a map of its own; distances and directions count within a chain only, for each template is of one.
    """

    def __init__(self, config: TemplateConfig, c_z: int) -> None:
        super().__init__()
        into = partial(Linear, c_out=config.c_t, init="relu")
        self.norm_query = LayerNorm(c_z)
        self.distances = into(TEMPLATE_BINS.count)
        self.has_beta = into(1)
        self.column_type, self.row_type = into(TEMPLATE_TYPES), into(TEMPLATE_TYPES)
        self.x, self.y, self.z = into(1), into(1), into(1)
        self.has_backbone = into(1)
        self.query = into(c_z)
        self.blocks = nn.ModuleList(MultimerTemplatePairBlock(config) for _ in range(config.blocks))
        self.norm = LayerNorm(config.c_t)

    def forward(
        self,
        run: Executor,
        batch: MultimerBatch,
        which: slice,
        pair: Float[Stream, "b r r c_z"],
        pair_mask: Float[Tensor, "b r r"],
    ) -> Float[Stream, "b_t r r c_t"]:
        """Return the streams of some templates as one batch; those of a sample follow each other.

        They are without their final layer norm.
        """
        count = which.stop - which.start
        masks = pair_mask if count == 1 else repeat(pair_mask, "b i j -> (b t) i j", t=count)
        templates = run.map_rows(lambda rows, edges: self.first_rows(batch, which, rows, edges), pair)
        for block in self.blocks:
            templates = block(run, templates, masks)
        return templates

    def first_rows(
        self, batch: MultimerBatch, which: slice, rows: slice, pair: Float[Tensor, "b i r c_z"]
    ) -> Float[Tensor, "b_t i r c_t"]:
        """Return some templates' embeddings of the edges from some residues to all, before the blocks."""
        dtype, count = pair.dtype, which.stop - which.start
        maps = (self.distances, self.has_beta, self.x, self.y, self.z, self.has_backbone)
        geometry = Affine(
            torch.cat([each.weight for each in maps], 1), torch.stack([each.bias for each in maps]).sum(0)
        )
        types = template_types(batch, dtype)[:, which].flatten(0, 1)
        query = norm_linear(pair, self.norm_query.affine, self.query.affine)
        return (
            linear(template_geometry(batch, which, rows).to(dtype), geometry)
            + rearrange(self.column_type(types), "b j c -> b 1 j c")
            + rearrange(self.row_type(types[:, rows]), "b i c -> b i 1 c")
            + (query if count == 1 else repeat(query, "b i j c -> (b t) i j c", t=count))
        )


class MultimerTemplateEmbedder(nn.Module):
    """The templates' contributions to both streams: an average in the pair stream, and rows of the MSA."""

    def __init__(self, config: TemplateConfig, c_m: int, c_z: int) -> None:
        super().__init__()
        self.pair = MultimerTemplatePairEmbedder(config, c_z)
        self.out = Linear(config.c_t, c_z, init="relu")
        self.angles = TemplateAngleEmbedder(c_m, ANGLE_CHANNELS)

    def forward(
        self, run: Executor, batch: Batch, pair: Float[Stream, "b r r c_z"], pair_mask: Float[Tensor, "b r r"]
    ) -> Float[Stream, "b r r c_z"]:
        """Return the pair stream plus the average over all template slots, empty ones included.

        Templates are embedded one after the other, or together if the executor says so.
        """
        chains, count = with_chains(batch), batch.template_mask.shape[1]
        together = run.streams_at_once(count, pair.device)
        samples, total = len(pair_mask), None
        for first in range(0, count, together):
            which = slice(first, min(first + together, count))
            streams = self.pair(run, chains, which, pair, pair_mask)
            if total is None:
                make = run.map_rows if together > 1 else run.replace_rows
                total = make(lambda _, rows: self._summed(rows, samples), streams)
            else:
                total = run.replace_rows(lambda _, rows, added: rows + self._summed(added, samples), total, streams)
            # Freed before the next templates are embedded.
            del streams
        if total is None:
            return pair
        return run.replace_rows(lambda _, rows, summed: rows + self.out((summed / count).relu()), pair, total)

    def _summed(self, rows: Float[Tensor, "b_t i r c_t"], samples: int) -> Float[Tensor, "b i r c_t"]:
        """Return the sum of the normalised embeddings of each sample's templates."""
        normed: Tensor = self.pair.norm(rows)
        return normed if len(rows) == samples else normed.unflatten(0, (samples, -1)).sum(1)

    def msa_rows(self, batch: Batch, dtype: torch.dtype) -> tuple[Float[Tensor, "b t r c_m"], Float[Tensor, "b t r"]]:
        """Return the rows to append to the MSA, and their mask: 1 where the template has a chi1 angle."""
        chis = chis_from_atom37(batch.template_aatype, batch.template_all_atom_positions, batch.template_all_atom_masks)
        types = template_types(batch, chis.mask.dtype)
        sine, cosine = (chis.sin_cos * chis.mask[..., None]).unbind(-1)
        features = torch.cat([types, sine, cosine, chis.mask], -1)
        return self.angles(features.to(dtype)), chis.mask[..., 0]


def template_geometry(batch: MultimerBatch, which: slice, rows: slice = slice(None)) -> Float[Tensor, "b_t i r 44"]:
    """Return some templates' geometry of the edges from some residues to all: one-hot distances (39), whether both
    residues have a pseudo-beta atom, the direction (3) and whether both residues have a backbone.

    All are 0 between chains. The direction is the unit vector from one alpha carbon to the other in the first residue's
    frame. The templates of a sample follow each other in the batch dimension.
    """
    positions, masks, beta, has_beta = (
        features[:, which].flatten(0, 1)
        for features in (
            batch.template_all_atom_positions,
            batch.template_all_atom_masks,
            batch.template_pseudo_beta,
            batch.template_pseudo_beta_mask,
        )
    )
    same_chain = repeat(_same_chain(batch, rows), "b i j -> (b t) i j", t=which.stop - which.start)
    backbone = masks[..., BACKBONE_ATOMS].prod(-1)
    beta_mask, backbone_mask = (mask[:, rows, None] * mask[:, None] * same_chain for mask in (has_beta, backbone))
    features = [
        distogram(beta[:, rows], beta, TEMPLATE_BINS) * beta_mask[..., None],
        beta_mask[..., None],
        directions(positions, rows) * backbone_mask[..., None],
        backbone_mask[..., None],
    ]
    return torch.cat(features, -1)


def _same_chain(batch: MultimerBatch, rows: slice) -> Bool[Tensor, "b i j"]:
    return rearrange(batch.asym_id[:, rows], "b i -> b i 1") == rearrange(batch.asym_id, "b j -> b 1 j")
