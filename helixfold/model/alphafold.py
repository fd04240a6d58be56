"""The whole network: one pass from features to structure and confidence."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.batch import Batch
from helixfold.config import ModelConfig
from helixfold.model.embedders import ExtraMSAEmbedder, InputEmbedder, RecyclingEmbedder
from helixfold.model.evoformer import EvoformerStack, outer_mask
from helixfold.model.heads import Heads
from helixfold.model.layers import Linear
from helixfold.model.outputs import Outputs, Recycled, Representations
from helixfold.model.structure_module import StructureModule
from helixfold.model.templates import TemplateEmbedder
from helixfold.model.update import Executor


class AlphaFold(nn.Module):
    """AlphaFold 2 (Suppl. Alg. 2), one recycling pass at a time.

    The trunk computes in the dtype it is called with; structure module and heads in float32.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        c_m, c_z, c_e = config.evoformer.c_m, config.c_z, config.extra_msa.c_m
        self.input_embedder = InputEmbedder(c_m, c_z)
        self.recycling_embedder = RecyclingEmbedder(c_m, c_z)
        self.template_embedder = TemplateEmbedder(config.template, c_m, c_z) if config.template else None
        self.extra_msa_embedder = ExtraMSAEmbedder(c_e)
        self.extra_msa_stack = EvoformerStack(config.extra_msa, c_z, global_columns=True)
        self.evoformer = EvoformerStack(config.evoformer, c_z)
        self.single = Linear(c_m, config.c_s)
        self.structure_module = StructureModule(config.structure, config.c_s, c_z)
        self.heads = Heads(config)

    def forward(
        self,
        run: Executor,
        ensemble: Sequence[Batch],
        previous: Recycled | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Outputs:
        """One pass over one or several draws of the same target, whose representations are averaged.

        `previous` is what the last pass left, None on the first; `dtype` is the trunk's, float32 or bfloat16.
        """
        first = ensemble[0]
        if previous is None:
            b, r = first.aatype.shape
            c_m, c_z = self.config.evoformer.c_m, self.config.c_z
            previous = Recycled.nothing(b, r, c_m, c_z, dtype=dtype, device=first.aatype.device)
        representations = _averaged([self.trunk(run, batch, previous, dtype) for batch in ensemble])
        structure = self.structure_module(representations.single, representations.pair, first.aatype, first.seq_mask)
        return Outputs(
            representations=representations, structure=structure, logits=self.heads(representations, structure)
        )

    def trunk(self, run: Executor, batch: Batch, previous: Recycled, dtype: torch.dtype) -> Representations:
        """Embedders, templates, extra-MSA stack and Evoformer (Suppl. Alg. 2 lines 3 to 18)."""
        pair_mask = outer_mask(batch.seq_mask)
        msa, pair = self.input_embedder(batch.target_feat.to(dtype), batch.msa_feat.to(dtype), batch.residue_index)
        msa, pair = self.recycling_embedder(batch.aatype, previous, msa, pair)
        msa_mask, rows = batch.msa_mask, batch.msa_mask.shape[1]
        if self.template_embedder is not None and batch.template_mask.shape[1] > 0:
            pair = pair + self.template_embedder.pair_update(run, batch, pair, pair_mask)
            template_rows, template_rows_mask = self.template_embedder.msa_rows(batch, dtype)
            msa = torch.cat([msa, template_rows], 1)
            msa_mask = torch.cat([msa_mask, template_rows_mask], 1)
        pair = self._with_extra_msa(run, batch, pair, pair_mask)
        msa, pair = self.evoformer(run, msa, pair, msa_mask, pair_mask)
        first_row = msa[:, 0]
        return Representations(msa=msa[:, :rows], msa_first_row=first_row, pair=pair, single=self.single(first_row))

    def _with_extra_msa(
        self, run: Executor, batch: Batch, pair: Float[Tensor, "b r r c_z"], pair_mask: Float[Tensor, "b r r"]
    ) -> Float[Tensor, "b r r c_z"]:
        """The pair stream after the extra-MSA stack, whose own MSA stream is dropped."""
        extra = self.extra_msa_embedder(
            batch.extra_msa, batch.extra_has_deletion, batch.extra_deletion_value, pair.dtype
        )
        return self.extra_msa_stack(run, extra, pair, batch.extra_msa_mask, pair_mask)[1]


def _averaged(draws: Sequence[Representations]) -> Representations:
    """The mean over an ensemble; the MSA, whose rows differ between draws, is the first draw's (DeepMind's program)."""
    if len(draws) == 1:
        return draws[0]
    return Representations(
        msa=draws[0].msa,
        msa_first_row=torch.stack([draw.msa_first_row for draw in draws]).mean(0),
        pair=torch.stack([draw.pair for draw in draws]).mean(0),
        single=torch.stack([draw.single for draw in draws]).mean(0),
    )
