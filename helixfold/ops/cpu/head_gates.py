"""Gates of attention on a CPU, between heads [n, h, k, d] and channels [(n k), (h d)].

If all elements of a row have attended as one, heads are [n, h, 1, d].
"""

from einops import rearrange
from torch import Tensor

from helixfold.ops.cpu.loops import compiled


def gate_heads(attended: Tensor, logits: Tensor) -> Tensor:
    """Return channels [m, h*d]: the attended values [n, h, k, d] times the sigmoid of logits [m, h*d]."""
    if loops := compiled("head_gates", attended, logits, one_dtype=True):
        gated = attended.new_empty(logits.shape)
        loops.write_gated(attended, logits, gated)
        return gated
    return _times_attended(logits.sigmoid(), attended)


def attended_gradient(gradient: Tensor, logits: Tensor, out: Tensor) -> None:
    """Write the gradient of attended values [n, h, k, d] from that of the gated ones [m, h*d]."""
    if loops := compiled("head_gates", gradient, logits, out, one_dtype=True):
        loops.write_attended_gradient(gradient, logits, out)
        return
    n, h, queries, _ = out.shape
    found = rearrange(logits.sigmoid().mul_(gradient), "(n k) (h d) -> n h k d", n=n, h=h)
    out.copy_(found.sum(2, keepdim=True) if queries == 1 else found)


def gate_heads_again(attended: Tensor, logits: Tensor, gradient: Tensor, grad_logits: Tensor) -> Tensor:
    """Return the same as `gate_heads`, and write the gradient of the logits from that of the gated values."""
    if loops := compiled("head_gates", attended, logits, gradient, grad_logits, one_dtype=True):
        gated = attended.new_empty(logits.shape)
        loops.write_logits_gradient(attended, logits, gradient, gated, grad_logits)
        return gated
    gates = logits.sigmoid()
    gated = _times_attended(gates.clone(), attended)
    # The derivative of a sigmoid is the product of itself and what it lacks to 1.
    grad_logits.copy_(gated * gradient).addcmul_(grad_logits, gates, value=-1)
    return gated


def _times_attended(gates: Tensor, attended: Tensor) -> Tensor:
    """Multiply gates [m, h*d] by what is attended, in place."""
    gates.view(len(attended), -1, gates.shape[1]).mul_(rearrange(attended, "n h k d -> n k (h d)"))
    return gates
