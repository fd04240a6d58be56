"""What ranks that share a sample tell each other in a block, and how long that takes."""

from helixfold.config import ModelConfig
from helixfold.execution.memory import PassSize
from helixfold.model.embedders import MSA_LETTERS
from helixfold.parallel.layout import Layout
from helixfold.parallel.machine import Links
from helixfold.parallel.work import Half, Stack

# Changes of the axis that a stream is cut along, in a block: the MSA's to columns and back; the pair's to columns for
# incoming edges, back for starting nodes, to columns for ending nodes and back.
MSA_EXCHANGES, PAIR_EXCHANGES = 2, 4
_FLOAT = 4


def axial_bytes(stack: Stack, half: Half, dap: int) -> tuple[list[float], list[float]]:
    """Bytes that a rank sends in each exchange and in each gather of one half of a block's forward pass."""
    others = (dap - 1) / dap
    stream, changes, contexts = (
        (stack.msa, MSA_EXCHANGES, stack.gathered_msa)
        if half == "msa"
        else (stack.pair, PAIR_EXCHANGES, stack.gathered_pair)
    )
    if not stream or dap == 1:
        return [], []
    return [stream / dap * others] * changes, [context * others for context in contexts]


def axial_seconds(stack: Stack, half: Half, dap: int, links: Links, *, learns: bool) -> float:
    """Of the messages of one half of a block: forward, or forward and backward, whose are their adjoints, as large."""
    exchanges, gathers = axial_bytes(stack, half, dap)
    forward = sum(map(links.exchange.at, exchanges)) + sum(map(links.gather.at, gathers))
    backward = sum(map(links.exchange.at, exchanges)) + sum(map(links.scatter.at, gathers))
    return forward + backward * learns


def swap_seconds(stack: Stack, layout: Layout, links: Links) -> float:
    """Of what the two branches of a block give each other at its end: the pair stream one way, its change the other."""
    return links.exchange.at(stack.pair / layout.dap) if layout.bp > 1 else 0.0


def spread_seconds(stack: Stack, layout: Layout, links: Links) -> float:
    """Of giving the MSA behind a stack to the rank that computed the pair stream."""
    return links.exchange.at(stack.msa / layout.dap) if layout.bp > 1 else 0.0


def gathered_rest(model: ModelConfig, size: PassSize, *, learns: bool) -> list[int]:
    """Bytes that ranks with a part of the streams gather outside of stacks: what attention over points gives in each
    iteration, the first row of the MSA, and logits where the pass learns.
    """
    n, structure, heads = size.residues, model.structure, model.heads
    found = [n * structure.c * _FLOAT] * structure.layers + [n * model.evoformer.c_m * size.dtype.itemsize]
    if learns:
        found += [n * n * heads.distogram_bins * _FLOAT, size.msa_rows * n * MSA_LETTERS * _FLOAT]
        found += [n * n * heads.aligned_error_bins * _FLOAT] * heads.aligned_error
    return found
