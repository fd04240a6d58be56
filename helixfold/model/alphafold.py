"""AlphaFold 2 and AlphaFold-Multimer: one recycling iteration, from features to structure and logits."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.model.batch import Batch
from helixfold.model.config import Method, ModelConfig, StructureConfig, TemplateConfig
from helixfold.model.embedders import ExtraMSAEmbedder, InputEmbedder, RecyclingEmbedder
from helixfold.model.evoformer import EvoformerStack, outer_mask
from helixfold.model.geometry.atoms import pseudo_beta
from helixfold.model.heads import Heads
from helixfold.model.layers import Linear
from helixfold.model.multimer import MultimerPointAttention, MultimerTemplateEmbedder, multimer_input_embedder
from helixfold.model.outputs import Folded, Outputs, Recycled, Representations
from helixfold.model.point_attention import InvariantPointAttention, PointAttention
from helixfold.model.restraints import RestraintEmbedder
from helixfold.model.structure_module import StructureModule
from helixfold.model.template_frames import start_from_template
from helixfold.model.templates import TemplateEmbedder
from helixfold.model.update import Executor, Stream

# Names of the submodules that compute in float32 whatever the dtype of the trunk.
IN_FLOAT32 = ("structure_module", "heads")


class MethodModules(NamedTuple):
    """Functions that create the modules in which AlphaFold 2 and AlphaFold-Multimer differ."""

    input_embedder: Callable[[int, int], InputEmbedder]
    template_embedder: Callable[[TemplateConfig, int, int], TemplateEmbedder | MultimerTemplateEmbedder]
    point_attention: Callable[[StructureConfig, int], PointAttention]


MODULES: dict[Method, MethodModules] = {
    "monomer": MethodModules(InputEmbedder, TemplateEmbedder, InvariantPointAttention),
    "multimer": MethodModules(multimer_input_embedder, MultimerTemplateEmbedder, MultimerPointAttention),
}


class AlphaFold(nn.Module):
    """AlphaFold 2 (Suppl. Alg. 2) or AlphaFold-Multimer, one recycling iteration per call.

    The trunk computes in a dtype that the caller passes, the structure module and heads in float32.
    """

    notes: tuple[str, ...] = ()  # for the output files, such as that parameters are random

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        c_m, c_z, c_e = config.evoformer.c_m, config.c_z, config.extra_msa.c_m
        modules = MODULES[config.method]
        self.input_embedder = modules.input_embedder(c_m, c_z)
        self.recycling_embedder = RecyclingEmbedder(c_m, c_z)
        self.template_embedder = modules.template_embedder(config.template, c_m, c_z) if config.template else None
        self.extra_msa_embedder = ExtraMSAEmbedder(c_e)
        self.extra_msa_stack = EvoformerStack(config.extra_msa, c_z, global_columns=True)
        self.restraint_embedder = RestraintEmbedder(config.restraints, c_z) if config.restraints else None
        self.evoformer = EvoformerStack(config.evoformer, c_z)
        self.single = Linear(c_m, config.c_s)
        self.structure_module = StructureModule(config.structure, config.c_s, c_z, attention=modules.point_attention)
        self.heads = Heads(config)

    def forward(
        self,
        run: Executor,
        ensemble: Sequence[Batch],
        previous: Recycled | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Outputs:
        """Run one recycling iteration including all heads; see `fold` for the arguments."""
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
        """Run one recycling iteration without the heads.

        Representations, except the MSA, are averaged over the samples of `ensemble`; the first sample's MSA, sequence
        and template are used. `previous` is the result of the previous iteration, None in the first; its pair stream
        may be overwritten. `dtype` is the trunk's: float32, bfloat16 or float16.
        """
        first, last = ensemble[0], len(ensemble) - 1
        mean: Representations | None = None
        for index, batch in enumerate(ensemble):
            recycled = previous
            if previous is not None and index < last:
                # The trunk may overwrite the recycled pair stream, which the other samples still need.
                recycled = replace(previous, pair=run.copy(previous.pair))
            result = self.trunk(run, batch, recycled, dtype)
            weight = 1 / len(ensemble) if index == last else 1.0
            mean = result if mean is None else _scaled_sum(run, mean, result, weight)
            del result, recycled
        assert mean is not None
        template, start = self.config.template, None
        if template is not None and template.initial_frames and first.template_mask.shape[1] > 0:
            start = start_from_template(first, self.structure_module.position_scale, template.update_factor)
        structure = self.structure_module(run, mean.single, mean.pair, first.aatype, first.seq_mask, start=start)
        return Folded(representations=mean, structure=structure)

    def recycle(
        self,
        run: Executor,
        ensembles: Iterable[Sequence[Batch]],
        dtype: torch.dtype = torch.float32,
        *,
        previous: Recycled | None = None,
        with_gradients: bool = False,
    ) -> Recycled | None:
        """Run one iteration on each ensemble, and return the input of the next iteration.

        `previous` is the input of the first iteration, None for zeros; without ensembles it is returned.

        By default no gradients are computed. With `with_gradients` they pass through all iterations, exactly, and
        memory grows with the number of iterations.
        """
        with torch.set_grad_enabled(with_gradients and torch.is_grad_enabled()):
            for ensemble in ensembles:
                previous = self.fold(run, ensemble, previous, dtype).recycled(with_gradients=with_gradients)
        return previous

    def trunk(self, run: Executor, batch: Batch, previous: Recycled | None, dtype: torch.dtype) -> Representations:
        """Return the representations after embedders, templates, extra-MSA stack, restraints and Evoformer.

        AlphaFold 2, Suppl. Alg. 2 lines 3 to 18. The pair stream of `previous` may be overwritten.
        """
        pair, pair_mask = self._first_pair(run, batch, previous, dtype), outer_mask(batch.seq_mask)
        if self.template_embedder is not None and batch.template_mask.shape[1] > 0:
            pair = self.template_embedder(run, batch, pair, pair_mask)
        pair = self._with_extra_msa(run, batch, pair, pair_mask)
        if (embedder := self.restraint_embedder) is not None:
            pair = run.replace_rows(lambda rows, edges: embedder.pair_rows(batch, rows, edges), pair)
        # Differs from AlphaFold: the MSA is embedded here, so that it takes no memory during the extra-MSA stack.
        msa, msa_mask = self._first_msa(run, batch, previous, dtype)
        msa, pair = self.evoformer(run, msa, pair, msa_mask, pair_mask)
        # A view would keep the whole MSA in memory.
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
        """Return the initial pair stream, in the memory of the recycled pair stream if the dtypes are equal."""
        mask = batch.seq_mask
        # The first iteration recycles zeros: a pair stream of zeros, and all atoms at the origin.
        recycled: Stream = mask.new_zeros(1, dtype=dtype).expand(*mask.shape, mask.shape[1], self.config.c_z)
        beta = mask.new_zeros(*mask.shape, 3)
        if previous is not None:
            recycled, beta = previous.pair, pseudo_beta(batch.aatype, previous.positions)

        def embedded(rows: slice, recycled_rows: Tensor) -> Tensor:
            pair = self.input_embedder.pair_rows(batch, rows, dtype)
            return self.recycling_embedder.pair_rows(pair, recycled_rows, beta[:, rows], beta)

        make = run.map_rows if previous is None or recycled.dtype != dtype else run.replace_rows
        return make(embedded, recycled)

    def _first_msa(
        self, run: Executor, batch: Batch, previous: Recycled | None, dtype: torch.dtype
    ) -> tuple[Float[Stream, "b s r c_m"], Float[Tensor, "b s r"]]:
        """Return the initial MSA stream and its mask: the sampled sequences, then a row of torsions per template."""
        mask = batch.msa_mask
        count = mask.shape[1]
        zeros = mask.new_zeros(*batch.seq_mask.shape, self.config.evoformer.c_m, dtype=dtype)
        recycled_row = zeros if previous is None else previous.msa_first_row
        template_rows = mask.new_empty(0)
        if self.template_embedder is not None and batch.template_mask.shape[1] > 0:
            template_rows, template_rows_mask = self.template_embedder.msa_rows(batch, dtype)
            mask = torch.cat([mask, template_rows_mask], 1)

        def embedded(rows: slice, _: Tensor) -> Tensor:
            parts = []
            if rows.start < count:
                parts.append(self.input_embedder.msa_rows(batch, rows, dtype))
            if rows.start == 0:
                first = self.recycling_embedder.first_row(parts[0][:, 0], recycled_row)
                parts[:1] = [first[:, None], parts[0][:, 1:]]
            if rows.stop > count:
                parts.append(template_rows[:, max(0, rows.start - count) : rows.stop - count])
            return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

        return run.map_rows(embedded, mask), mask

    def _with_extra_msa(
        self, run: Executor, batch: Batch, pair: Float[Stream, "b r r c_z"], pair_mask: Float[Tensor, "b r r"]
    ) -> Float[Stream, "b r r c_z"]:
        """Return the pair stream after the extra-MSA stack."""
        extra = run.map_rows(
            lambda _, *features: self.extra_msa_embedder(*features, pair.dtype),
            batch.extra_msa,
            batch.extra_has_deletion,
            batch.extra_deletion_value,
        )
        return self.extra_msa_stack(run, extra, pair, batch.extra_msa_mask, pair_mask)[1]


def _scaled_sum(run: Executor, total: Representations, added: Representations, weight: float) -> Representations:
    """Return `(total + added) * weight` for each representation except the MSA, which is that in `total`.

    Sequences differ between the samples of an ensemble. As in DeepMind's program, the MSA of the first sample is used.
    """
    return Representations(
        msa=total.msa,
        msa_first_row=(total.msa_first_row + added.msa_first_row) * weight,
        pair=run.replace_rows(lambda _, one, other: (one + other) * weight, total.pair, added.pair),
        single=(total.single + added.single) * weight,
    )
