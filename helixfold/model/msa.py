"""Updates of the MSA stream: attention along sequences and along residues."""

from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.model.attention import SelfAttention
from helixfold.model.layers import LayerNorm, Linear, ToHeads
from helixfold.model.update import Update
from helixfold.ops.attention import attention


class MSARowAttention(Update):
    """Every sequence attends over its residues, steered by the pair stream (AlphaFold 2, Suppl. Alg. 7)."""

    context_dim = 2

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
        return (rearrange(self.pair_bias(self.pair_norm(pair)), "b i j h -> b h i j").contiguous(),)

    def forward(
        self,
        msa: Float[Tensor, "b s r c_m"],
        mask: Float[Tensor, "b s r"],
        context: tuple[Float[Tensor, "b h r r"]],
    ) -> Float[Tensor, "b s r c_m"]:
        (bias,) = context
        return self.attention(self.norm(msa), mask, bias)

    def workspace(self, rows: int, channels: int) -> int:
        return self.attention.workspace(rows, channels)


class MSAColumnAttention(Update):
    """Every residue's column attends over the sequences (AlphaFold 2, Suppl. Alg. 8)."""

    axis = "columns"
    dropout_axis = "columns"

    def __init__(self, c_m: int, heads: int) -> None:
        super().__init__()
        self.norm = LayerNorm(c_m)
        self.attention = SelfAttention(c_m, heads)

    def forward(
        self, columns: Float[Tensor, "b r s c_m"], mask: Float[Tensor, "b r s"], context: tuple[()]
    ) -> Float[Tensor, "b r s c_m"]:
        return self.attention(self.norm(columns), mask)

    def workspace(self, rows: int, channels: int) -> int:
        return self.attention.workspace(rows, channels)


class MSAGlobalColumnAttention(Update):
    """Column attention for deep MSAs: one averaged query per column, one key and value head (Suppl. Alg. 19)."""

    axis = "columns"
    dropout_axis = "columns"

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
        x = self.norm(columns)
        # The mean over sequences is taken in float32; 1e-10 keeps a column without sequences finite.
        total = einsum(x.float(), mask.float(), "b r s c, b r s -> b r c")
        mean = (total / (mask.float().sum(-1, keepdim=True) + 1e-10)).to(x.dtype)
        query = rearrange(self.query(mean), "b r (h d) -> b r 1 h d", h=self.heads)
        key, value = (rearrange(each(x), "b r s d -> b r 1 s d") for each in (self.key, self.value))
        gathered = rearrange(attention(query, key, value, mask), "b r 1 h d -> b r 1 (h d)")
        return self.out(gathered * self.gate(x).sigmoid())

    def workspace(self, rows: int, channels: int) -> int:
        return rows * (6 * channels + 2 * self.heads)
