"""Modules in which AlphaFold-Multimer differs from AlphaFold 2.

These are the embedding of relative positions in a complex, invariant point attention, whose parameters are split
differently, and the embedding of templates, which start from the pair stream and are averaged into it.
"""

from collections.abc import Callable
from functools import partial

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from helixfold.model.batch import Batch, MultimerBatch, with_chains
from helixfold.model.config import StructureConfig, TemplateConfig
from helixfold.model.embedders import MAX_SEPARATION, InputEmbedder, clipped_difference, separations
from helixfold.model.geometry.atoms import distogram
from helixfold.model.geometry.torsions import chis_from_atom37
from helixfold.model.layers import LayerNorm, Linear
from helixfold.model.point_attention import PointAttention, Projections, initial_point_weights
from helixfold.model.template_frames import BACKBONE_ATOMS, directions
from helixfold.model.templates import (
    TEMPLATE_BINS,
    TEMPLATE_TYPES,
    TemplateAngleEmbedder,
    TemplatePairBlock,
    template_types,
)
from helixfold.model.update import Executor, Stream, Update
from helixfold.ops.linear import linear, norm_linear
from helixfold.ops.look_up import look_up
from helixfold.ops.weights import Affine

# Channels of `target_feat`: 20 residue types and unknown. The monomer's first channel, for chain breaks, does not
# exist.
TARGET_CHANNELS = 21
# Differences of the indices of equal chains are clipped to this (DeepMind's config, `max_relative_chain`).
MAX_CHAIN_DIFFERENCE = 2
# Numbers of one-hot classes: separations from -32 to 32 and "another chain"; differences of the indices of equal chains
# from -2 to 2 and "another sequence".
SEPARATIONS, CHAIN_DIFFERENCES = 2 * MAX_SEPARATION + 2, 2 * MAX_CHAIN_DIFFERENCE + 2


class ChainRelativePosition(Linear):
    """Embedding of the separation of two residues within a chain, and of the relation of their chains.

    Evans et al. 2021; `use_chain_relative` in DeepMind's program. The inputs are one-hot separations (66), whether both
    chains have the same sequence (1), and one-hot differences of the indices of equal chains (6).
    """

    def __init__(self, c_z: int) -> None:
        super().__init__(SEPARATIONS + 1 + CHAIN_DIFFERENCES, c_z)

    def edges(self, batch: Batch, rows: slice, dtype: torch.dtype) -> Float[Tensor, "b i j c_z"]:
        """Return the embedded relation of residues i in `rows` to all j; raise TypeError for a batch of monomers."""
        batch = with_chains(batch)
        separation = separations(batch, rows)
        separation = torch.where(_equal(batch.asym_id, rows), separation, SEPARATIONS - 1)
        difference = clipped_difference(batch.sym_id, rows, MAX_CHAIN_DIFFERENCE)
        difference = torch.where(_equal(batch.entity_id, rows), difference, CHAIN_DIFFERENCES - 1)
        by_separation, same_sequence, differences = self.weight.T.split([SEPARATIONS, 1, CHAIN_DIFFERENCES])
        # The last difference is for chains of another sequence.
        chains = differences + pad(same_sequence.expand(CHAIN_DIFFERENCES - 1, -1), (0, 0, 0, 1))
        return look_up((by_separation + self.bias).to(dtype), separation) + look_up(chains.to(dtype), difference)


def multimer_input_embedder(c_m: int, c_z: int) -> InputEmbedder:
    """Return the embedder of the sequences, the sampled MSA and the relative positions of residues in a complex."""
    return InputEmbedder(c_m, c_z, target_channels=TARGET_CHANNELS, relative_position=ChainRelativePosition)


def _equal(values: Int[Tensor, "b j"], rows: slice) -> Tensor:
    """Return whether residues i in `rows` have the same value as each residue j."""
    return rearrange(values[:, rows], "b i -> b i 1") == rearrange(values, "b j -> b 1 j")


# Minimum length of an attended point in the local frame, in the structure module's unit (DeepMind's program).
MIN_LENGTH = 1e-8


class MultimerPointAttention(PointAttention):
    """Invariant point attention with separate maps for queries, keys, values and their points.

    AlphaFold 2, Suppl. Alg. 22, as in DeepMind's program for AlphaFold-Multimer: queries, keys and values have no bias,
    and the outputs of a map to points are ordered by head, axis, point.
    """

    length_floors = (0.0, MIN_LENGTH)

    def __init__(self, config: StructureConfig, c_z: int) -> None:
        super().__init__(config)
        c, h = config.c, config.heads
        self.query, self.key, self.value = (Linear(c, h * config.c_scalar, bias=False) for _ in range(3))
        self.query_points, self.key_points = (Linear(c, 3 * h * config.query_points) for _ in range(2))
        self.value_points = Linear(c, 3 * h * config.value_points)
        self.pair_bias = Linear(c_z, h)
        self.point_weights = initial_point_weights(h)
        self.out = Linear(h * (config.c_scalar + 4 * config.value_points + c_z), c, init="zeros")

    def projections(self, of: Callable[[Linear], Tensor]) -> Projections:
        def points(linear: Linear) -> Tensor:
            return rearrange(of(linear), "(h x p) ... -> x h p ...", h=self.sizes.heads, x=3)

        key_value = [of(linear).unflatten(0, (self.sizes.heads, -1)) for linear in (self.key, self.value)]
        key_value_points = torch.cat([points(self.key_points), points(self.value_points)], 2)
        return Projections(
            query=of(self.query),
            key_value=torch.stack(key_value, 1).flatten(0, 2),
            query_points=points(self.query_points).flatten(0, 2),
            key_value_points=key_value_points.flatten(0, 2),
        )


# Input channels of a template's MSA row: residue type, then sine, cosine and mask of the four chi angles.
ANGLE_CHANNELS = TEMPLATE_TYPES + 4 + 4 + 4


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
    """Embedding of templates as pair representations that start from the pair stream (AlphaFold-Multimer).

    Each feature has its own map, such as `row_type` for the residue type of i in edge ij and `query` for the normalised
    pair stream. Distances and directions count within a chain only, because a template is for one chain, unless the
    batch says that it spans chains.
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
        """Return the streams of the templates in `which` as one batch; the templates of a sample are consecutive.

        The final layer norm `norm` is not applied; `MultimerTemplateEmbedder` applies it.
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
        """Return the initial embeddings of the edges from residues in `rows` to all, for the templates in `which`."""
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
    """Template embedding: an average is added to the pair stream, and torsions become rows of the MSA."""

    def __init__(self, config: TemplateConfig, c_m: int, c_z: int) -> None:
        super().__init__()
        self.pair = MultimerTemplatePairEmbedder(config, c_z)
        self.out = Linear(config.c_t, c_z, init="relu")
        self.angles = TemplateAngleEmbedder(c_m, ANGLE_CHANNELS)

    def forward(
        self, run: Executor, batch: Batch, pair: Float[Stream, "b r r c_z"], pair_mask: Float[Tensor, "b r r"]
    ) -> Float[Stream, "b r r c_z"]:
        """Return the pair stream plus a linear map of the average embedding of all template slots, with empty ones.

        The executor determines how many templates are embedded at a time.
        """
        chains, count = with_chains(batch), batch.template_mask.shape[1]
        together = run.streams_at_once(count, pair.device)
        slots = torch.ones_like(batch.template_mask) if chains.template_slots is None else chains.template_slots
        weights, total = slots / slots.sum(1, keepdim=True), None
        for first in range(0, count, together):
            which = slice(first, min(first + together, count))
            streams = self.pair(run, chains, which, pair, pair_mask)
            mean = partial(self._weighted, weights=weights[:, which])
            if total is None:
                make = run.map_rows if together > 1 else run.replace_rows
                total = make(lambda _, rows, mean=mean: mean(rows), streams)
            else:
                total = run.replace_rows(lambda _, rows, added, mean=mean: rows + mean(added), total, streams)
            # Freed before the next templates are embedded.
            del streams
        if total is None:
            return pair
        return run.replace_rows(lambda _, rows, average: rows + self.out(average.relu()), pair, total)

    def _weighted(
        self, rows: Float[Tensor, "b_t i r c_t"], weights: Float[Tensor, "b t"]
    ) -> Float[Tensor, "b i r c_t"]:
        """Return the weighted sum of the normalised embeddings of each sample's templates."""
        normed: Tensor = self.pair.norm(rows) * rearrange(weights.to(rows.dtype), "b t -> (b t) 1 1 1")
        return normed if weights.shape[1] == 1 else normed.unflatten(0, weights.shape).sum(1)

    def msa_rows(self, batch: Batch, dtype: torch.dtype) -> tuple[Float[Tensor, "b t r c_m"], Float[Tensor, "b t r"]]:
        """Return rows to append to the MSA, and their mask: 1 where the template has a chi1 angle."""
        chis = chis_from_atom37(batch.template_aatype, batch.template_all_atom_positions, batch.template_all_atom_masks)
        types = template_types(batch, chis.mask.dtype)
        sine, cosine = (chis.sin_cos * chis.mask[..., None]).unbind(-1)
        features = torch.cat([types, sine, cosine, chis.mask], -1)
        return self.angles(features.to(dtype)), chis.mask[..., 0]


def template_geometry(batch: MultimerBatch, which: slice, rows: slice = slice(None)) -> Float[Tensor, "b_t i r 44"]:
    """Return geometric features of the edges from residues in `rows` to all, for the templates in `which`.

    They are one-hot distances (39), whether both residues have a pseudo-beta atom, the direction (3) and whether both
    residues have a backbone. All are 0 between chains, unless a template spans them. The direction is the unit vector
    from one alpha carbon to the other in the first residue's frame. The templates of a sample are consecutive in the
    batch dim.
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
    if batch.template_spans_chains is not None:
        # Differs from AlphaFold: there, no template spans chains.
        same_chain = same_chain | rearrange(batch.template_spans_chains[:, which], "b t -> (b t) 1 1")
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
