"""Flat buffers in the middle of a training run, for tests of the fused update."""

from dataclasses import fields

import torch
from torch import Tensor

from helixfold.ops.adam import AdamBuffers, AdamStep
from helixfold.ops.constants import LINE

STEP = AdamStep(
    count=7, learning_rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01, ema_decay=0.99
)  # fmt: skip


def buffers(lines: int, working_lines: int | None) -> AdamBuffers:
    """Random buffers; the working copy, to be written only, is full of NaN."""
    elements = lines * LINE
    return AdamBuffers(
        master=torch.randn(elements),
        first_moment=1e-2 * torch.randn(elements),
        second_moment=1e-4 * torch.rand(elements),
        average=torch.randn(elements),
        working=None if working_lines is None else torch.full((working_lines * LINE,), torch.nan, dtype=torch.bfloat16),
    )


def gradient_and_scale(lines: int, *, uniform: bool, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    scale = torch.tensor(0.37).expand(lines) if uniform else torch.rand(lines)
    return (1e-2 * torch.randn(lines * LINE)).to(dtype), scale


def copied(given: AdamBuffers, dtype: torch.dtype | None = None) -> AdamBuffers:
    """The same numbers in other memory."""
    return AdamBuffers(
        **{
            field.name: None if (value := getattr(given, field.name)) is None else value.clone()
            for field in fields(given)
        }
    )
