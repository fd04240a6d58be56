"""Shared memory that the kernels need, which is compared with what a card has.

Compiled with Triton 3.9 by `python -m tests.ops.triton.shared_memory`; a test compiles some of it again.
"""

# The most bytes of a thread block in the forward pass, and in either pass, for compute capability 8.x, then for 9.0,
# whose matrix products read more operands from shared memory. Names end with the sizes that determine the tiles:
# channels (and those of an edge), or bytes of a number, channels and outputs rounded up.
_BYTES = {
    "transition-32": (16384, 40960, 24576, 49152),
    "transition-64": (32768, 65536, 49152, 81920),
    "transition-128": (65536, 114688, 98304, 147456),
    "transition-256": (147456, 172032, 196608, 204800),
    "triangle-16": (8704, 8704, 9216, 9216),
    "triangle-32": (18432, 18432, 20480, 20480),
    "triangle-64": (49152, 49152, 57344, 57344),
    "triangle-128": (90112, 90112, 106496, 106496),
    "outer_product-8-32": (43008, 53248, 61440, 94208),
    "outer_product-8-64": (45056, 57344, 65536, 98304),
    "outer_product-8-128": (49152, 65536, 73728, 106496),
    "outer_product-16-32": (69632, 69632, 90112, 118784),
    "outer_product-16-64": (73728, 73728, 98304, 122880),
    "outer_product-16-128": (81920, 81920, 114688, 131072),
    "outer_product-32-32": (122880, 122880, 147456, 167936),
    "outer_product-32-64": (131072, 131072, 163840, 172032),
    "outer_product-32-128": (147456, 147456, 196608, 196608),
    "attention-2-8": (20736, 28928, 24832, 33024),
    "attention-2-16": (20736, 28928, 24832, 33024),
    "attention-2-32": (33024, 41216, 41216, 58372),
    "attention-2-64": (57600, 65792, 73984, 82692),
    "attention-4-8": (33280, 37120, 33280, 37120),
    "attention-4-16": (33280, 37120, 33280, 37120),
    "attention-4-32": (49408, 49408, 49408, 49408),
    "attention-4-64": (82432, 82432, 82432, 82432),
    "norm_linear-2-64-16": (34816, 60416, 34816, 60416),
    "norm_linear-2-64-32": (36864, 62464, 36864, 62464),
    "norm_linear-2-64-64": (36864, 74752, 40960, 74752),
    "norm_linear-2-128-16": (36864, 59392, 36864, 59392),
    "norm_linear-2-128-32": (36864, 63488, 40960, 63488),
    "norm_linear-2-128-64": (36864, 75776, 49152, 75776),
    "norm_linear-2-256-16": (40960, 63488, 40960, 63488),
    "norm_linear-2-256-32": (40960, 71680, 49152, 71680),
    "norm_linear-2-256-64": (49152, 90112, 65536, 94208),
    "norm_linear-4-64-16": (36864, 62464, 36864, 62464),
    "norm_linear-4-128-16": (40960, 63488, 40960, 63488),
    "norm_linear-4-256-16": (49152, 71680, 49152, 71680),
}


def shared_memory(kernels: str, capability: tuple[int, int], *, gradients: bool) -> int:
    """Return the most bytes that these kernels need, including the backward pass if `gradients`."""
    # Capability 12.x (GeForce RTX 50) has the matrix products of 8.x.
    return _BYTES[kernels][(2 if capability[0] in (9, 10) else 0) + gradients]
