"""Blocks of the Evoformer and the extra-MSA stack, as updates in the paper's order, and stacks of blocks."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.model.config import StackConfig
from helixfold.model.layers import Transition
from helixfold.model.msa import MSAColumnAttention, MSAGlobalColumnAttention, MSARowAttention
from helixfold.model.outer_product_mean import OuterProductMean
from helixfold.model.triangle import TriangleAttention, TriangleMultiplication
from helixfold.model.update import Executor, Stream

# The MSA stream and the pair stream.
Streams = tuple[Float[Stream, "b s r c_m"], Float[Stream, "b r r c_z"]]


class EvoformerBlock(nn.Module):
    """One block of the Evoformer (AlphaFold 2, Suppl. Alg. 6) or of the extra-MSA stack (Alg. 18).

    With `global_columns`, as in the extra-MSA stack, MSA column attention is global.
    """

    def __init__(self, config: StackConfig, c_z: int, *, global_columns: bool) -> None:
        super().__init__()
        c_m, heads, dropout = config.c_m, config.msa_heads, config.pair_dropout
        self.outer_product = config.outer_product
        self.row_attention = MSARowAttention(c_m, c_z, heads, config.msa_dropout)
        self.column_attention = (MSAGlobalColumnAttention if global_columns else MSAColumnAttention)(c_m, heads)
        self.msa_transition = Transition(c_m, config.transition_factor)
        self.outer_product_mean = OuterProductMean(c_m, c_z, config.c_outer)
        self.triangle_outgoing = TriangleMultiplication(c_z, config.c_triangle, "rows", dropout)
        self.triangle_incoming = TriangleMultiplication(c_z, config.c_triangle, "columns", dropout)
        self.triangle_starting = TriangleAttention(c_z, config.pair_heads, "rows", dropout)
        self.triangle_ending = TriangleAttention(c_z, config.pair_heads, "columns", dropout)
        self.pair_transition = Transition(c_z, config.transition_factor)

    def forward(
        self,
        run: Executor,
        msa: Float[Stream, "b s r c_m"],
        pair: Float[Stream, "b r r c_z"],
        msa_mask: Float[Tensor, "b s r"],
        pair_mask: Float[Tensor, "b r r"],
    ) -> Streams:
        """Return the MSA and pair streams after the block, which the executor `run` carries out."""
        if self.outer_product == "first":
            pair = run(self.outer_product_mean, pair, pair_mask, context_from=(msa, msa_mask))
        msa = self.msa_half(run, msa, pair, msa_mask, pair_mask)
        if self.outer_product == "middle":
            pair = run(self.outer_product_mean, pair, pair_mask, context_from=(msa, msa_mask))
        pair = self.pair_half(run, pair, pair_mask)
        if self.outer_product == "end":
            pair = run(self.outer_product_mean, pair, pair_mask, context_from=(msa, msa_mask))
        return msa, pair

    def msa_half(
        self,
        run: Executor,
        msa: Float[Stream, "b s r c_m"],
        pair: Float[Stream, "b r r c_z"],
        msa_mask: Float[Tensor, "b s r"],
        pair_mask: Float[Tensor, "b r r"],
    ) -> Float[Stream, "b s r c_m"]:
        """Return the MSA stream after row attention, column attention and transition (Suppl. Alg. 6 lines 2 to 4)."""
        msa = run(self.row_attention, msa, msa_mask, context_from=(pair, pair_mask))
        msa = run(self.column_attention, msa, msa_mask)
        return run(self.msa_transition, msa, msa_mask)

    def pair_half(
        self, run: Executor, pair: Float[Stream, "b r r c_z"], pair_mask: Float[Tensor, "b r r"]
    ) -> Float[Stream, "b r r c_z"]:
        """Return the pair stream after triangle updates and transition, without the outer product mean.

        AlphaFold 2, Suppl. Alg. 6 lines 6 to 10.
        """
        for update in (
            self.triangle_outgoing,
            self.triangle_incoming,
            self.triangle_starting,
            self.triangle_ending,
            self.pair_transition,
        ):
            pair = run(update, pair, pair_mask)
        return pair


class EvoformerStack(nn.Module):
    """The Evoformer (AlphaFold 2, Suppl. Alg. 6), or the extra-MSA stack (Alg. 18) with global column attention."""

    def __init__(self, config: StackConfig, c_z: int, *, global_columns: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            EvoformerBlock(config, c_z, global_columns=global_columns) for _ in range(config.blocks)
        )

    def forward(
        self,
        run: Executor,
        msa: Float[Stream, "b s r c_m"],
        pair: Float[Stream, "b r r c_z"],
        msa_mask: Float[Tensor, "b s r"],
        pair_mask: Float[Tensor, "b r r"],
    ) -> Streams:
        """Return the MSA and pair streams after all blocks."""
        for block in self.blocks:
            msa, pair = block(run, msa, pair, msa_mask, pair_mask)
        return msa, pair


def outer_mask(mask: Float[Tensor, "*batch r"]) -> Float[Tensor, "*batch r r"]:
    """Return the pair mask, 1 where both residues are real."""
    return rearrange(mask, "... i -> ... i 1") * rearrange(mask, "... j -> ... 1 j")
