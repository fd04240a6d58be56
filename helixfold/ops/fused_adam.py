"""One update of all parameters in one pass over flat buffers: scale, Adam, moving average, bfloat16 copy."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from jaxtyping import BFloat16, Float32
from torch import Tensor

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
    backend(buffers).run(buffers, gradient, scale, step)


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


def _refusal_of_chunks(buffers: AdamBuffers) -> str | None:
    if not hasattr(torch, "_fused_adamw_"):
        return f"torch {torch.__version__} has no _fused_adamw_"
    kind = buffers.master.device.type
    return None if kind in ("cpu", "cuda") else f"torch's fused AdamW is not used on {kind}"


def _by_triton(buffers: AdamBuffers, gradient: Tensor, scale: Tensor, step: AdamStep) -> None:
    from helixfold.ops.triton.fused_adam import fused_adam_triton  # noqa: PLC0415 (triton is there with CUDA only)

    fused_adam_triton(buffers, gradient, scale, step)


def _refusal_of_triton(buffers: AdamBuffers) -> str | None:
    if buffers.master.device.type != "cuda":
        return f"buffers on {buffers.master.device.type}, Triton compiles for cuda"
    return None if find_spec("triton") else "triton is not installed"


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A way to carry out the update; `refusal` says why it cannot be used with such buffers, None if it can."""

    name: str
    refusal: Callable[[AdamBuffers], str | None]
    run: Callable[[AdamBuffers, Tensor, Tensor, AdamStep], None]


# In the order of preference; the last one takes everything.
BACKENDS = (
    Backend(name="triton", refusal=_refusal_of_triton, run=_by_triton),
    Backend(name="chunks", refusal=_refusal_of_chunks, run=_in_chunks),
    Backend(name="reference", refusal=lambda _: None, run=fused_adam_reference),
)


def backend(buffers: AdamBuffers) -> Backend:
    """The first backend that does not refuse."""
    return next(each for each in BACKENDS if each.refusal(buffers) is None)
