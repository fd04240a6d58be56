"""Updates of the MSA stream: attention within rows (sequences) and within columns (residues)."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.model.attention import SelfAttention
from helixfold.model.layers import LayerNorm, Linear, ToHeads
from helixfold.model.update import Update
from helixfold.ops.global_attention import global_attention
from helixfold.ops.linear import norm_linear
from helixfold.ops.residual import Residual
from helixfold.ops.weights import GlobalAttentionWeights


class MSARowAttention(Update):
    """Attention of the residues within each MSA row, biased by the pair stream (AlphaFold 2, Suppl. Alg. 7)."""

    context_dim = 2
    takes_residual = True

    def __init__(self, c_m: int, c_z: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm = LayerNorm(c_m)
        self.pair_norm = LayerNorm(c_z)
        self.pair_bias = Linear(c_z, heads, bias=False, init="normal")
        self.attention = SelfAttention(c_m, heads)
        self.dropout_rate = dropout

    def context(
        self, pair: Float[Tensor, "b i j c_z"], pair_mask: Float[Tensor, "b i j"]
    ) -> tuple[Float[Tensor, "b h i j"]]:
        """Return the bias of the logits of each head from rows of the pair stream."""
        bias = norm_linear(pair, self.pair_norm.affine, self.pair_bias.affine)
        return (rearrange(bias, "b i j h -> b h i j").contiguous(),)

    def forward(
        self,
        msa: Float[Tensor, "b s r c_m"],
        mask: Float[Tensor, "b s r"],
        context: tuple[Float[Tensor, "b h r r"]],
        *,
        residual: Residual | None = None,
    ) -> Float[Tensor, "b s r c_m"]:
        """Return the change of MSA rows, or with `residual` its stream plus dropout mask times change."""
        return self.attention(msa, mask, self.norm.affine, *context, residual=residual)


class MSAColumnAttention(Update):
    """Attention along each MSA column, over the sequences (AlphaFold 2, Suppl. Alg. 8)."""

    axis = "columns"
    takes_residual = True

    def __init__(self, c_m: int, heads: int) -> None:
        super().__init__()
        self.norm = LayerNorm(c_m)
        self.attention = SelfAttention(c_m, heads)

    def forward(
        self,
        columns: Float[Tensor, "b r s c_m"],
        mask: Float[Tensor, "b r s"],
        context: tuple[()],
        *,
        residual: Residual | None = None,
    ) -> Float[Tensor, "b r s c_m"]:
        """Return the change of MSA columns, or with `residual` its stream plus dropout mask times change."""
        return self.attention(columns, mask, self.norm.affine, residual=residual)


class MSAGlobalColumnAttention(Update):
    """Column attention for deep MSAs, with one averaged query per column and one head for keys and values.

    AlphaFold 2, Suppl. Alg. 19.
    """

    axis = "columns"

    def __init__(self, c_m: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = LayerNorm(c_m)
        self.query = ToHeads(c_m, heads, c_m // heads)
        self.key = Linear(c_m, c_m // heads, bias=False, init="glorot")
        self.value = Linear(c_m, c_m // heads, bias=False, init="glorot")
        self.gate = Linear(c_m, c_m, init="gate")
        self.out = Linear(c_m, c_m, init="zeros")

    def forward(
        self, columns: Float[Tensor, "b r s c_m"], mask: Float[Tensor, "b r s"], context: tuple[()]
    ) -> Float[Tensor, "b r s c_m"]:
        """Return the change of MSA columns."""
        return global_attention(
            columns,
            mask,
            GlobalAttentionWeights(
                self.norm.affine,
                self.query.affine,
                self.key.affine,
                self.value.affine,
                self.gate.affine,
                self.out.affine,
            ),
            heads=self.heads,
        )
