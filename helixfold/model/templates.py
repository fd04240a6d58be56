"""Embedding of templates: distances update the pair stream, and torsions become rows of the MSA."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.model.batch import Batch
from helixfold.model.config import TemplateConfig
from helixfold.model.geometry.atoms import DistanceBins, distogram
from helixfold.model.geometry.torsions import torsions_from_atom37
from helixfold.model.layers import LayerNorm, Linear, ToHeads, Transition
from helixfold.model.template_frames import BACKBONE_ATOMS, directions
from helixfold.model.triangle import TriangleAttention, TriangleMultiplication
from helixfold.model.update import Executor, Stream, Update
from helixfold.ops.linear import norm_linear
from helixfold.ops.precision import to_float32
from helixfold.ops.weights import Affine

# Bins of the distances between pseudo-beta atoms of a template, and its number of residue types (DeepMind's config): 39
# bins whose lower edges are from 3.25 to 50.75 Angstrom; 20 residue types, unknown and gap.
TEMPLATE_BINS = DistanceBins(first=3.25, last=50.75, count=39)
TEMPLATE_TYPES = 22
# Input channels of a template's edge: distances, mask, types of both residues, unit vector and backbone mask (Suppl.
# Table 1, template_pair_feat).
PAIR_CHANNELS = TEMPLATE_BINS.count + 1 + 2 * TEMPLATE_TYPES + 3 + 1
# Input channels of a residue in a template's MSA row: type, torsions, alternative torsions and torsion mask (Suppl.
# Table 1, template_angle_feat).
ANGLE_CHANNELS = TEMPLATE_TYPES + 14 + 14 + 7
# Index of psi among the seven torsions, whose mask is the MSA mask of a template row.
PSI = 2


class TemplatePairBlock(nn.Module):
    """One block of the template pair stack (AlphaFold 2, Suppl. Alg. 16)."""

    def __init__(self, config: TemplateConfig) -> None:
        super().__init__()
        c, dropout = config.c_t, config.pair_dropout
        self.triangle_starting = TriangleAttention(c, config.pair_heads, "rows", dropout)
        self.triangle_ending = TriangleAttention(c, config.pair_heads, "columns", dropout)
        self.triangle_outgoing = TriangleMultiplication(c, config.c_triangle, "rows", dropout)
        self.triangle_incoming = TriangleMultiplication(c, config.c_triangle, "columns", dropout)
        self.pair_transition = Transition(c, config.transition_factor)

    def forward(
        self, run: Executor, pair: Float[Stream, "b r r c_t"], mask: Float[Tensor, "b r r"]
    ) -> Float[Stream, "b r r c_t"]:
        """Return the template's pair stream after all updates of the block."""
        for update in self.updates():
            pair = run(update, pair, mask)
        return pair

    def updates(self) -> tuple[Update, ...]:
        """Return the block's updates in order."""
        return (
            self.triangle_starting,
            self.triangle_ending,
            self.triangle_outgoing,
            self.triangle_incoming,
            self.pair_transition,
        )


class TemplatePairEmbedder(nn.Module):
    """Embedding of templates as pair representations (AlphaFold 2, Suppl. Alg. 2 lines 9 to 11)."""

    def __init__(self, config: TemplateConfig) -> None:
        super().__init__()
        self.unit_vectors = config.unit_vectors
        self.linear = Linear(PAIR_CHANNELS, config.c_t, init="relu")
        self.blocks = nn.ModuleList(TemplatePairBlock(config) for _ in range(config.blocks))
        self.norm = LayerNorm(config.c_t)

    def forward(
        self, run: Executor, batch: Batch, which: slice, pair_mask: Float[Tensor, "b r r"], dtype: torch.dtype
    ) -> Float[Stream, "b_t r r c_t"]:
        """Return the streams of the templates in `which` as one batch; the templates of a sample are consecutive.

        The final layer norm is not applied; the attention over templates does this.
        """
        count = which.stop - which.start
        masks = pair_mask if count == 1 else repeat(pair_mask, "b i j -> (b t) i j", t=count)

        def embedded(rows: slice, _: Tensor) -> Tensor:
            features = template_pair_features(batch, which, rows, unit_vectors=self.unit_vectors)
            return self.linear(features.to(dtype))

        pair = run.map_rows(embedded, masks)
        for block in self.blocks:
            pair = block(run, pair, masks)
        return pair


class TemplatePointwiseAttention(nn.Module):
    """Attention of each edge over the embeddings of this edge in all templates (AlphaFold 2, Suppl. Alg. 17)."""

    def __init__(self, config: TemplateConfig, c_z: int) -> None:
        super().__init__()
        c, heads = config.attention_channels, config.attention_heads
        self.heads = heads
        self.query = ToHeads(c_z, heads, c // heads)
        self.key = ToHeads(config.c_t, heads, c // heads)
        self.value = ToHeads(config.c_t, heads, c // heads)
        self.out = Linear(c, c_z, init="zeros")

    def forward(
        self,
        run: Executor,
        pair: Float[Stream, "b i j c_z"],
        templates: Iterable[Callable[[], Float[Stream, "b_n i j c_t"]]],
        norm: Affine,
        mask: Float[Tensor, "b t"],
    ) -> Float[Stream, "b i j c_z"]:
        """Return the pair stream plus the attention over templates; samples without templates are not changed.

        Each call of one of `templates` returns the embeddings of the next few templates as one batch, in which the
        templates of a sample are consecutive. `norm` is the layer norm of these embeddings.
        """
        # Online softmax over templates: the weighted mean of values so far, and the logarithm of the sum of weights.
        mean: Stream | None = None
        log_sum: Stream | None = None
        first, count = 0, mask.shape[1]
        for embed in templates:
            embedded = embed()
            present = mask[:, first : first + embedded.shape[0] // mask.shape[0]]
            first += present.shape[1]
            logits = run.map_rows(partial(self._logits, norm=norm, present=present), pair, embedded)
            if mean is None or log_sum is None:
                mean = run.map_rows(partial(self._values, norm=norm), embedded, logits)
            else:
                mean = run.replace_rows(partial(self._updated_mean, norm=norm), mean, embedded, log_sum, logits)
            # Freed before the next templates are embedded.
            del embedded
            if first < count:
                sums = logits if present.shape[1] == 1 else run.map_rows(lambda _, rows: self._log_sum(rows), logits)
                log_sum = (
                    sums
                    if log_sum is None
                    else run.replace_rows(lambda _, *rows: torch.logaddexp(*rows), log_sum, sums)
                )
        if mean is None:
            return pair
        has_template = rearrange((mask.sum(-1) > 0).to(pair.dtype), "b -> b 1 1 1")
        return run.replace_rows(lambda _, rows, attended: rows + self.out(attended) * has_template, pair, mean)

    def _logits(
        self, _: slice, pair: Tensor, templates: Tensor, norm: Affine, present: Float[Tensor, "b n"]
    ) -> Float[Tensor, "b i j n_h"]:
        """Return the logits of each edge for some templates and all heads; `present` is 0 for absent templates."""
        query, key = self.query(pair), norm_linear(templates, norm, self.key.affine)
        keys = rearrange(to_float32(key), "(b n) i j c -> b n i j c", n=present.shape[1])
        products = (to_float32(query)[:, None] * keys).unflatten(-1, (self.heads, -1))
        logits = products.sum(-1) * products.shape[-1] ** -0.5 + rearrange(1e9 * (present - 1), "b n -> b n 1 1 1")
        return rearrange(logits, "b n i j h -> b i j (n h)")

    def _log_sum(self, logits: Float[Tensor, "b i j n_h"]) -> Float[Tensor, "b i j h"]:
        """Return the logarithm of the sum of the exponential logits of some templates, for each head."""
        return logits if logits.shape[-1] == self.heads else logits.unflatten(-1, (-1, self.heads)).logsumexp(-2)

    def _values(self, _: slice, templates: Tensor, logits: Tensor, norm: Affine) -> Float[Tensor, "b i j c"]:
        """Return the mean of the values of some templates, weighted by the softmax of their logits."""
        values = norm_linear(templates, norm, self.value.affine)
        if logits.shape[-1] == self.heads:
            return values
        weights = logits.unflatten(-1, (-1, self.heads)).softmax(-2)
        by_head = rearrange(to_float32(values), "(b n) i j (h d) -> b i j n h d", b=len(logits), h=self.heads)
        return (weights[..., None] * by_head).sum(-3).flatten(-2).to(values.dtype)

    def _updated_mean(
        self, rows: slice, mean: Tensor, templates: Tensor, log_sum: Tensor, logits: Tensor, *, norm: Affine
    ) -> Float[Tensor, "b i j c"]:
        """Return the mean of values with further templates; `log_sum` is of the earlier templates only."""
        weight = torch.sigmoid(self._log_sum(logits) - log_sum)[..., None]
        before, value = (
            to_float32(x).unflatten(-1, (self.heads, -1)) for x in (mean, self._values(rows, templates, logits, norm))
        )
        return torch.lerp(before, value, weight).flatten(-2).to(mean.dtype)


class TemplateAngleEmbedder(nn.Module):
    """Embedding of template torsions as rows of the MSA (AlphaFold 2, Suppl. Alg. 2 lines 7 and 8)."""

    def __init__(self, c_m: int, channels: int = ANGLE_CHANNELS) -> None:
        super().__init__()
        self.linear_1 = Linear(channels, c_m, init="relu")
        self.linear_2 = Linear(c_m, c_m, init="relu")

    def forward(self, features: Float[Tensor, "b t r c"]) -> Float[Tensor, "b t r c_m"]:
        return self.linear_2(self.linear_1(features).relu())


class TemplateEmbedder(nn.Module):
    """Template embedding: updates of the pair stream and rows of the MSA (AlphaFold 2, Suppl. Sec. 1.7.1)."""

    def __init__(self, config: TemplateConfig, c_m: int, c_z: int) -> None:
        super().__init__()
        self.pair = TemplatePairEmbedder(config)
        self.attention = TemplatePointwiseAttention(config, c_z)
        self.angles = TemplateAngleEmbedder(c_m)

    def forward(
        self, run: Executor, batch: Batch, pair: Float[Stream, "b r r c_z"], pair_mask: Float[Tensor, "b r r"]
    ) -> Float[Stream, "b r r c_z"]:
        """Return the pair stream plus the attention over all templates.

        The executor determines how many templates are embedded at a time.
        """
        count = batch.template_mask.shape[1]
        together = run.streams_at_once(count, pair.device)

        def embedded() -> Iterator[Stream]:
            for first in range(0, count, together):
                which = slice(first, min(first + together, count))
                yield self.pair(run, batch, which, pair_mask, pair.dtype)

        templates = [partial(next, embedded())] * -(-count // together)  # each call embeds the next templates
        return self.attention(run, pair, templates, self.pair.norm.affine, batch.template_mask)

    def msa_rows(self, batch: Batch, dtype: torch.dtype) -> tuple[Float[Tensor, "b t r c_m"], Float[Tensor, "b t r"]]:
        """Return a row for each template to append to the MSA, and their mask: 1 where the template has a psi angle."""
        torsions = torsions_from_atom37(
            batch.template_aatype, batch.template_all_atom_positions, batch.template_all_atom_masks
        )
        features = torch.cat(
            [
                template_types(batch, torsions.mask.dtype),
                torsions.sin_cos.flatten(-2),
                torsions.alternative_sin_cos.flatten(-2),
                torsions.mask,
            ],
            -1,
        )
        return self.angles(features.to(dtype)), torsions.mask[..., PSI]


def template_types(batch: Batch, dtype: torch.dtype) -> Float[Tensor, "b t r 22"]:
    """Return the probabilities of templates' residue types: of the batch if it has them, else one-hot types."""
    if batch.template_types is not None:
        return batch.template_types.to(dtype)
    return nn.functional.one_hot(batch.template_aatype, TEMPLATE_TYPES).to(dtype)


def template_pair_features(
    batch: Batch, which: slice, rows: slice = slice(None), *, unit_vectors: bool = False
) -> Float[Tensor, "b_t i r 88"]:
    """Return template features of the edges from residues in `rows` to all (Suppl. Table 1, template_pair_feat).

    `which` selects templates; the templates of a sample are consecutive in the batch dim. All features of an edge are 0
    unless both residues have a backbone. Unless `unit_vectors` is true, the vectors between residues are zeros, as in
    the training of DeepMind's released models.
    """
    beta, has_beta, masks, types = (
        features[:, which].flatten(0, 1)
        for features in (
            batch.template_pseudo_beta,
            batch.template_pseudo_beta_mask,
            batch.template_all_atom_masks,
            template_types(batch, batch.template_mask.dtype),
        )
    )
    backbone = masks[..., BACKBONE_ATOMS].prod(-1)
    beta_mask, backbone_mask = (mask[:, rows, None] * mask[:, None] for mask in (has_beta, backbone))
    if unit_vectors:
        vectors = directions(batch.template_all_atom_positions[:, which].flatten(0, 1), rows)
    else:
        vectors = backbone_mask.new_zeros(*backbone_mask.shape, 3)
    features = torch.cat(
        [
            distogram(beta[:, rows], beta, TEMPLATE_BINS),
            beta_mask[..., None],
            rearrange(types, "b j c -> b 1 j c").expand(-1, beta_mask.shape[1], -1, -1),
            rearrange(types[:, rows], "b i c -> b i 1 c").expand(-1, -1, types.shape[1], -1),
            vectors,
            backbone_mask[..., None],
        ],
        -1,
    )
    return features * backbone_mask[..., None]
