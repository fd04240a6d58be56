"""How much memory a training pass takes by what it recomputes, worked out from its sizes before it begins."""

from dataclasses import dataclass

import torch

from helixfold.config import ModelConfig, StackConfig, TemplateConfig
from helixfold.execution.memory import Estimate, PassSize
from helixfold.execution.recompute import Choice, RecomputeConfig
from helixfold.model.embedders import MSA_CHANNELS, MSA_LETTERS, RECYCLED_BINS, TARGET_CHANNELS
from helixfold.model.templates import PAIR_CHANNELS

# Up to what size freed blocks are kept for later tensors of a training pass on a CPU. Tensors of a stream's size live
# for very different times there: kept, what they leave would lie idle, up to half of what is in use.
KEPT_BLOCKS = 4 * 2**20
_FLOAT, _INTEGER = 4, 8
# Blocks of rows that an operator's gradients are computed in, for each core, and what is kept of freed ones: measured.
_SCRATCH = 46 * 2**20


@dataclass(frozen=True, kw_only=True)
class BlockMemory:
    """Bytes that each block of a stack keeps, and those that computing the gradients of one takes beyond all that."""

    kept: int
    working: int

    def stack(self, blocks: int) -> int:
        """The peak of so many blocks alone, forward and backward."""
        return blocks * self.kept + self.working


def evoformer_memory(config: ModelConfig, size: PassSize, keep: Choice) -> BlockMemory:
    """Of the Evoformer's blocks, whose MSA has the templates' rows too."""
    rows = size.msa_rows + (size.templates if config.template else 0)
    return _block(config.evoformer, config.c_z, rows, size, keep, drops_msa=False)


def extra_msa_memory(config: ModelConfig, size: PassSize, keep: Choice) -> BlockMemory:
    """Of the extra-MSA stack's blocks, whose own MSA is dropped at the end."""
    return _block(config.extra_msa, config.c_z, size.extra_rows, size, keep, drops_msa=True)


def _block(stack: StackConfig, c_z: int, rows: int, size: PassSize, keep: Choice, *, drops_msa: bool) -> BlockMemory:
    n, w = size.residues, size.dtype.itemsize
    msa, pair, operand = rows * n * stack.c_m * w, n * n * c_z * w, n * n * stack.c_triangle * w
    halves = rows * n * stack.c_outer * w
    biases = n * n * w * (stack.msa_heads + 2 * stack.pair_heads + 1)
    # Each update's stream, both operands, biases, both halves of the outer product, and maps with norms folded in.
    everything = 3 * msa + 6 * pair + 2 * operand + biases + 2 * halves + _maps(stack, c_z, size.dtype)
    # Streams that leave the block, their gradients, and of one update the gradients of its change and of what it reads.
    gradients = 2 * (pair if drops_msa else msa) + 4 * pair
    # Of the outer product's halves there are copies and sums of gradients; what came after it is done with by then.
    outer_product = 6 * halves + 2 * pair - 5 * pair - 2 * operand
    working = max(gradients, outer_product) + _SCRATCH * torch.get_num_threads()
    if keep == "block":
        # Its gradients are computed from everything, made anew.
        return BlockMemory(kept=msa + pair, working=working + everything - msa)
    if keep == "inputs":
        return BlockMemory(kept=3 * msa + 6 * pair, working=working)
    return BlockMemory(kept=everything, working=working)


def predicted_training(config: ModelConfig, size: PassSize, keep: RecomputeConfig) -> Estimate:
    """A training pass of one sample, forward and backward, by the executor `Whole` with the CPU's operators.

    Beyond parameters and their gradients. A stage's bytes are those while its gradients are computed: all that the
    stages up to it have kept, and what one of its blocks or updates needs for that. `size.ensemble` counts the samples
    that are held, such as those of all recycling passes.
    """
    n, w = size.residues, size.dtype.itemsize
    edges = n * n
    pair = edges * config.c_z * w
    templates = size.templates if config.template else 0
    rows = size.msa_rows + templates
    extra, evoformer = extra_msa_memory(config, size, keep.extra_msa), evoformer_memory(config, size, keep.evoformer)
    features = edges * (RECYCLED_BINS.count * w + _INTEGER + 2 * _FLOAT)
    kept = {"embedding": _batch(size, templates) + features}
    working = {"embedding": 3 * pair}
    if config.template is not None and templates:
        one, all_ = _template(config.template, edges, w, keep.template)
        kept["templates"] = pair + templates * one.kept
        working["templates"] = pair + one.working + all_
    kept["extra MSA"] = config.extra_msa.blocks * extra.kept
    working["extra MSA"] = extra.working
    kept["Evoformer"] = config.evoformer.blocks * evoformer.kept
    working["Evoformer"] = evoformer.working
    # Numbers of a residue: frames, points and layers of an iteration, counted at model_1's sizes.
    structure = config.structure
    gathered = structure.heads * (structure.c_scalar + 4 * structure.value_points + config.c_z)
    of_iteration = {"none": 2 * gathered + 20 * structure.c, "inputs": 9 * structure.c, "block": 4 * structure.c}
    kept["structure"] = pair + n * _FLOAT * structure.layers * of_iteration[keep.structure]
    working["structure"] = 2 * pair + n * _FLOAT * of_iteration["none"]
    heads = config.heads
    bins = heads.distogram_bins + (heads.aligned_error_bins if heads.aligned_error else 0)
    logits = _FLOAT * (edges * bins + rows * n * MSA_LETTERS)
    # In float32 whatever the streams are.
    copies = 0 if size.dtype == torch.float32 else edges * config.c_z * _FLOAT
    kept["heads"] = logits + copies
    working["heads"] = 2 * logits + 2 * copies
    total, stages = 0, {}
    for name, bytes_kept in kept.items():
        total += bytes_kept
        stages[name] = total + working[name]
    return Estimate(stages=stages, peak=max(stages.values()))


def _template(config: TemplateConfig, edges: int, itemsize: int, keep: Choice) -> tuple[BlockMemory, int]:
    """Of one template's embedding and pair stack, and what the attention to all of them takes."""
    c, w = config.c_t, itemsize
    of_block = {
        "none": edges * w * (5 * c + 2 * config.c_triangle + 2 * config.pair_heads),
        "inputs": edges * w * 5 * c,
        "block": edges * w * c,
    }
    # Its features, its stream at the end, and query, key, mean and value in float32.
    each = edges * (w * (PAIR_CHANNELS + c) + 4 * _FLOAT * config.attention_channels)
    anew = of_block["none"] if keep == "block" else 0
    return BlockMemory(kept=each + config.blocks * of_block[keep], working=anew), 4 * edges * w * c


def _batch(size: PassSize, templates: int) -> int:
    of_row = size.msa_rows * (MSA_CHANNELS + 1) * _FLOAT + size.extra_rows * (_INTEGER + 3 * _FLOAT)
    atoms = templates * (_INTEGER + 37 * 4 * _FLOAT + 4 * _FLOAT)
    return size.ensemble * size.residues * (TARGET_CHANNELS * _FLOAT + 2 * _INTEGER + of_row + atoms)


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
