"""Gates of attention on a CPU, which turn heads [n, h, k, d] into channels [(n k), (h d)].

For global attention, with one query per row, heads are [n, h, 1, d].
"""

from einops import rearrange
from torch import Tensor

from helixfold.ops.cpu.loops import compiled


def gate_heads(attended: Tensor, logits: Tensor) -> Tensor:
    """Return gated channels [m, h*d]: the attended values [n, h, k, d] times the sigmoid of the logits [m, h*d]."""
    if loops := compiled("head_gates", attended, logits, one_dtype=True):
        gated = attended.new_empty(logits.shape)
        loops.write_gated(attended, logits, gated)
        return gated
    return _times_attended(logits.sigmoid(), attended)


def attended_gradient(gradient: Tensor, logits: Tensor, out: Tensor) -> None:
    """Write the gradient of attended values [n, h, k, d] into `out`, given the gradient of gated values [m, h*d]."""
    if loops := compiled("head_gates", gradient, logits, out, one_dtype=True):
        loops.write_attended_gradient(gradient, logits, out)
        return
    n, h, queries, _ = out.shape
    grad_attended = rearrange(logits.sigmoid().mul_(gradient), "(n k) (h d) -> n h k d", n=n, h=h)
    out.copy_(grad_attended.sum(2, keepdim=True) if queries == 1 else grad_attended)


def gate_heads_and_logits_gradient(attended: Tensor, logits: Tensor, gradient: Tensor, grad_logits: Tensor) -> Tensor:
    """Return the result of `gate_heads`, and write the gradient of the logits into `grad_logits`.

    `gradient` is the gradient of the result.
    """
    if loops := compiled("head_gates", attended, logits, gradient, grad_logits, one_dtype=True):
        gated = attended.new_empty(logits.shape)
        loops.write_logits_gradient(attended, logits, gradient, gated, grad_logits)
        return gated
    gates = logits.sigmoid()
    gated = _times_attended(gates.clone(), attended)
    # The derivative of the sigmoid g is g * (1 - g).
    grad_logits.copy_(gated * gradient).addcmul_(grad_logits, gates, value=-1)
    return gated


def _times_attended(gates: Tensor, attended: Tensor) -> Tensor:
    """Multiply gates [m, h*d] by the attended values in place."""
    gates.view(len(attended), -1, gates.shape[1]).mul_(rearrange(attended, "n h k d -> n k (h d)"))
    return gates
