"""How much memory a pass takes, worked out from its sizes before it begins."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from helixfold.config import ModelConfig, StackConfig
from helixfold.execution.slabs import BUDGET_SHARE, LEAST_ELEMENTS
from helixfold.execution.spilled import LEAST_BYTES
from helixfold.model.embedders import MSA_CHANNELS, MSA_LETTERS, RECYCLED_BINS, TARGET_CHANNELS
from helixfold.model.templates import PAIR_CHANNELS

EXECUTORS = ("whole", "slabs", "spilled")
_FLOAT, _INTEGER = 4, 8
# Of the workspace that is asked for so much is used at most: by a triangle multiplication, which asks for its left
# operand, products and change, and makes the products in the operand's memory.
_USED = 2 / 3
# Of a residue in every iteration of the structure module.
_STRUCTURE_NUMBERS = 1500
# Of the outer product's left half as many copies are there as it takes steps to make it.
_HALVES = 4
# What is beside tensors on a CPU, by size of an element: with two cores what libraries and the operators' blocks take,
# and of whole streams a share that the heap holds idle.
_BLOCKS = {4: 50 * 2**20, 2: 40 * 2**20}
_IDLE_OF_WHOLE = 1.3


@dataclass(frozen=True, kw_only=True)
class PassSize:
    """What a pass reads: `msa_rows` are sampled sequences, without the rows that templates add below them.

    Each of the `ranks` that carry it out together holds one part of every stream, and of a triangle multiplication's
    operand unless streams are whole; other contexts are there for all.
    """

    residues: int
    msa_rows: int
    extra_rows: int
    templates: int
    dtype: torch.dtype
    ensemble: int = 1
    ranks: int = 1


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes beyond what the process holds with the model loaded: the most of each stage, and of all of them.

    `spilled` are bytes elsewhere: on a disk, or beside a GPU in the host's memory.
    """

    stages: Mapping[str, int]
    peak: int
    spilled: int = 0


def floor(config: ModelConfig, size: PassSize) -> int:
    """Bytes of two pair tensors, the MSA and the extra MSA: what no Evoformer that holds its streams can do without."""
    streams = _Streams(config, size)
    return 2 * streams.pair + streams.msa + streams.extra


def predicted(config: ModelConfig, size: PassSize, executor: str, device: str = "cpu") -> Estimate:
    """A prediction pass that starts from another one's results, and the confidences that are read off it.

    Every stage holds what is there throughout, its streams, and the largest context and temporaries of its updates.
    On "cuda" the same is reckoned without what the C library and the CPU's operators take beside tensors; that has not
    been compared with a GPU yet.
    """
    if executor not in EXECUTORS:
        raise ValueError(f"executor must be one of {', '.join(EXECUTORS)}, got {executor!r}")
    s = _Streams(config, size)
    stages = _whole(s) if executor == "whole" else _in_slabs(s, spilled=executor == "spilled")
    if device == "cpu":
        idle = _IDLE_OF_WHOLE if executor == "whole" else 1
        stages = {name: int(idle * each) + _BLOCKS[s.itemsize] for name, each in stages.items()}
    spilled = s.pair + max(s.template + s.gathered, s.extra, s.msa) if executor == "spilled" else 0
    return Estimate(stages=stages, peak=max(stages.values()), spilled=spilled)


def _in_slabs(s: "_Streams", *, spilled: bool) -> dict[str, int]:
    """Streams are made and changed in place, or spilled; memory for the largest context is kept to the stage's end."""
    config = s.config
    held = s.batch + s.mask
    last = s.context(config.evoformer, s.rows)

    def stage(*streams: int, context: int = 0, halves: int = 0) -> int:
        """With temporaries for a slab of the first of the streams, or those of the outer product's left half."""
        most = s.edges * (6 * config.c_z + 8 * RECYCLED_BINS.count) * s.itemsize
        temporaries = int(_USED * min(s.budget(streams[0]), most))
        in_memory = [each for each in streams if not spilled or each < LEAST_BYTES]
        # A spilled stream's slabs, each half as large as the temporaries, wait in two buffers for what is computed and
        # what is read.
        staged = temporaries if len(in_memory) < len(streams) else 0
        return held + context + sum(in_memory) + max(temporaries, halves) + staged

    def halves(stack: StackConfig, rows: int) -> int:
        row = s.residues * (2 * stack.c_outer**2 + 3 * config.c_z) * s.itemsize
        return min(s.part, max(1, s.budget(s.pair) // row)) * _HALVES * rows * stack.c_outer * s.itemsize

    extra = s.context(config.extra_msa, s.extra_rows)
    stages = {"embedding": stage(s.pair, context=last)}
    if s.templates:
        # Of the first one values are read when its contexts have gone.
        streams = s.pair, s.template, s.logits, s.gathered
        stages["templates"] = max(
            stage(*streams[: 4 if s.templates > 1 else 3], context=s.template_context),
            stage(*streams),
        )
    return stages | {
        "extra MSA": stage(s.pair, s.extra, context=extra, halves=halves(config.extra_msa, s.extra_rows)),
        "Evoformer": stage(s.pair, s.msa, context=last, halves=halves(config.evoformer, s.rows)),
        "structure": stage(s.pair, s.msa) + s.structure,
        # Errors, then distances and contacts.
        "confidence": stage(s.pair, s.msa) + s.structure + 3 * s.mask,
    }


def _whole(s: "_Streams") -> dict[str, int]:
    """An update's change, and then the new stream, stand beside the old one; so do the last pass's pair stream, what
    entered a stack and what entered its block.
    """
    last, held = s.pair, s.batch + s.mask

    def stack(config: StackConfig, rows: int, stream: int) -> int:
        entered = min(2, config.blocks) * (stream + s.pair)
        whole_operand, operand = (n * s.residues * config.c_triangle * s.itemsize for n in (s.residues, s.part))
        triangle = whole_operand + s.pair + max(operand, s.pair)
        halves = (1 + _HALVES) * rows * s.residues * config.c_outer * s.itemsize + s.pair + 2 * s.edges * _FLOAT
        attention = 2 * stream + s.edges * config.msa_heads * s.itemsize
        return entered + stream + s.pair + max(triangle, halves, attention)

    stages = {"embedding": last + 4 * s.pair}
    if s.templates:
        template = s.config.template
        assert template is not None
        features = s.edges * PAIR_CHANNELS * (2 * _FLOAT + s.itemsize) + s.template
        block = (min(2, template.blocks) + 3) * s.template + s.template_context
        # Query, key and their product in float32, and the first two as they were before.
        before = 2 * s.itemsize if s.itemsize < _FLOAT else 0
        logits = s.edges * template.attention_channels * (3 * _FLOAT + before) + s.template
        others = s.gathered + s.template + s.logits if s.templates > 1 else 0
        stages["templates"] = last + s.pair + max(max(features, block, logits) + others, 3 * s.pair + s.gathered)
    one_hot = s.extra_rows * s.residues * MSA_LETTERS * (_INTEGER + _FLOAT)
    stages["extra MSA"] = last + max(s.pair + one_hot, stack(s.config.extra_msa, s.extra_rows, s.extra))
    stages["Evoformer"] = last + stack(s.config.evoformer, s.rows, s.msa)
    stages["structure"] = last + s.pair + s.msa + s.structure
    logits = s.edges * (2 * s.config.heads.aligned_error_bins + s.config.c_z) * _FLOAT
    stages["confidence"] = s.pair + s.msa + s.structure + logits
    return {name: held + each for name, each in stages.items()}


class _Streams:
    """Bytes of the streams, and of what belongs to them, on each rank: masks and confidences are whole on all."""

    def __init__(self, config: ModelConfig, size: PassSize) -> None:
        n, w = size.residues, size.dtype.itemsize
        part = -(-n // size.ranks)
        self.config, self.residues, self.part, self.itemsize, self.ranks = config, n, part, w, size.ranks
        self.templates = size.templates if config.template else 0
        self.rows = size.msa_rows + self.templates
        self.pair = n * part * config.c_z * w
        self.msa = self.rows * part * config.evoformer.c_m * w
        self.extra = size.extra_rows * part * config.extra_msa.c_m * w
        of_row = size.msa_rows * (MSA_CHANNELS + 1) * _FLOAT + size.extra_rows * (_INTEGER + 3 * _FLOAT)
        atoms = self.templates * (_INTEGER + 37 * 4 * _FLOAT + 4 * _FLOAT)
        self.edges = n * part
        self.extra_rows = size.extra_rows
        self.mask = n * n * _FLOAT
        template = config.template
        # One template's stream, the mean of values over templates, the logits: sum so far, new one and new sum.
        self.template = self.gathered = self.logits = self.template_context = 0
        if template is not None and self.templates:
            self.template = n * part * template.c_t * w
            self.gathered = n * part * template.attention_channels * w
            self.logits = (3 if self.templates > 1 else 1) * n * part * template.attention_heads * _FLOAT
            self.template_context = n * part * template.c_triangle * w
        # Frames, 8 rigid groups, torsions and atoms of every iteration, and what they are computed with.
        self.structure = config.structure.layers * n * _STRUCTURE_NUMBERS * _FLOAT
        self.batch = size.ensemble * n * (TARGET_CHANNELS * _FLOAT + 2 * _INTEGER + of_row + atoms)

    def context(self, stack: StackConfig, rows: int) -> int:
        """The largest context of a block's updates: a triangle's operand, or the outer product's."""
        n, part, w = self.residues, self.part, self.itemsize
        return max(n * part * stack.c_triangle * w, rows * n * (stack.c_outer * w + _FLOAT))

    def budget(self, stream: int) -> int:
        """Of a slab's temporaries, as `Slabs` sets it."""
        return max(LEAST_ELEMENTS // self.ranks * self.itemsize, int(stream * BUDGET_SHARE))
