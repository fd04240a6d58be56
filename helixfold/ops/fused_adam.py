"""The fused optimizer update of flat buffers: gradient scale, Adam, moving average and bfloat16 copy."""

import math

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from helixfold.ops.adam import AdamBuffers, AdamStep
from helixfold.ops.constants import LINE
from helixfold.ops.dispatch import Backend, operator
from helixfold.ops.triton.requirements import missing_requirement

# Elements of a chunk per thread. Waking the threads of a CPU for each operation takes longer than reading a small chunk
# of the buffers again.
_CHUNK_OF_A_THREAD = 2**20
_CHUNK_ON_A_DEVICE = 2**24


def _in_chunks(buffers: AdamBuffers, gradient: Tensor, scale: Tensor, step: AdamStep) -> None:
    """Update chunk by chunk with PyTorch's fused AdamW, and do the rest while the chunk is in the cache."""
    on_cpu = gradient.device.type == "cpu"
    chunk = min(_CHUNK_OF_A_THREAD * torch.get_num_threads() if on_cpu else _CHUNK_ON_A_DEVICE, _CHUNK_ON_A_DEVICE)
    # A scale that is the same for all lines is left to the update, which divides by its reciprocal.
    divisor = scale[0].reciprocal() if scale.stride() == (0,) else None
    step_number = torch.full((), float(step.count), device=gradient.device)
    # PyTorch's update takes a float32 gradient. All chunks reuse one buffer for it, which stays in the cache.
    converted = None if gradient.dtype == torch.float32 else buffers.master.new_empty(min(chunk, len(gradient)))
    working = iter(()) if buffers.working is None else iter(buffers.working.split(chunk))
    for part, factor, master, first, second, average in zip(
        gradient.split(chunk),
        scale.split(chunk // LINE),
        buffers.master.split(chunk),
        buffers.first_moment.split(chunk),
        buffers.second_moment.split(chunk),
        buffers.average.split(chunk),
        strict=True,
    ):
        values = part if converted is None else converted[: len(part)].copy_(part)
        if divisor is None:
            values.view(-1, LINE).mul_(factor[:, None])
        torch._fused_adamw_(
            [master],
            [values],
            [first],
            [second],
            [],
            [step_number],
            lr=step.learning_rate,
            beta1=step.beta1,
            beta2=step.beta2,
            weight_decay=step.weight_decay,
            eps=step.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
        )
        average.lerp_(master, 1 - step.ema_decay)
        part.zero_()
        copy = next(working, None)
        if copy is not None:
            copy.copy_(master[: len(copy)])


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.fused_adam:fused_adam_triton",
        unsupported_reason=lambda properties, *_: missing_requirement(properties),
    ),
    Backend(
        name="chunks",
        kinds=("cpu", "cuda"),
        run=_in_chunks,
        unsupported_reason=lambda *_: (
            None if hasattr(torch, "_fused_adamw_") else f"torch {torch.__version__} has no _fused_adamw_"
        ),
    ),
)
def fused_adam(
    buffers: AdamBuffers, gradient: Float[Tensor, " n"], scale: Float32[Tensor, " lines"], step: AdamStep
) -> None:
    """Update the buffers in place with AdamW, from the gradient times the scale of each line, and zero the gradient.

    The moving average and the bfloat16 copy in the buffers are updated, too. A line is `LINE` consecutive elements. The
    gradient may be bfloat16; its product with the scale is float32. Adam: arXiv 1412.6980, Alg. 1; AdamW: arXiv
    1711.05101, Alg. 2.
    """
    scaled = (gradient.float().view(-1, LINE) * scale[:, None]).view(-1)
    buffers.first_moment.lerp_(scaled, 1 - step.beta1)
    buffers.second_moment.mul_(step.beta2).addcmul_(scaled, scaled, value=1 - step.beta2)
    root = buffers.second_moment.sqrt().div_(math.sqrt(step.correction2)).add_(step.eps)
    buffers.master.mul_(1 - step.learning_rate * step.weight_decay)
    buffers.master.addcdiv_(buffers.first_moment, root, value=-step.learning_rate / step.correction1)
    buffers.average.lerp_(buffers.master, 1 - step.ema_decay)
    if buffers.working is not None:
        buffers.working.copy_(buffers.master[: len(buffers.working)])
    gradient.zero_()
