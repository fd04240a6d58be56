"""Requirements of the Triton kernels: compute capability and shared memory.

The table of shared memory was compiled with Triton 3.9 by `python -m tests.ops.triton.shared_memory`. A test recompiles
parts of it.
"""

from functools import cache
from importlib.util import find_spec

from helixfold.ops.device_properties import DeviceProperties, is_simulated

# Maximum bytes per thread block in the forward pass and in both passes, for compute capability 8.x, then for 9.0, whose
# matrix products read more operands from shared memory. Names end with the sizes that determine the tiles: channels
# (and channels of an edge), or bytes per element, channels and outputs rounded up.
_SHARED_BYTES = {
    "transition-32": (8192, 24576, 28672, 28672),
    "transition-64": (16384, 24576, 57344, 57344),
    "transition-128": (36864, 36864, 114688, 114688),
    "transition-256": (51200, 51200, 98304, 98304),
    "triangle-16": (8704, 8704, 5120, 5120),
    "triangle-32": (18432, 18432, 12288, 12288),
    "triangle-64": (49152, 49152, 53248, 53248),
    "triangle-128": (90112, 90112, 102400, 102400),
    "outer_product-8-32": (16384, 32768, 39936, 81920),
    "outer_product-8-64": (16384, 36864, 43008, 90112),
    "outer_product-8-128": (32768, 45056, 49152, 106496),
    "outer_product-16-32": (24576, 45056, 63488, 122880),
    "outer_product-16-64": (24576, 49152, 69632, 131072),
    "outer_product-16-128": (32768, 57344, 81920, 147456),
    "outer_product-32-32": (40960, 69632, 110592, 204800),
    "outer_product-32-64": (49152, 73728, 122880, 212992),
    "outer_product-32-128": (65536, 81920, 147456, 229376),
    "attention-2-8": (24832, 24832, 16640, 24576),
    "attention-2-16": (24832, 24832, 16640, 24576),
    "attention-2-32": (33024, 33024, 24832, 49152),
    "attention-2-64": (49408, 49408, 41216, 98304),
    "attention-4-8": (24960, 37120, 24960, 37120),
    "attention-4-16": (24960, 37120, 24960, 37120),
    "attention-4-32": (32896, 49408, 32896, 49408),
    "attention-4-64": (49536, 73984, 49536, 73984),
    "norm_linear-2-64-16": (34816, 34816, 34816, 34816),
    "norm_linear-2-64-32": (36864, 36864, 36864, 36864),
    "norm_linear-2-64-64": (36864, 36864, 40960, 40960),
    "norm_linear-2-128-16": (36864, 36864, 36864, 36864),
    "norm_linear-2-128-32": (36864, 36864, 40960, 40960),
    "norm_linear-2-128-64": (36864, 43520, 49152, 49152),
    "norm_linear-2-256-16": (40960, 63488, 40960, 63488),
    "norm_linear-2-256-32": (40960, 70656, 49152, 70656),
    "norm_linear-2-256-64": (49152, 87040, 65536, 91136),
    "norm_linear-4-64-16": (36864, 36864, 36864, 36864),
    "norm_linear-4-128-16": (40960, 40960, 40960, 40960),
    "norm_linear-4-256-16": (49152, 71680, 49152, 71680),
}


def shared_memory(kernels: str, capability: tuple[int, int], *, gradients: bool) -> int:
    """Return the bytes per thread block that these kernels need, including the backward pass if `gradients`."""
    # Compute capability 12.x (GeForce RTX 50) has the matrix instructions of 8.x.
    return _SHARED_BYTES[kernels][(2 if capability[0] in (9, 10) else 0) + gradients]


@cache
def triton_is_there() -> bool:
    """Return whether Triton is installed, without importing it."""
    return find_spec("triton") is not None


def missing_requirement(
    properties: DeviceProperties, kernels: str | None = None, *, gradients: bool = False
) -> str | None:
    """Return why the device cannot run Triton kernels, or None if it can.

    `kernels` is a name in `_SHARED_BYTES`, for kernels that need much shared memory; `gradients` includes their
    backward pass. Triton must be installed unless a device is simulated. Devices without a compute capability are
    accepted: there Triton interprets the kernels, or nothing is computed. Others need at least 8.0.
    """
    if not triton_is_there() and not is_simulated():
        return "triton is not installed"
    if properties.capability is None:
        return None
    if properties.capability < (8, 0):
        capability = ".".join(map(str, properties.capability))
        return f"its kernels and bfloat16 need compute capability 8.0, the GPU has {capability}"
    min_bytes = 0 if kernels is None else shared_memory(kernels, properties.capability, gradients=gradients)
    reason = (
        f"its kernels need {min_bytes // 1024} KiB of shared memory, the GPU has {properties.shared_memory // 1024}"
    )
    return reason if min_bytes > properties.shared_memory else None
