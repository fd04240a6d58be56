"""Inspect the network: attention weights, one block, parameters and FLOPs by module, and shapes of features."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from data_pipeline.features.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.io.errors import InputError
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.whole import Whole
from helixfold.folding.prediction import Prediction
from helixfold.model.alphafold import AlphaFold
from helixfold.model.attention import SelfAttention
from helixfold.model.msa import MSAGlobalColumnAttention
from helixfold.model.point_attention import PointAttention
from helixfold.model.presets import preset
from helixfold.ops.dispatch import Op, forced, intercepted
from helixfold.weights.find import ReadyModel

# Modules that compute attention weights.
_ATTENTION = (SelfAttention, MSAGlobalColumnAttention, PointAttention)
# Operators whose reference implementations call the operators `attention` and `invariant_point_attention`.
_CALLERS_OF_ATTENTION = ("self_attention", "global_attention", "point_attention")


@dataclass(frozen=True)
class Table:
    """Table of rows with named columns, whose `repr` is aligned text with thousands separators in integers.

    Each row has one value for each column.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __repr__(self) -> str:
        texts = ((f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row) for row in self.rows)
        lines = [self.columns, *map(tuple, texts)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


@contextmanager
def record_attention(
    model: ReadyModel | AlphaFold, pattern: str = "*", *, average_rows: bool = False
) -> Iterator[dict[str, np.ndarray]]:
    """Context that records the attention weights of the modules whose names match a pattern, such as "evoformer.*.row".

    Yield a dict, which is filled when the context ends. For each matching name it has a float32 array (n, h, q, k): the
    weight with which query q attends to key k, in head h and row n of the first sample. Rows are MSA rows for "row",
    residues for "column", and the first residue of a pair for "starting" and "ending". With `average_rows`, arrays are
    (h, q, k), the mean over rows, which saves much memory for a large target. "structure_module.attention" has shape
    (h, r, r). Weights are from the last recycling iteration, the last template and the last iteration of the structure
    module. Recorded modules use the reference implementations of their operators. Raise `InputError` if no name
    matches.
    """
    network = model.network if isinstance(model, ReadyModel) else model
    names = {_attention_name(path): path for path, module in network.named_modules() if isinstance(module, _ATTENTION)}
    matches = {name: path for name, path in names.items() if fnmatchcase(name, pattern)}
    if not matches:
        raise InputError(f"no attention is named {pattern!r}; the names are {', '.join(names)}")
    maps: dict[str, np.ndarray] = {}
    parts: dict[str, list[np.ndarray]] = {name: [] for name in matches}
    running: list[str] = []  # short name of the module that is running, if any

    def interceptor(operator: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not running or args[0].is_meta:
            return operator.run(*args, **kwargs)
        if operator.name in _CALLERS_OF_ATTENTION:
            if operator.name == "point_attention" and args[-1] == 0:  # the first rows of an iteration
                parts[running[-1]].clear()
            return operator.reference(*args, **kwargs)
        if operator.name in ("attention", "invariant_point_attention"):
            weights = _weights(operator, *args)
            is_summed = average_rows and operator.name == "attention"
            parts[running[-1]].append(weights.sum(0, keepdims=True) if is_summed else weights)
        return operator.run(*args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(intercepted(interceptor))
        for name, path in matches.items():
            module = network.get_submodule(path)
            stack.enter_context(module.register_forward_pre_hook(lambda *_, name=name: running.append(name)))
            stack.enter_context(module.register_forward_hook(lambda *_: running.clear(), always_call=True))
            if (block := re.match(r".*\.blocks\.\d+", path)) is not None:
                parent = network.get_submodule(block[0])
                stack.enter_context(parent.register_forward_pre_hook(lambda *_, name=name: parts[name].clear()))
        yield maps
    for name, slabs in parts.items():
        if not slabs:
            continue  # the network has not run
        joined = np.concatenate(slabs)
        if name.startswith("structure_module"):
            maps[name] = joined.swapaxes(0, 1)
            continue
        if isinstance(network.get_submodule(matches[name]), MSAGlobalColumnAttention):
            joined = joined.swapaxes(1, 2)  # global attention has one query per head
        total = joined.sum(0)
        # The weights of a query sum to 1 in each row; the division by their total gives the mean.
        maps[name] = total / total.sum(-1, keepdims=True) if average_rows else joined


def _attention_name(path: str) -> str:
    """Return a module's short name, such as evoformer.0.row for evoformer.blocks.0.row_attention.attention."""
    return re.sub(r"(?<=\d\.)(triangle_)?([a-z]+)(_attention)?(\.attention)?$", r"\2", path.replace(".blocks.", "."))


def _weights(operator: Op[..., Any], query: Tensor, key: Tensor, value: Tensor, *others: Any) -> np.ndarray:
    """Return attention weights (n h q k), or (i h j) of point attention: its results for unit vectors as values."""
    ones = torch.eye(key.shape[-2], device=key.device)
    if operator.name == "attention":
        weights = operator.reference(query, key, ones.expand(*value.shape[:-2], -1, -1), *others[:2])[0]
    else:
        query_points, key_points, value_points, *rest = others
        points = nn.functional.pad(ones, (0, -len(ones) % 3)).unflatten(-1, (-1, 3))
        values = points.expand(*value_points.shape[:-3], -1, -1, -1)
        results = operator.reference(query, key, value, query_points, key_points, values, *rest)[1]
        weights = results[0].flatten(-2)[..., : len(ones)].transpose(0, 1)
    return np.asarray(weights.float().cpu())


def run_block(
    model: ReadyModel | AlphaFold, *, block: int = 0, residues: int = 64, rows: int = 32, seed: int = 0
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Run the Evoformer block with index `block` on random numbers; return its inputs and its outputs.

    Both are an MSA stream (1, rows, residues, c_m) and a pair stream (1, residues, residues, c_z). The numbers are
    drawn from a standard normal distribution with `seed`.
    """
    network = model.network if isinstance(model, ReadyModel) else model
    evoformer_block = network.evoformer.blocks[block]
    like, config = next(evoformer_block.parameters()), network.config
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, rows, residues, config.evoformer.c_m), (1, residues, residues, config.c_z))
    msa, pair = (torch.randn(shape, generator=generator).to(like) for shape in shapes)
    with torch.no_grad():
        return (msa, pair), evoformer_block(
            Whole(), msa, pair, like.new_ones(msa.shape[:3]), like.new_ones(pair.shape[:3])
        )


def module_costs(
    model: str | ReadyModel, *, residues: int = 256, rows: int = 512, extra_rows: int = 1024, templates: int = 4
) -> Table:
    """Return a table of the parameters and FLOPs of each module for one recycling iteration of one target.

    All blocks of a stack share a row of the table, in whose name a star replaces the block's index. FLOPs are the
    matrix products, with two operations per multiply-add. They are "-" for modules whose products are only counted in
    the total, and an update's context is counted in its stack. Nothing is computed, so any size is possible. `model` is
    a loaded model or the name of one. `rows` and `extra_rows` are the numbers of rows of the MSA and the extra MSA, and
    `templates` the number of templates.
    """
    config = (model.preset if isinstance(model, ReadyModel) else preset(model)).model
    meta = torch.device("meta")
    # Only one Evoformer block is counted, and multiplied by their number, which takes a tenth of the time.
    blocks = config.evoformer.blocks
    with meta:
        network = AlphaFold(replace(config, evoformer=replace(config.evoformer, blocks=1))).eval()
    batch = random_batch(residues, rows, extra_rows, templates, meta, method=config.method)
    with FlopCounterMode(display=False) as counter, forced("reference"), torch.no_grad():
        network(Whole(), [batch])
    counts = {name.partition(".")[2]: sum(of.values()) for name, of in counter.get_flop_counts().items()}
    costs: dict[str, tuple[int, int]] = {}
    for name, module in network.named_modules():
        row_name = re.sub(r"\.blocks\.\d+", ".*", name)
        if "." not in name or re.fullmatch(r"[^.]*(\.pair)?\.\*\.\w+", row_name):
            parameters, flops = costs.get(row_name, (0, 0))
            num_blocks = blocks if name.startswith("evoformer") else 1
            parameters += num_blocks * sum(parameter.numel() for parameter in module.parameters())
            costs[row_name] = parameters, flops + num_blocks * counts.get(name, 0)
    rest = ((blocks - 1) * each // blocks for each in costs["evoformer"])
    whole = (sum(pair) for pair in zip(costs.pop(""), rest, strict=True))
    lines = (("network", *whole), *((name, parameters, flops or "-") for name, (parameters, flops) in costs.items()))
    return Table(("module", "parameters", "FLOPs"), lines)


def feature_shapes(source: Prediction | TargetFeatures) -> Table:
    """Return a table of a target's feature arrays, such as its MSA and templates: names, shapes and dtypes.

    The arrays themselves are attributes of the features, such as `features.msa`. Raise `InputError` for a prediction
    that was read without its features.
    """
    features = source.features if isinstance(source, Prediction) else source
    if features is None:
        raise InputError(f"the features of {source!r} were not read with it")
    arrays = {name: each for name, each in vars(alignment_of(features)).items() if isinstance(each, np.ndarray)}
    rows = tuple((name, each.shape, str(each.dtype)) for name, each in arrays.items())
    return Table(("feature", "shape", "dtype"), rows)
