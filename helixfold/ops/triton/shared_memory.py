"""Shared memory that the kernels need, which is compared with what a card has.

Compiled with Triton 3.9 by `python -m tests.ops.triton.shared_memory`; a test compiles some of it again.
"""

# The most bytes of a thread block in the forward pass, and in either pass, for compute capability 8.x, then for 9.0,
# whose matrix products read more operands from shared memory. Names end with the sizes that determine the tiles:
# channels (and those of an edge), or bytes of a number, channels and outputs rounded up.
_BYTES = {
    "transition-32": (8192, 16384, 12288, 20480),
    "transition-64": (16384, 28672, 24576, 36864),
    "transition-128": (36864, 53248, 49152, 69632),
    "transition-256": (51200, 83968, 98304, 135168),
    "triangle-16": (8704, 8704, 9216, 9216),
    "triangle-32": (18432, 18432, 20480, 20480),
    "triangle-64": (49152, 49152, 57344, 57344),
    "triangle-128": (90112, 90112, 106496, 106496),
    "outer_product-8-32": (16384, 32768, 32768, 57344),
    "outer_product-8-64": (16384, 36864, 32768, 61440),
    "outer_product-8-128": (32768, 45056, 36864, 69632),
    "outer_product-16-32": (24576, 45056, 53248, 77824),
    "outer_product-16-64": (24576, 49152, 57344, 81920),
    "outer_product-16-128": (32768, 57344, 65536, 90112),
    "outer_product-32-32": (40960, 69632, 98304, 118784),
    "outer_product-32-64": (49152, 73728, 106496, 122880),
    "outer_product-32-128": (65536, 81920, 122880, 131072),
    "attention-2-8": (20736, 20736, 24832, 24832),
    "attention-2-16": (20736, 20736, 24832, 24832),
    "attention-2-32": (33024, 33024, 41216, 41216),
    "attention-2-64": (57600, 57600, 73984, 73984),
    "attention-4-8": (33280, 37120, 33280, 37120),
    "attention-4-16": (33280, 37120, 33280, 37120),
    "attention-4-32": (49408, 49408, 49408, 49408),
    "attention-4-64": (82432, 82432, 82432, 82432),
    "norm_linear-2-64-16": (34816, 34816, 34816, 34816),
    "norm_linear-2-64-32": (36864, 36864, 36864, 36864),
    "norm_linear-2-64-64": (36864, 36864, 40960, 40960),
    "norm_linear-2-128-16": (36864, 36864, 36864, 36864),
    "norm_linear-2-128-32": (36864, 36864, 40960, 40960),
    "norm_linear-2-128-64": (36864, 47104, 49152, 51200),
    "norm_linear-2-256-16": (40960, 63488, 40960, 63488),
    "norm_linear-2-256-32": (40960, 71680, 49152, 71680),
    "norm_linear-2-256-64": (49152, 90112, 65536, 94208),
    "norm_linear-4-64-16": (36864, 36864, 36864, 36864),
    "norm_linear-4-128-16": (40960, 40960, 40960, 40960),
    "norm_linear-4-256-16": (49152, 71680, 49152, 71680),
}


def shared_memory(kernels: str, capability: tuple[int, int], *, gradients: bool) -> int:
    """Return the most bytes that these kernels need, including the backward pass if `gradients`."""
    # Capability 12.x (GeForce RTX 50) has the matrix products of 8.x.
    return _BYTES[kernels][(2 if capability[0] in (9, 10) else 0) + gradients]
