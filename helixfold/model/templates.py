"""What templates tell: distances for the pair stream, torsions as further rows of the MSA."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from data_pipeline.residues import ATOM_ORDER
from helixfold.batch import Batch
from helixfold.config import TemplateConfig
from helixfold.geometry.atoms import DistanceBins, distogram
from helixfold.geometry.torsions import torsions_from_atom37
from helixfold.model.evoformer import outer_mask
from helixfold.model.layers import LayerNorm, Linear, ToHeads, Transition
from helixfold.model.triangle import TriangleAttention, TriangleMultiplication
from helixfold.model.update import Executor
from helixfold.ops.attention import attention

# DeepMind's config: 39 bins from 3.25 to 50.75 Angstrom; residue types are 20, unknown and gap.
TEMPLATE_BINS = DistanceBins(first=3.25, last=50.75, count=39)
TEMPLATE_TYPES = 22
# Distances, mask, types of both residues, unit vector, backbone mask (Suppl. Table 1, template_pair_feat).
PAIR_CHANNELS = TEMPLATE_BINS.count + 1 + 2 * TEMPLATE_TYPES + 3 + 1
# Type, torsions, alternative torsions, torsion mask (template_angle_feat).
ANGLE_CHANNELS = TEMPLATE_TYPES + 14 + 14 + 7
# The torsion whose presence decides whether a template row of the MSA counts at a residue.
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
        self, run: Executor, pair: Float[Tensor, "b r r c_t"], mask: Float[Tensor, "b r r"]
    ) -> Float[Tensor, "b r r c_t"]:
        pair = run(self.triangle_starting, pair, mask)
        pair = run(self.triangle_ending, pair, mask)
        pair = run(self.triangle_outgoing, pair, mask)
        pair = run(self.triangle_incoming, pair, mask)
        return run(self.pair_transition, pair, mask)


class TemplatePairEmbedder(nn.Module):
    """One template as a pair representation (AlphaFold 2, Suppl. Alg. 2 lines 9 to 11)."""

    def __init__(self, config: TemplateConfig) -> None:
        super().__init__()
        self.linear = Linear(PAIR_CHANNELS, config.c_t, init="relu")
        self.blocks = nn.ModuleList(TemplatePairBlock(config) for _ in range(config.blocks))
        self.norm = LayerNorm(config.c_t)

    def forward(
        self, run: Executor, features: Float[Tensor, "b r r 88"], pair_mask: Float[Tensor, "b r r"]
    ) -> Float[Tensor, "b r r c_t"]:
        pair = self.linear(features)
        for block in self.blocks:
            pair = block(run, pair, pair_mask)
        return self.norm(pair)


class TemplatePointwiseAttention(nn.Module):
    """Every edge attends over what the templates say about it (AlphaFold 2, Suppl. Alg. 17)."""

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
        pair: Float[Tensor, "b i j c_z"],
        templates: Float[Tensor, "b i j t c_t"],
        mask: Float[Tensor, "b t"],
    ) -> Float[Tensor, "b i j c_z"]:
        query = rearrange(self.query(pair), "b i j (h d) -> b (i j) h 1 d", h=self.heads)
        key, value = (
            rearrange(each(templates), "b i j t (h d) -> b (i j) h t d", h=self.heads)
            for each in (self.key, self.value)
        )
        key_mask = rearrange(mask, "b t -> b 1 t").expand(-1, query.shape[1], -1)
        gathered = attention(query, key, value, key_mask)
        return self.out(rearrange(gathered, "b (i j) h 1 d -> b i j (h d)", i=pair.shape[1]))


class TemplateAngleEmbedder(nn.Module):
    """Template torsions as rows of the MSA (AlphaFold 2, Suppl. Alg. 2 lines 7 and 8)."""

    def __init__(self, c_m: int) -> None:
        super().__init__()
        self.linear_1 = Linear(ANGLE_CHANNELS, c_m, init="relu")
        self.linear_2 = Linear(c_m, c_m, init="relu")

    def forward(self, features: Float[Tensor, "b t r 57"]) -> Float[Tensor, "b t r c_m"]:
        return self.linear_2(self.linear_1(features).relu())


class TemplateEmbedder(nn.Module):
    """All that templates add to the two streams (AlphaFold 2, Suppl. Sec. 1.7.1)."""

    def __init__(self, config: TemplateConfig, c_m: int, c_z: int) -> None:
        super().__init__()
        self.pair = TemplatePairEmbedder(config)
        self.attention = TemplatePointwiseAttention(config, c_z)
        self.angles = TemplateAngleEmbedder(c_m)

    def pair_update(
        self, run: Executor, batch: Batch, pair: Float[Tensor, "b r r c_z"], pair_mask: Float[Tensor, "b r r"]
    ) -> Float[Tensor, "b r r c_z"]:
        """What to add to the pair stream; nothing where a sample has no template."""
        embedded = [
            self.pair(run, template_pair_features(batch, index).to(pair.dtype), pair_mask)
            for index in range(batch.template_mask.shape[1])
        ]
        update = self.attention(pair, torch.stack(embedded, -2), batch.template_mask)
        any_template = (batch.template_mask.sum(-1) > 0).to(pair.dtype)
        return update * rearrange(any_template, "b -> b 1 1 1")

    def msa_rows(self, batch: Batch, dtype: torch.dtype) -> tuple[Float[Tensor, "b t r c_m"], Float[Tensor, "b t r"]]:
        """Rows to append to the MSA, and their mask."""
        torsions = torsions_from_atom37(
            batch.template_aatype, batch.template_all_atom_positions, batch.template_all_atom_masks
        )
        features = torch.cat(
            [
                nn.functional.one_hot(batch.template_aatype, TEMPLATE_TYPES).to(torsions.mask.dtype),
                torsions.sin_cos.flatten(-2),
                torsions.alternative_sin_cos.flatten(-2),
                torsions.mask,
            ],
            -1,
        )
        return self.angles(features.to(dtype)), torsions.mask[..., PSI]


def template_pair_features(batch: Batch, index: int) -> Float[Tensor, "b r r 88"]:
    """What one template says about every pair of residues (Suppl. Table 1, template_pair_feat)."""
    beta_mask = outer_mask(batch.template_pseudo_beta_mask[:, index])
    observed = batch.template_all_atom_masks[:, index].unbind(-1)
    backbone_mask = outer_mask(observed[ATOM_ORDER["N"]] * observed[ATOM_ORDER["CA"]] * observed[ATOM_ORDER["C"]])
    types = nn.functional.one_hot(batch.template_aatype[:, index], TEMPLATE_TYPES).to(beta_mask.dtype)
    r = types.shape[1]
    features = torch.cat(
        [
            distogram(batch.template_pseudo_beta[:, index], TEMPLATE_BINS),
            beta_mask[..., None],
            rearrange(types, "b j c -> b 1 j c").expand(-1, r, -1, -1),
            rearrange(types, "b i c -> b i 1 c").expand(-1, -1, r, -1),
            # The unit vector between residues; DeepMind's released models were trained with zeros here.
            backbone_mask[..., None].new_zeros(*backbone_mask.shape, 3),
            backbone_mask[..., None],
        ],
        -1,
    )
    return features * backbone_mask[..., None]
