"""One update of all parameters in one pass over flat buffers: scale, Adam, moving average, bfloat16 copy."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import BFloat16, Float32
from torch import Tensor

from helixfold.ops.dispatch import Backend, Op, refusal_without_triton

# Elements that share a gradient scale. Buffers are made of whole lines: 64 bytes in bfloat16, 128 in float32.
LINE = 32
# Elements that a thread takes at a time: its share of five buffers stays in the processor's cache between operations.
_CHUNK_OF_A_THREAD = 2**17
_CHUNK_ON_A_DEVICE = 2**24


@dataclass(frozen=True, kw_only=True)
class AdamBuffers:
    """What an update changes. `working` is the rounded copy of the first `w` masters, if there is one."""

    master: Float32[Tensor, " n"]
    first_moment: Float32[Tensor, " n"]
    second_moment: Float32[Tensor, " n"]
    average: Float32[Tensor, " n"]
    working: BFloat16[Tensor, " w"] | None

    @property
    def device(self) -> torch.device:
        return self.master.device


@dataclass(frozen=True, kw_only=True)
class AdamStep:
    """The numbers of one update; `number` counts from 1, `weight_decay` is decoupled from the gradient (AdamW)."""

    number: int
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    ema_decay: float

    @property
    def correction1(self) -> float:
        return 1 - self.beta1**self.number

    @property
    def correction2(self) -> float:
        return 1 - self.beta2**self.number


def fused_adam(
    buffers: AdamBuffers, gradient: Float32[Tensor, " n"], scale: Float32[Tensor, " lines"], step: AdamStep
) -> None:
    """Update the buffers in place with each line's gradient times its scale; the gradient is zero afterwards."""
    FUSED_ADAM(buffers, gradient, scale, step)


def fused_adam_reference(
    buffers: AdamBuffers, gradient: Float32[Tensor, " n"], scale: Float32[Tensor, " lines"], step: AdamStep
) -> None:
    """What `fused_adam` means, in plain torch (Adam: arXiv 1412.6980, Alg. 1; AdamW: arXiv 1711.05101, Alg. 2)."""
    gradient.view(-1, LINE).mul_(scale[:, None])
    buffers.first_moment.lerp_(gradient, 1 - step.beta1)
    buffers.second_moment.mul_(step.beta2).addcmul_(gradient, gradient, value=1 - step.beta2)
    root = buffers.second_moment.sqrt().div_(math.sqrt(step.correction2)).add_(step.eps)
    buffers.master.mul_(1 - step.learning_rate * step.weight_decay)
    buffers.master.addcdiv_(buffers.first_moment, root, value=-step.learning_rate / step.correction1)
    buffers.average.lerp_(buffers.master, 1 - step.ema_decay)
    if buffers.working is not None:
        buffers.working.copy_(buffers.master[: len(buffers.working)])
    gradient.zero_()


def _in_chunks(buffers: AdamBuffers, gradient: Tensor, scale: Tensor, step: AdamStep) -> None:
    """PyTorch's own fused AdamW, and what it has no part in while its operands are in the cache."""
    on_cpu = gradient.device.type == "cpu"
    chunk = _CHUNK_OF_A_THREAD * torch.get_num_threads() if on_cpu else _CHUNK_ON_A_DEVICE
    number = torch.tensor(float(step.number), device=gradient.device)
    state = (buffers.master, buffers.first_moment, buffers.second_moment, buffers.average)
    working = iter(()) if buffers.working is None else iter(buffers.working.split(chunk))
    for part, factor, master, first, second, average in zip(
        gradient.split(chunk), scale.split(chunk // LINE), *(flat.split(chunk) for flat in state), strict=True
    ):
        part.view(-1, LINE).mul_(factor[:, None])
        torch._fused_adamw_(
            [master],
            [part],
            [first],
            [second],
            [],
            [number],
            lr=step.learning_rate,
            beta1=step.beta1,
            beta2=step.beta2,
            weight_decay=step.weight_decay,
            eps=step.eps,
            amsgrad=False,
            maximize=False,
        )
        average.lerp_(master, 1 - step.ema_decay)
        part.zero_()
        copy = next(working, None)
        if copy is not None:
            copy.copy_(master[: len(copy)])


def _refusal_of_chunks(*_: object, **__: object) -> str | None:
    return None if hasattr(torch, "_fused_adamw_") else f"torch {torch.__version__} has no _fused_adamw_"


def _by_triton(buffers: AdamBuffers, gradient: Tensor, scale: Tensor, step: AdamStep) -> None:
    from helixfold.ops.triton.fused_adam import fused_adam_triton  # noqa: PLC0415 (triton is there with CUDA only)

    fused_adam_triton(buffers, gradient, scale, step)


FUSED_ADAM = Op(
    "fused_adam",
    Backend(name="triton", devices=("cuda",), refusal=refusal_without_triton, run=_by_triton),
    Backend(name="chunks", devices=("cpu", "cuda"), refusal=_refusal_of_chunks, run=_in_chunks),
    Backend(name="reference", run=fused_adam_reference),
)
