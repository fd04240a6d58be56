"""How much memory a training pass takes by what it recomputes, worked out from its sizes before it begins."""

import torch

from helixfold.config import ModelConfig, TemplateConfig
from helixfold.execution.block_memory import SCRATCH, BlockMemory, block_memory
from helixfold.execution.memory import Estimate, PassSize
from helixfold.execution.recompute import Choice, RecomputeConfig
from helixfold.model.embedders import MSA_CHANNELS, MSA_LETTERS, RECYCLED_BINS, TARGET_CHANNELS
from helixfold.model.templates import PAIR_CHANNELS

# Up to what size freed blocks are kept for later tensors of a training pass on a CPU. Tensors of a stream's size live
# for very different times there: kept, what they leave would lie idle, up to half of what is in use.
KEPT_BLOCKS = 4 * 2**20
_FLOAT, _INTEGER = 4, 8
# What oneDNN keeps prepared for products, half a MiB for each shape, beside that for the shapes of one stack: measured.
# When the heads end the forward pass, half of them have been needed.
_KERNELS = 53 * 2**20
# Atoms of a residue, and the stretch of them in which those with two names lie: distances between all of both are
# compared with the truth's.
_ATOMS, _AMBIGUOUS_ATOMS = 14, 4


def evoformer_memory(config: ModelConfig, size: PassSize, keep: Choice) -> BlockMemory:
    """Of the Evoformer's blocks, whose MSA has the templates' rows too."""
    rows = size.msa_rows + (size.templates if config.template else 0)
    return block_memory(config.evoformer, config.c_z, rows, size, keep, drops_msa=False)


def extra_msa_memory(config: ModelConfig, size: PassSize, keep: Choice) -> BlockMemory:
    """Of the extra-MSA stack's blocks, whose own MSA is dropped at the end."""
    return block_memory(config.extra_msa, config.c_z, size.extra_rows, size, keep, drops_msa=True)


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
    # Besides blocks, the features that the first streams are made from.
    kept["extra MSA"] = config.extra_msa.blocks * extra.kept + extra.last
    kept["extra MSA"] += size.extra_rows * n * w * (MSA_LETTERS + 2)
    working["extra MSA"] = extra.working
    kept["Evoformer"] = config.evoformer.blocks * evoformer.kept + evoformer.last
    if size.dtype != torch.float32:
        kept["Evoformer"] += size.msa_rows * n * w * MSA_CHANNELS
    working["Evoformer"] = evoformer.working
    kept["structure"], working["structure"] = _structure(config, size, keep.structure)
    kept["heads"], working["heads"] = _heads(config, size, rows)
    scratch = SCRATCH * torch.get_num_threads()
    total, stages = 0, {}
    for name, bytes_kept in kept.items():
        total += bytes_kept
        # The stacks' blocks have it counted in.
        stages[name] = total + working[name] + (0 if name in ("extra MSA", "Evoformer") else scratch)
        stages[name] += _KERNELS // 2 if name == "heads" else _KERNELS
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


def _structure(config: ModelConfig, size: PassSize, keep: Choice) -> tuple[int, int]:
    """What the structure module keeps, and what its gradients take beside that."""
    structure, pair = config.structure, size.residues**2 * config.c_z * size.dtype.itemsize
    # Numbers of a residue: frames, points and layers of an iteration, counted at model_1's sizes.
    gathered = structure.heads * (structure.c_scalar + 4 * structure.value_points + config.c_z)
    of_iteration = {"none": 2 * gathered + 20 * structure.c, "inputs": 9 * structure.c, "block": 4 * structure.c}
    number = size.residues * _FLOAT
    return pair + number * structure.layers * of_iteration[keep], 2 * pair + number * of_iteration["none"]


def _heads(config: ModelConfig, size: PassSize, rows: int) -> tuple[int, int]:
    """What the heads and their losses keep for gradients, and what is there beside it while losses are computed."""
    heads, edges = config.heads, size.residues**2
    has_errors = heads.aligned_error
    bins = heads.distogram_bins + (heads.aligned_error_bins if has_errors else 0)
    # Logits, and their logarithms after the softmax. Before there are these, all distances between atoms are compared
    # with the truth's for those that have two names.
    logits = _FLOAT * (edges * bins + rows * size.residues * MSA_LETTERS)
    distances = 2 * _FLOAT * edges * _ATOMS * _AMBIGUOUS_ATOMS
    # The turned pair stream is copied; if streams are narrow, so is in float32 what any head reads.
    pair, msa = _FLOAT * edges * config.c_z, _FLOAT * rows * size.residues * config.evoformer.c_m
    copies = pair if size.dtype == torch.float32 else (2 + has_errors) * pair + msa
    return logits + copies, max(logits, distances)


def _batch(size: PassSize, templates: int) -> int:
    of_row = size.msa_rows * (MSA_CHANNELS + 1) * _FLOAT + size.extra_rows * (_INTEGER + 3 * _FLOAT)
    atoms = templates * (_INTEGER + 37 * 4 * _FLOAT + 4 * _FLOAT)
    return size.ensemble * size.residues * (TARGET_CHANNELS * _FLOAT + 2 * _INTEGER + of_row + atoms)
