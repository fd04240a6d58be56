"""GPUs by compute capability, and the time that a kernel is estimated to take on them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from types import MappingProxyType

from helixfold.ops.card import CARDS, Card

# The shares of rates in `estimated_seconds`.
MEMORY_SHARE, MATRIX_SHARE, ISSUE_SHARE = 0.8, 0.7, 0.6
# Bytes that the L2 cache sends in a clock to each multiprocessor, about what published microbenchmarks find.
L2_BYTES = 32
# Threads of which a multiprocessor issues an instruction in a clock: its four schedulers issue one a warp.
ISSUED_THREADS = 128
# Warps on a multiprocessor that hide each other's latencies.
HIDING_WARPS = 16
# Seconds from one kernel's start to the next one's at least, as in the replay of a CUDA graph.
LAUNCH_SECONDS = 2.5e-6
# Bytes of shared memory that the driver takes of each thread block.
_RESERVED_SHARED_MEMORY = 1024
# Registers of a multiprocessor; they are given to a warp in pieces of so many.
_REGISTERS, _REGISTER_PIECE = 65536, 256


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A card with its rates: `memory` in bytes a second, `matrix` in dense bfloat16 FLOP a second, `clock` in Hz.

    `float32_lanes` is the multiply-adds of a multiprocessor in a clock, and `threads`, `blocks` and `shared_memory`
    (bytes) are the most that it holds at once.
    """

    card: Card
    memory: float
    matrix: float
    clock: float
    float32_lanes: int
    threads: int
    blocks: int
    shared_memory: int

    def blocks_at_once(self, warps: int, registers: int, shared_memory: int) -> int:
        """Return the thread blocks of a kernel that a multiprocessor holds at once; 0 if it cannot hold one."""
        of_warp = ceil(registers * 32 / _REGISTER_PIECE) * _REGISTER_PIECE
        return min(
            self.blocks,
            self.threads // (32 * warps),
            _REGISTERS // (warps * of_warp),
            self.shared_memory // (shared_memory + _RESERVED_SHARED_MEMORY),
        )


# Memory, matrix and clock rates are from NVIDIA's data sheets (T4, A100 80GB SXM, H200 SXM, HGX B200) and the white
# papers of the GeForce generations (RTX 3090, 4090, 5090); matrix rates are dense, with sums in float32. What a
# multiprocessor holds is from the CUDA programming guide's table of compute capabilities.
_B200 = replace(CARDS["h200"], name="NVIDIA B200", capability=(10, 0), memory=178 * 2**30, multiprocessors=148)
_RTX5090 = replace(
    CARDS["rtx4090"], name="NVIDIA GeForce RTX 5090", capability=(12, 0), memory=31 * 2**30, multiprocessors=170
)
# Card; GB/s, TFLOP/s and GHz; then of a multiprocessor: multiply-adds a clock, threads, blocks, KiB of shared memory.
_TABLE: Mapping[str, tuple[Card, float, float, float, int, int, int, int]] = {
    "sm_75": (CARDS["t4"], 320, 65, 1.59, 64, 1024, 16, 64),
    "sm_80": (CARDS["a100-80"], 2039, 312, 1.41, 64, 2048, 32, 164),
    "sm_86": (CARDS["rtx3090"], 936, 71, 1.695, 128, 1536, 16, 100),
    "sm_89": (CARDS["rtx4090"], 1008, 165.2, 2.52, 128, 1536, 24, 100),
    "sm_90": (CARDS["h200"], 4800, 989, 1.98, 128, 2048, 32, 228),
    "sm_100": (_B200, 8000, 2250, 1.965, 128, 2048, 32, 228),
    "sm_120": (_RTX5090, 1792, 209.5, 2.407, 128, 1536, 24, 100),
}
GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        name: Gpu(
            card=card,
            memory=memory * 1e9,
            matrix=matrix * 1e12,
            clock=clock * 1e9,
            float32_lanes=lanes,
            threads=threads,
            blocks=blocks,
            shared_memory=shared * 1024,
        )
        for name, (card, memory, matrix, clock, lanes, threads, blocks, shared) in _TABLE.items()
    }
)


def estimated_seconds(
    gpu: Gpu,
    grid: tuple[int, ...],
    *,
    warps: int,
    blocks_at_once: int,
    moved: float,
    asked: float,
    flop: float,
    instructions: float,
) -> float:
    """Return the estimated seconds of a kernel's launch.

    A kernel takes as long as the slowest of four things, which overlap:

    - moving each byte once to or from memory, at 80 % of the memory's rate (`moved`);
    - what all thread blocks ask for, again and again, from the L2 cache, at 32 bytes a clock for each multiprocessor
      (`asked`);
    - matrix instructions, at 70 % of their rate (`flop`);
    - all other instructions of threads, at 60 % of what the schedulers issue (`instructions`).

    The latter three are stretched where multiprocessors are idle: as ceil(n) / n, with n the thread blocks of the grid
    for each multiprocessor. The last two are also divided by sqrt(w / 16) where fewer than 16 warps w are on a
    multiprocessor at once, for want of registers or shared memory, since these hide less of each other's latencies. No
    launch takes less than 2.5 us, which is what launching the next one takes in a CUDA graph; without a graph, the host
    takes two to four times as long.

    Nothing here was fitted to a GPU. Until one has shown the error, only ratios between two versions of the code count.
    """
    multiprocessors = gpu.card.multiprocessors
    each = prod(grid) / multiprocessors
    idle = ceil(each) / each
    hidden = min(1.0, max(blocks_at_once, 1) * warps / HIDING_WARPS) ** 0.5
    clocks = multiprocessors * gpu.clock
    return max(
        moved / (MEMORY_SHARE * gpu.memory),
        idle * asked / (L2_BYTES * clocks),
        idle * flop / (MATRIX_SHARE * hidden * gpu.matrix),
        idle * instructions / (ISSUE_SHARE * hidden * ISSUED_THREADS * clocks),
        LAUNCH_SECONDS,
    )


def operator_seconds(gpu: Gpu, *, moved: float, flop: float, in_float32: bool) -> float:
    """Return the estimated seconds of one of PyTorch's operators: of memory or of products, by the same shares."""
    float32 = 2 * gpu.float32_lanes * gpu.card.multiprocessors * gpu.clock
    rate = float32 if in_float32 else gpu.matrix
    return max(moved / (MEMORY_SHARE * gpu.memory), flop / (MATRIX_SHARE * rate), LAUNCH_SECONDS)
