"""Linear maps, layer norms and the transition, computed in the dtype of the activations."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from helixfold.model.update import Update
from helixfold.ops.constants import EPS
from helixfold.ops.linear import layer_norm, linear
from helixfold.ops.residual import Residual, added
from helixfold.ops.shared_parameters import LinearUse, linear_once
from helixfold.ops.transition import transition
from helixfold.ops.weights import Affine, TransitionWeights

# Initial distribution of a weight. "linear" and "relu": normal, truncated at 2 standard deviations, with variance 1 /
# c_in and 2 / c_in. "normal": normal with variance 1 / c_in. "glorot": Glorot's uniform distribution. "zeros" and
# "gate": 0.
Init = Literal["linear", "relu", "normal", "glorot", "zeros", "gate"]


class Linear(nn.Linear):
    """A linear map of channels, whose initial weights have one of the distributions of DeepMind's program.

    AlphaFold 2, Suppl. Sec. 1.11.4. Biases start at 0, or at 1 with `init` "gate". Meta tensors are not initialised.
    """

    def __init__(self, c_in: int, c_out: int, *, bias: bool = True, init: Init = "linear") -> None:
        self.init = init
        super().__init__(c_in, c_out, bias=bias)

    def reset_parameters(self) -> None:
        # Initialising meta tensors makes PyTorch import its compiler, which is slow.
        match "none" if self.weight.is_meta else self.init:
            case "zeros" | "gate":
                nn.init.zeros_(self.weight)
            case "glorot":
                nn.init.xavier_uniform_(self.weight)
            case "normal":
                nn.init.normal_(self.weight, std=self.in_features**-0.5)
            case "linear" | "relu":
                # 0.8796... is the standard deviation of a unit normal distribution truncated at -2 and 2.
                std = ((2.0 if self.init == "relu" else 1.0) / self.in_features) ** 0.5 / 0.87962566103423978
                nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        if self.bias is not None:
            nn.init.constant_(self.bias, 1.0 if self.init == "gate" else 0.0)

    @property
    def affine(self) -> Affine:
        """Weight and bias, as operators take them."""
        return Affine(self.weight, self.bias)

    def forward(self, x: Float[Tensor, "*batch c_in"], use: LinearUse | None = None) -> Float[Tensor, "*batch c_out"]:
        """Apply the linear map, in the dtype of `x`.

        With `use`, its parameters are used instead of the module's own; it stands for one of several uses of the map.
        """
        return linear(x, self.affine) if use is None else linear_once(x, use)


class ToHeads(Linear):
    """A linear map to attention heads without bias, or several such maps in one, such as query, key and value.

    Each of `maps` maps has `heads * width` outputs. Weights start uniform between `-limit` and `limit`.
    """

    def __init__(self, c: int, heads: int, width: int, *, maps: int = 1) -> None:
        # Differs from the paper, as DeepMind's program does: in the paper, the range of Glorot's distribution (Suppl.
        # Sec. 1.11.4) follows from c inputs and heads * width outputs. The program has an array [c, heads, width], for
        # which haiku uses c * heads inputs and c * width outputs: a range 4.5 times smaller at model_1's sizes.
        self.limit = (6 / (c * heads + c * width)) ** 0.5
        super().__init__(c, maps * heads * width, bias=False, init="glorot")

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -self.limit, self.limit)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the last dim, the channels, with statistics in float32; the result has the dtype of the input."""

    def __init__(self, c: int) -> None:
        super().__init__(c, eps=EPS)

    @property
    def affine(self) -> Affine:
        """Weight and bias, as operators take them."""
        return Affine(self.weight, self.bias)

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        return layer_norm(x, self.affine)


class Transition(Update):
    """Layer norm, then two linear maps with a ReLU between them, applied to each element separately.

    AlphaFold 2, Suppl. Alg. 9 and 15. There are `factor * c` hidden channels. The mask is not used.
    """

    elementwise = True
    takes_residual = True

    def __init__(self, c: int, factor: int) -> None:
        super().__init__()
        self.norm = LayerNorm(c)
        self.linear_1 = Linear(c, factor * c, init="relu")
        self.linear_2 = Linear(factor * c, c, init="zeros")

    def forward(
        self,
        slab: Float[Tensor, "b i j c"],
        mask: Float[Tensor, "b i j"],
        context: tuple[()],
        *,
        residual: Residual | None = None,
    ) -> Float[Tensor, "b i j c"]:
        """Return the change of a slab, or with `residual` its stream plus dropout mask times change."""
        # As in DeepMind's program, the mask is not used: values at padding never reach real residues.
        weights = TransitionWeights(self.norm.affine, self.linear_1.affine, self.linear_2.affine)
        return added(residual, transition, slab, weights)
