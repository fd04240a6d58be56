"""The fused Adam update as one Triton kernel that reads and writes every buffer once."""

import math

from torch import Tensor

from helixfold.ops.adam import AdamBuffers, AdamStep
from helixfold.ops.constants import LINE
from helixfold.ops.triton.language import cdiv, kernel, tl

_BLOCK = 1024


@kernel
def _update(
    master_at,
    gradient_at,
    first_at,
    second_at,
    average_at,
    working_at,
    scale_at,
    scale_stride,
    elements,
    working_elements,
    decay,
    step_size,
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    root_correction2,
    eps,
    average_rate,
    line: tl.constexpr,
    block: tl.constexpr,
    has_working: tl.constexpr,
):
    """Update one block of `block` elements of all buffers; names that end with `_at` are addresses."""
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = index < elements
    scale = tl.load(scale_at + index // line * scale_stride, mask=inside, other=0.0)
    gradient = tl.load(gradient_at + index, mask=inside, other=0.0) * scale
    first = beta1 * tl.load(first_at + index, mask=inside, other=0.0) + one_minus_beta1 * gradient
    second = beta2 * tl.load(second_at + index, mask=inside, other=0.0) + one_minus_beta2 * gradient * gradient
    master = tl.load(master_at + index, mask=inside, other=0.0) * decay
    master -= step_size * first / (tl.sqrt(second) / root_correction2 + eps)
    average = tl.load(average_at + index, mask=inside, other=0.0)
    average += average_rate * (master - average)
    tl.store(master_at + index, master, mask=inside)
    tl.store(first_at + index, first, mask=inside)
    tl.store(second_at + index, second, mask=inside)
    tl.store(average_at + index, average, mask=inside)
    tl.store(gradient_at + index, 0.0, mask=inside)
    if has_working:
        tl.store(working_at + index, master.to(tl.bfloat16), mask=index < working_elements)


def fused_adam_triton(buffers: AdamBuffers, gradient: Tensor, scale: Tensor, step: AdamStep) -> None:
    """Compute `fused_adam` on a CUDA device; `scale` may be an expanded scalar."""
    elements = buffers.master.numel()
    working = buffers.working
    _update[(cdiv(elements, _BLOCK),)](
        buffers.master,
        gradient,
        buffers.first_moment,
        buffers.second_moment,
        buffers.average,
        buffers.master if working is None else working,
        scale,
        scale.stride(0),
        elements,
        0 if working is None else working.numel(),
        1 - step.learning_rate * step.weight_decay,
        step.learning_rate / step.correction1,
        step.beta1,
        1 - step.beta1,
        step.beta2,
        1 - step.beta2,
        math.sqrt(step.correction2),
        step.eps,
        1 - step.ema_decay,
        line=LINE,
        block=_BLOCK,
        has_working=working is not None,
    )
