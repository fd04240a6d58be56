"""Gates and layer norms of triangle multiplication, with channels first, on a CPU."""

from typing import NamedTuple

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.loops import compiled


class ChannelStatistics(NamedTuple):
    """The means and reciprocal deviations by which positions [c, m] were normalised, each [m] in float32."""

    mean: Tensor
    scale: Tensor


def gate(both: Tensor, bias: Tensor, mask: Tensor, out: Tensor) -> None:
    """Write gated and masked values into `out` [c, rows, columns].

    `both` [2c, m] are projections without their bias [2c]: in the first half the values, then the logits of the gates.
    The mask is [rows, columns]. `both` is overwritten.
    """
    if loops := compiled("channels_first", both, bias, mask, out, one_dtype=True):
        loops.write_gated(both, bias, mask, out)
    else:
        values = torch.nn.functional.glu(both.add_(bias[:, None]), 0)
        torch.mul(values.view(out.shape), mask, out=out)


def gate_gradient(gradient: Tensor, both: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Return the gradient of the projections [2c, m] from that of what `gate` writes; `both` is overwritten."""
    if loops := compiled("channels_first", gradient, both, bias, mask, one_dtype=True):
        loops.write_gated_gradient(both, bias, mask, _with_dense_rows(gradient))
        return both
    return torch.ops.aten.glu_backward((gradient * mask).reshape(len(gradient), -1), both.add_(bias[:, None]), 0)


def gate_gradient_by_result(gradient: Tensor, result: Tensor, logits: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Return the same as `gate_gradient` from what `gate` wrote and the gates' logits [c, m], without their bias [c].

    The logits are overwritten.
    """
    if loops := compiled("channels_first", gradient, result, logits, bias, mask, one_dtype=True):
        return loops.gradient_by_result(logits, bias, mask, _with_dense_rows(gradient), result)
    gates = logits.add_(bias[:, None]).sigmoid_()
    grad_both = logits.new_empty(2, *gradient.shape)
    torch.mul(gradient, mask, out=grad_both[0])
    torch.mul(gradient, result, out=grad_both[1])
    grad_value, grad_gate = grad_both.view(2, *gates.shape)
    grad_value.mul_(gates)
    grad_gate.addcmul_(grad_gate, gates, value=-1)
    return grad_both.view(-1, gates.shape[1])


def gate_change(logits: Tensor, mapped: Tensor) -> None:
    """Overwrite the logits of gates [rows, columns, c] by the gated values; `mapped` is [m, c]."""
    if loops := compiled("channels_first", logits, mapped, one_dtype=True):
        loops.write_gated_change(logits, mapped)
    else:
        logits.sigmoid_().mul_(mapped.view(logits.shape))


def gate_change_gradient(gradient: Tensor, logits: Tensor, mapped: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of logits and mapped values, which are overwritten, from that of the gated ones [m, c]."""
    if loops := compiled("channels_first", gradient, logits, mapped, one_dtype=True):
        loops.write_gated_change_gradient(logits, mapped, gradient.contiguous())
        return logits, mapped
    gates = logits.sigmoid_()
    grad_logits = torch.ops.aten.sigmoid_backward(mapped.mul_(gradient), gates)
    return grad_logits, gates.mul_(gradient)


def normalised_channels(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, ChannelStatistics]:
    """Return normalised positions [c, m] of `x` [c, rows, columns], and their statistics."""
    if x.dtype == dtype and (loops := compiled("channels_first", x)):
        values, mean, scale = loops.normalised(x)
        return values, ChannelStatistics(mean, scale)
    values = torch.empty(x.shape, device=x.device).copy_(x).view(len(x), -1)
    average = torch.full((1, len(x)), 1 / len(x), device=x.device)
    mean = average @ values
    values.sub_(mean)
    scale = (average @ values.square()).add_(EPS).rsqrt_()
    return values.mul_(scale).to(dtype), ChannelStatistics(mean[0], scale[0])


def channel_norm_gradient(gradient: Tensor, x: Tensor, statistics: ChannelStatistics, out: Tensor) -> None:
    """Write the gradient of `x` into `out`, which may be `x`, from that of what `normalised_channels` returned."""
    if loops := compiled("channels_first", gradient, x, out, one_dtype=True):
        loops.write_normalised_gradient(gradient.contiguous(), x, *statistics, out)
        return
    values = torch.empty(x.shape, device=x.device).copy_(x).view(len(x), -1)
    values.sub_(statistics.mean).mul_(statistics.scale)
    gradient = gradient.float()
    average = torch.full((1, len(x)), 1 / len(x), device=x.device)
    slope = average @ (gradient * values)
    gradient = (gradient - average @ gradient).addcmul_(values, slope, value=-1).mul_(statistics.scale)
    out.copy_(gradient.view(out.shape))


def _with_dense_rows(x: Tensor) -> Tensor:
    """Return a tensor [c, rows, columns] each of whose rows follows the one before: gradients may have any strides."""
    return x if x.stride(1) == x.shape[2] else x.contiguous()
