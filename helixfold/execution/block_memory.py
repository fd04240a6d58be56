"""How much memory a block of the Evoformer takes in a training pass, update by update, from its sizes."""

from dataclasses import dataclass

import torch

from helixfold.config import StackConfig
from helixfold.execution.memory import PassSize
from helixfold.execution.recompute import Choice

_FLOAT = 4
# What an operator's blocks take for each core, and the C library keeps of freed ones: measured.
SCRATCH = 46 * 2**20
# Rows of a block of a triangle multiplication: as many as have so many bytes, but not fewer than that.
_TRIANGLE_BYTES, _TRIANGLE_ROWS = 2**24, 128
# Residues whose part of the outer product's left half is summed at a time.
_TILE_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class BlockMemory:
    """Bytes that each block of a stack keeps, and those that computing the gradients of the last one takes beyond that.

    `last` are those of the MSA that the last block's outer product reads, which is no other block's; `leaving`, of what
    leaves a stack that stands alone, and of the gradient that it is given.
    """

    kept: int
    working: int
    last: int = 0
    leaving: int = 0

    def stack(self, blocks: int) -> int:
        """The peak of so many blocks alone, forward and backward."""
        return blocks * self.kept + self.working + self.last + self.leaving


@dataclass(frozen=True, kw_only=True)
class _Update:
    """Bytes of the stream that it changes, of what else it keeps for its gradients, and of what computing these takes
    beside the gradients of the streams that go on.
    """

    stream: int
    kept: int = 0
    working: int = 0


def block_memory(
    stack: StackConfig, c_z: int, rows: int, size: PassSize, keep: Choice, *, drops_msa: bool
) -> BlockMemory:
    """Of a block with an MSA of so many rows, which is dropped after the last block or goes on."""
    n, w = size.residues, size.dtype.itemsize
    msa, pair = rows * n * stack.c_m * w, n * n * c_z * w
    outer_product = _outer_product(stack, msa, pair, rows, size)
    of_msa, of_pair = _of_msa(stack, msa, pair, size), _of_pair(stack, pair, size)
    updates = {
        "first": [outer_product, *of_msa, *of_pair],
        "middle": [*of_msa, outer_product, *of_pair],
        "end": [*of_msa, *of_pair, outer_product],
    }[stack.outer_product]
    maps = _maps(stack, c_z, size.dtype)
    streams, further = sum(each.stream for each in updates), sum(each.kept for each in updates) + maps
    # Backwards, every update lets go of what it has kept. What is recomputed update by update is there for one alone.
    peak, held = 0, 0
    for number, update in enumerate(updates):
        anew = update.kept if keep == "inputs" else 0
        held += update.stream + update.kept - anew
        # Of an MSA that is dropped there is a gradient before the outer product only.
        has_gradient = not drops_msa or number < updates.index(outer_product)
        peak = max(peak, held + anew + pair + msa * has_gradient + update.working)
    kept = {"none": streams + further, "inputs": streams, "block": msa + pair}[keep]
    working = peak + maps + SCRATCH * torch.get_num_threads() - kept
    # What the outer product reads at the end of the stack, and an MSA that goes on is there twice if it is made anew.
    last = msa if stack.outer_product != "first" else 0
    if keep == "block":
        again = msa if not drops_msa else 0
        return BlockMemory(kept=kept, working=working + last, leaving=2 * pair + again)
    return BlockMemory(kept=kept, working=working, last=last, leaving=2 * pair)


def _of_msa(stack: StackConfig, msa: int, pair: int, size: PassSize) -> list[_Update]:
    """Row attention, column attention and transition: each makes the gradient of what it reads beside that of its
    change, of which dropout makes a copy; row attention then makes the pair stream's, from that of its bias.
    """
    bias = size.residues**2 * stack.msa_heads * size.dtype.itemsize
    return [
        _Update(stream=msa, kept=bias, working=max(2 * msa, msa + pair)),
        _Update(stream=msa, working=msa),
        _Update(stream=msa, working=msa),
    ]


def _outer_product(stack: StackConfig, msa: int, pair: int, rows: int, size: PassSize) -> _Update:
    """Both halves and the factors of edges are kept. Gradients of the halves are made first, the right one's as a sum
    in float32, and then those of the MSA that come from either half.
    """
    n, w = size.residues, size.dtype.itemsize
    half = rows * n * stack.c_outer * w
    total = rows * n * stack.c_outer * _FLOAT
    tiles = 2 * min(n, _TILE_ROWS) * rows * stack.c_outer * _FLOAT
    of_halves = half + total + max(tiles, half if total > half else 0)
    # By then the halves themselves are gone.
    of_msa = 2 * msa + half - 2 * half
    return _Update(stream=pair, kept=2 * half + n * n * _FLOAT, working=max(of_halves, of_msa))


def _of_pair(stack: StackConfig, pair: int, size: PassSize) -> list[_Update]:
    """Triangle multiplications keep an operand and make its gradient; attentions keep a bias. For all but the
    transition there are the gradients of a change that was dropped out, and of the stream.
    """
    n, w = size.residues, size.dtype.itemsize
    row = n * stack.c_triangle * w
    blocks = 2 * row * min(n, max(_TRIANGLE_ROWS, _TRIANGLE_BYTES // row))
    multiplication = _Update(stream=pair, kept=n * row, working=2 * pair + n * row + blocks)
    attention = _Update(stream=pair, kept=n * n * stack.pair_heads * w, working=2 * pair)
    return [multiplication, multiplication, attention, attention, _Update(stream=pair, working=pair)]


def _maps(stack: StackConfig, c_z: int, dtype: torch.dtype) -> int:
    """A block's maps into which norms were folded, in float32, kept as they are and as they were before; and the others
    rounded to the streams' dtype.
    """
    triangles = 2 * (4 * stack.c_triangle * c_z + c_z * c_z + stack.c_triangle * c_z)
    attentions = 2 * 4 * stack.c_m**2 + 2 * 4 * c_z**2
    folded = 2 * _FLOAT * (triangles + attentions)
    if dtype == torch.float32:
        return folded
    others = 2 * stack.transition_factor * (stack.c_m**2 + c_z**2) + stack.c_outer**2 * c_z
    return folded + dtype.itemsize * others
