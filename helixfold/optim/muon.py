"""Muon: hidden matrices are updated by their momentum with all its singular values made equal.

The gradient of a few examples has few large directions; Adam moves along these and hardly learns the others. With equal
singular values, every direction of the gradient is learned at the same speed (Jordan et al. 2024,
kellerjordan.github.io/posts/muon). Other parameters are left to Adam.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from helixfold.ops.constants import LINE
from helixfold.optim.config import MuonConfig
from helixfold.optim.parameter_layout import ParameterLayout, Slot

# Input and output layers are left to Adam: their rows and columns are features and classes, which differ in scale.
_OUTER_LAYERS = ("heads.", "input_embedder.", "recycling_embedder.", "extra_msa_embedder.", "template_embedder.")
_SMALLEST = 8  # rows and columns of a hidden matrix at least; singular values of smaller ones say little
# Coefficients a, b, c of a x + b x^3 + c x^5, which brings singular values of 0.003 and more to between 0.7 and 1.2 in
# five rounds (Jordan et al. 2024).
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Adam's updates have a root mean square of 0.2 to 0.4 of its learning rate. This factor gives orthogonal updates the
# same, so that one learning rate and weight decay fit both (Liu et al. 2025, arXiv 2502.16982, Sec. 2.2).
_LIKE_ADAM = 0.2
# The bound of torch's Muon. A smaller momentum is rounding, which must not become a full update; and squares below
# 1e-45 would make the norm 0.
_LEAST_NORM = 1e-7


class Muon:
    """Updates of the hidden matrices in an optimizer's flat buffers, and their momentum.

    `like` is one of the flat buffers. `others` has 1 for every line of the buffers that is left to Adam, 0 elsewhere.
    """

    def __init__(self, layout: ParameterLayout, config: MuonConfig, like: Float32[Tensor, " n"]) -> None:
        self.config = config
        self.momentum = torch.zeros_like(like)
        self._groups = _by_shape([slot for slot in layout.slots if is_hidden_matrix(slot)])
        mine = torch.zeros(layout.total // LINE, dtype=torch.bool)
        for slot in (slot for group in self._groups for slot in group):
            mine[slot.offset // LINE : slot.offset // LINE + slot.lines] = True
        self.others = (~mine).float().to(like.device)

    @torch.no_grad()
    def step(
        self,
        master: Float32[Tensor, " n"],
        gradient: Float32[Tensor, " n"],
        scale: Float32[Tensor, ""] | Float32[Tensor, " lines"],
        learning_rate: float,
    ) -> None:
        """Update the hidden matrices in `master` by the gradient times `scale`, one factor for all or for each line."""
        decay, rate = self.config.momentum, learning_rate * self.config.rate
        for group in self._groups:
            scales = [scale if scale.ndim == 0 else scale[slot.offset // LINE] for slot in group]
            gradients = torch.stack([_matrix(gradient, slot) * s for slot, s in zip(group, scales, strict=True)])
            momenta = [_matrix(self.momentum, slot) for slot in group]
            for momentum, each in zip(momenta, gradients, strict=True):
                momentum.lerp_(each, 1 - decay)
            # Nesterov's momentum: what it will be if the next gradient equals this one.
            changes = orthogonal(torch.stack(momenta).lerp_(gradients, 1 - decay), self.config.rounds)
            size = rate * _LIKE_ADAM * max(group[0].shape) ** 0.5
            for slot, change in zip(group, changes, strict=True):
                _matrix(master, slot).sub_(change, alpha=size)


def is_hidden_matrix(slot: Slot) -> bool:
    """Return whether a parameter maps one hidden representation to another."""
    return len(slot.shape) == 2 and min(slot.shape) >= _SMALLEST and not slot.name.startswith(_OUTER_LAYERS)


def orthogonal(matrices: Float[Tensor, "k m n"], rounds: int) -> Float[Tensor, "k m n"]:
    """Return each matrix with its singular values brought near 1 by Newton-Schulz iterations.

    Matrices with a Frobenius norm below 1e-7 stay small, and zeros stay zero. `rounds` is the number of iterations.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    now = matrices.mT if tall else matrices
    now = now / torch.linalg.matrix_norm(now, keepdim=True).clamp_min(_LEAST_NORM)
    for _ in range(rounds):
        square = now @ now.mT
        now = torch.baddbmm(now, torch.baddbmm(square, square, square, beta=b, alpha=c), now, beta=a)
    return now.mT if tall else now


def _by_shape(slots: Sequence[Slot]) -> list[list[Slot]]:
    """Group matrices by shape; those of one shape are updated together."""
    groups: dict[tuple[int, ...], list[Slot]] = {}
    for slot in slots:
        groups.setdefault(slot.shape, []).append(slot)
    return list(groups.values())


def _matrix(flat: Tensor, slot: Slot) -> Tensor:
    """Return a view of a matrix in a flat buffer."""
    rows, columns = slot.shape
    return flat[slot.offset : slot.offset + rows * columns].view(rows, columns)
