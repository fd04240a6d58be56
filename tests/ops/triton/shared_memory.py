"""Compile kernels for a compute capability without a GPU, and print the shared memory that they take.

    python -m tests.ops.triton.shared_memory 80 transition-128 outer_product-32

prints one line of JSON: for each case (all of them if none is named) the bytes that the kernels of its forward pass
take at most, and those of both passes.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch

from helixfold.ops.attention import attention
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from helixfold.ops.dispatch import forced
from helixfold.ops.linear import norm_linear
from helixfold.ops.outer_product import outer_product_mean, outer_product_operands
from helixfold.ops.transition import transition
from helixfold.ops.triangle import triangle_multiplication, triangle_operand, triangle_update
from helixfold.ops.triton.compiled import compiled_launches
from helixfold.ops.weights import Affine, TransitionWeights, TriangleOperandWeights, TriangleWeights

N = 256


def _stream(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def _affine(c_out: int, c_in: int) -> Affine:
    return Affine(_stream(c_out, c_in, dtype=torch.float32), _stream(c_out, dtype=torch.float32))


def _norm(c: int) -> Affine:
    return Affine(_stream(c, dtype=torch.float32), _stream(c, dtype=torch.float32))


def _ones(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def _attention(dtype: torch.dtype, d: int) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        query, key, value, gate = (_stream(1, 4, N, 2, d, dtype=dtype).transpose(2, 3) for _ in range(4))
        bias = _stream(1, 2, N, N, dtype=dtype)
        found = [attention(query, key, value, _ones(1, 4, N), term, gate) for term in (bias, None)]
        # A bias whose gradient nobody asks for leaves the queries' to a kernel of their own.
        return [*found, attention(query, key, value, _ones(1, 4, N), bias.detach(), gate)]

    return run


def _norm_linear(dtype: torch.dtype, c: int, outputs: int) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        x, halves = _stream(1, N, N, c, dtype=dtype), (_affine(outputs // 2, c), _affine(outputs // 2, c))
        operands = outer_product_operands(x, _ones(1, N, N), _norm(c), *halves)
        return [norm_linear(x, _norm(c), _affine(outputs - 1, c)), *operands]

    return run


def _outer_product(c: int, c_z: int) -> Callable[[], list[Any]]:
    return lambda: [
        outer_product_mean(
            _stream(1, N, s, c), _stream(1, s, N, c), _ones(1, N, s), _ones(1, s, N), _affine(c_z, c * c)
        )
        for s in (64, 128, 512)
    ]


def _transition(c: int) -> Callable[[], list[Any]]:
    return lambda: [transition(_stream(1, N, N, c), TransitionWeights(_norm(c), _affine(4 * c, c), _affine(c, 4 * c)))]


def _triangle(c_z: int, c: int) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        pair, mask, right = _stream(1, N, N, c_z), _ones(1, N, N), _stream(1, c, N, N)
        maps = _affine(c, c_z), _affine(c, c_z)
        operand = TriangleOperandWeights(_norm(c_z), *maps)
        weights = TriangleWeights(_norm(c_z), *maps, _norm(c), _affine(c_z, c), _affine(c_z, c_z))
        return [
            triangle_operand(pair, mask, operand),
            triangle_multiplication(pair, mask, right, weights),
            triangle_update(pair, mask, *maps, weights),
        ]

    return run


CASES: dict[str, Callable[[], list[Any]]] = {
    **{f"transition-{c}": _transition(c) for c in (32, 64, 128, 256)},
    **{f"triangle-{c}": _triangle(c, c) for c in (16, 32, 64, 128)},
    **{f"outer_product-{c}-{c_z}": _outer_product(c, c_z) for c in (8, 16, 32) for c_z in (32, 64, 128)},
    **{f"attention-2-{d}": _attention(torch.bfloat16, d) for d in (8, 16, 32, 64)},
    **{f"attention-4-{d}": _attention(torch.float32, d) for d in (8, 16, 32, 64)},
    **{f"norm_linear-2-{c}-{n}": _norm_linear(torch.bfloat16, c, n) for c in (64, 128, 256) for n in (16, 32, 64)},
    **{f"norm_linear-4-{c}-16": _norm_linear(torch.float32, c, 16) for c in (64, 128, 256)},
}


def shared_memory(case: str, capability: int) -> tuple[int, int]:
    """Return the most bytes of the kernels of a case's forward pass, and of both passes."""
    # On a card with room for whatever the kernels take.
    properties = replace(DEVICE_MODELS["h200"], capability=divmod(capability, 10), shared_memory=2**30)
    with compiled_launches(capability) as launched, simulated_device(properties), forced("triton"):
        outputs = CASES[case]()
        forward = len(launched)
        torch.autograd.backward(outputs, [torch.empty_like(each) for each in outputs])
    taken = [kernel.shared_memory for kernel in launched]
    if "-v" in sys.argv:
        for kernel in launched:
            print(case, kernel.name, kernel.shared_memory, file=sys.stderr, flush=True)
    return max(taken[:forward], default=0), max(taken)


if __name__ == "__main__":
    capability, *named = (each for each in sys.argv[1:] if each != "-v")
    print(json.dumps({case: shared_memory(case, int(capability)) for case in named or CASES}))
