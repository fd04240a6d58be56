"""The whole network: one pass from features to structure and confidence."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.batch import Batch
from helixfold.config import ModelConfig
from helixfold.geometry.atoms import pseudo_beta
from helixfold.model.embedders import ExtraMSAEmbedder, InputEmbedder, RecyclingEmbedder
from helixfold.model.evoformer import EvoformerStack, outer_mask
from helixfold.model.heads import Heads
from helixfold.model.layers import Linear
from helixfold.model.outputs import Folded, Outputs, Recycled, Representations
from helixfold.model.structure_module import StructureModule
from helixfold.model.templates import TemplateEmbedder
from helixfold.model.update import Executor, Stream


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
        """One pass with the logits of all heads; otherwise as `fold`."""
        folded = self.fold(run, ensemble, previous, dtype)
        return Outputs(
            representations=folded.representations, structure=folded.structure, logits=self.heads(run, folded)
        )

    def fold(
        self,
        run: Executor,
        ensemble: Sequence[Batch],
        previous: Recycled | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Folded:
        """One pass over one or several draws of the same target, whose representations are averaged.

        `previous` is what the last pass left, None on the first; its pair stream is given away, and an executor that
        works in place makes the new one in its memory. `dtype` is the trunk's, float32 or bfloat16.
        """
        first, last = ensemble[0], len(ensemble) - 1
        mean: Representations | None = None
        for number, batch in enumerate(ensemble):
            recycled = previous
            if previous is not None and number < last:
                # All draws read what the last pass left, and a draw may write there.
                recycled = replace(previous, pair=run.copy(previous.pair))
            draw = self.trunk(run, batch, recycled, dtype)
            mean = (
                draw if mean is None else _added(run, mean, draw, weight=1 / len(ensemble) if number == last else 1.0)
            )
            del draw, recycled
        assert mean is not None
        structure = self.structure_module(run, mean.single, mean.pair, first.aatype, first.seq_mask)
        return Folded(representations=mean, structure=structure)

    def trunk(self, run: Executor, batch: Batch, previous: Recycled | None, dtype: torch.dtype) -> Representations:
        """Return the representations after embedders, templates, extra-MSA stack and Evoformer.

        AlphaFold 2, Suppl. Alg. 2 lines 3 to 18. The pair stream of `previous` is given away.
        """
        pair, pair_mask = self._first_pair(run, batch, previous, dtype), outer_mask(batch.seq_mask)
        if self.template_embedder is not None and batch.template_mask.shape[1] > 0:
            pair = self.template_embedder(run, batch, pair, pair_mask)
        pair = self._with_extra_msa(run, batch, pair, pair_mask)
        # Differs from AlphaFold: the MSA is embedded here, where it is first read, and not held beside the extra MSA.
        msa, msa_mask = self._first_msa(run, batch, previous, dtype)
        msa, pair = self.evoformer(run, msa, pair, msa_mask, pair_mask)
        # A copy: a view would keep the whole MSA for as long as the row is needed.
        first_row = run.gather(run.first_rows(msa, 1))[:, 0].clone()
        return Representations(
            msa=run.first_rows(msa, batch.msa_mask.shape[1]),
            msa_first_row=first_row,
            pair=pair,
            single=self.single(first_row),
        )

    def _first_pair(
        self, run: Executor, batch: Batch, previous: Recycled | None, dtype: torch.dtype
    ) -> Float[Stream, "b r r c_z"]:
        target, index = batch.target_feat.to(dtype), batch.residue_index
        # The first pass starts as if the last one had found nothing, and all atoms in one place.
        last: Stream = target.new_zeros(1).expand(*index.shape, index.shape[1], self.config.c_z)
        beta = batch.seq_mask.new_zeros(*index.shape, 3)
        if previous is not None:
            last, beta = previous.pair, pseudo_beta(batch.aatype, previous.positions)

        def embedded(rows: slice, recycled: Tensor) -> Tensor:
            pair = self.input_embedder.pair_rows(target[:, rows], index[:, rows], target, index)
            return self.recycling_embedder.pair_rows(pair, recycled, beta[:, rows], beta)

        make = run.map_rows if previous is None or last.dtype != dtype else run.replace_rows
        return make(embedded, last)

    def _first_msa(
        self, run: Executor, batch: Batch, previous: Recycled | None, dtype: torch.dtype
    ) -> tuple[Float[Stream, "b s r c_m"], Float[Tensor, "b s r"]]:
        """Return the sampled sequences and, below them, the templates' torsions, with the mask of both."""
        target, mask = batch.target_feat.to(dtype), batch.msa_mask
        count = mask.shape[1]
        nothing = target.new_zeros(*target.shape[:2], self.config.evoformer.c_m)
        recycled_row = nothing if previous is None else previous.msa_first_row
        further = mask.new_empty(0)
        if self.template_embedder is not None and batch.template_mask.shape[1] > 0:
            further, further_mask = self.template_embedder.msa_rows(batch, dtype)
            mask = torch.cat([mask, further_mask], 1)

        def embedded(rows: slice, _: Tensor) -> Tensor:
            parts = []
            if rows.start < count:
                parts.append(self.input_embedder.msa_rows(batch.msa_feat[:, rows].to(dtype), target))
            if rows.start == 0:
                first = self.recycling_embedder.first_row(parts[0][:, 0], recycled_row)
                parts[:1] = [first[:, None], parts[0][:, 1:]]
            if rows.stop > count:
                parts.append(further[:, max(0, rows.start - count) : rows.stop - count])
            return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

        return run.map_rows(embedded, mask), mask

    def _with_extra_msa(
        self, run: Executor, batch: Batch, pair: Float[Stream, "b r r c_z"], pair_mask: Float[Tensor, "b r r"]
    ) -> Float[Stream, "b r r c_z"]:
        """Return the pair stream after the extra-MSA stack, whose own MSA stream is dropped."""
        extra = run.map_rows(
            lambda _, *features: self.extra_msa_embedder(*features, pair.dtype),
            batch.extra_msa,
            batch.extra_has_deletion,
            batch.extra_deletion_value,
        )
        return self.extra_msa_stack(run, extra, pair, batch.extra_msa_mask, pair_mask)[1]


def _added(run: Executor, total: Representations, draw: Representations, weight: float) -> Representations:
    """A sum over an ensemble, times `weight`; the MSA, whose rows differ between draws, is the first draw's (DeepMind's
    program).
    """
    return Representations(
        msa=total.msa,
        msa_first_row=(total.msa_first_row + draw.msa_first_row) * weight,
        pair=run.replace_rows(lambda _, one, other: (one + other) * weight, total.pair, draw.pair),
        single=(total.single + draw.single) * weight,
    )
