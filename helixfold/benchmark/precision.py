"""Measure what a short precision costs predictions: `helixfold benchmark precision`.

Each target is folded in float32 by whole updates, and again in other precisions, by other executors, by plain PyTorch's
operators, and with one part of the network at a time in a short precision. What is printed is how far the others are
from the first; nothing is timed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.features.complexes.target_files import read_targets, single_chains
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import Target, prepare
from data_pipeline.residues import ATOM_ORDER
from helixfold.analysis.metrics import rmsd
from helixfold.benchmark.measurement import write_json
from helixfold.benchmark.options import PrecisionOptions
from helixfold.execution.device import DTYPES, pick_device
from helixfold.execution.nested import with_tensors_changed
from helixfold.execution.stages import Stages
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget, fold
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.dispatch import Op, forced, intercepted
from helixfold.planning.executors import EXECUTORS, executor
from helixfold.weights.find import ReadyModel, find_models

TRUNK, STRUCTURE, HEADS = "trunk", "structure module", "output heads"


@dataclass(frozen=True, kw_only=True)
class RoundedPart:
    """A part of the network: all operators within the trunk, structure module or heads, or those of some names."""

    name: str
    within: str = TRUNK
    operators: tuple[str, ...] = ()  # none: all


# What the trunk computes by operators, and what other parts compute, which stays in float32 in every precision.
PARTS = (
    RoundedPart(name="self-attention", operators=("self_attention",)),
    RoundedPart(name="global attention", operators=("global_attention",)),
    RoundedPart(name="outer product mean", operators=("outer_product_operands", "outer_product_mean")),
    RoundedPart(name="triangle multiplication", operators=("triangle_update",)),
    RoundedPart(name="transitions", operators=("transition",)),
    RoundedPart(name="biases of attention", operators=("norm_linear",)),
    RoundedPart(name="embedders", operators=("linear", "layer_norm", "look_up")),
    RoundedPart(name="streams between updates", operators=("add_change",)),
    RoundedPart(name="structure module", within=STRUCTURE),
    RoundedPart(name="output heads", within=HEADS),
)


@dataclass
class _Place:
    """Where a pass is: the part of the network, and whether inside an operator that is rounded."""

    part: str = TRUNK
    inside: bool = field(default=False)


@contextmanager
def rounded(network: AlphaFold, part: RoundedPart, dtype: torch.dtype) -> Iterator[None]:
    """Compute the operators of a part in `dtype` inside this context: arguments are cast to it, results to float32.

    Masks and parameters are given as they are; operators cast parameters to the dtype of their activations. Operators
    of the structure module, which know float32 alone, compute in it with rounded arguments, and so do output heads.
    """
    place, widens = _Place(), part.within != TRUNK

    def short(tensor: Tensor) -> Tensor:
        if tensor.dtype != torch.float32:
            return tensor
        return tensor.to(dtype).float() if widens else tensor.to(dtype)

    def carry_out(operator: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_rounded = place.part == part.within and (not part.operators or operator.name in part.operators)
        if place.inside or not is_rounded:
            return operator.run(*args, **kwargs)
        names = signature(operator.reference).parameters
        place.inside = True
        try:
            given = [
                short(value) if isinstance(value, Tensor) and "mask" not in name else value
                for name, value in zip(names, args, strict=False)
            ]
            found = operator.run(*given, **kwargs)
        finally:
            place.inside = False
        if widens:
            return with_tensors_changed(short, found)
        return with_tensors_changed(lambda tensor: tensor.float() if tensor.dtype == dtype else tensor, found)

    with ExitStack() as hooks, intercepted(carry_out):
        modules = [(STRUCTURE, network.structure_module), *((HEADS, head) for head in network.heads.children())]
        for name, module in modules:
            _follow(hooks, place, name, module)
        yield


def _follow(hooks: ExitStack, place: _Place, name: str, module: nn.Module) -> None:
    """Let `place.part` be `name` while the module computes."""

    def enter(*_: Any) -> None:
        place.part = name

    def leave(*_: Any) -> None:
        place.part = TRUNK

    hooks.callback(module.register_forward_pre_hook(enter).remove)
    hooks.callback(module.register_forward_hook(leave).remove)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to fold: the trunk's precision, an executor, and whether operators are plain PyTorch.

    With a `part`, that part of the network alone is in this precision, and the rest in float32.
    """

    dtype: str = "float32"
    executor: str = "whole"
    plain: bool = False
    part: RoundedPart | None = None

    def __str__(self) -> str:
        if self.part is not None:
            return f"{self.dtype} in {self.part.name} alone"
        return f"{self.dtype}, {self.executor}{', plain PyTorch' if self.plain else ''}"


def ways(dtypes: Sequence[str], *, by_part: bool) -> list[Way]:
    """Return the ways to fold each target; the others are compared with the first, which is float32 by `Whole`."""
    found = [Way(executor=name) for name in EXECUTORS]
    for dtype in dtypes:
        found += [Way(dtype=dtype, executor=name) for name in EXECUTORS]
        found.append(Way(dtype=dtype, plain=True))
        found += [Way(dtype=dtype, part=part) for part in PARTS if by_part]
    return found


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Differences of one prediction from that in float32: lengths in Angstrom, pLDDT from 0 to 100."""

    target: str
    way: str
    rmsd: float  # of C-alpha atoms, superposed
    plddt: float  # mean over residues of the absolute change
    mean_plddt: float  # of this prediction: what ranks it
    pae: float  # mean over pairs of the absolute change


def run(options: PrecisionOptions) -> None:
    """Fold all targets in every way and print what each way costs."""
    device = pick_device(options.device)
    if len(options.models) != 1:
        raise InputError(f"one model is measured at a time, {len(options.models)} are named")
    targets = [
        each for each in single_chains(read_targets(options.targets)) if len(each.sequence) <= options.max_residues
    ]
    if not targets:
        raise InputError(f"no single chain has at most {options.max_residues:,} residues; raise --max-residues")
    (model,) = find_models(options.models, options.weights, seed=0, is_measured=True)
    model.network.to(device)
    costs = [cost for target in targets for cost in measured(model, target, options, device)]
    for line in table(costs):
        print(line)
    write_json(options.json, [asdict(cost) for cost in costs])


def measured(model: ReadyModel, target: Target, options: PrecisionOptions, device: torch.device) -> Iterator[Cost]:
    """Yield the cost of every way for a target."""
    features, first = prepare(target).features, None
    for way in ways(options.dtypes, by_part=options.by_part):
        found = prediction(model, features, options, device, way)
        first = first or found
        yield cost_of(target.name, str(way), found, first)


def prediction(
    model: ReadyModel, features: Features, options: PrecisionOptions, device: torch.device, way: Way
) -> Prediction:
    """Return the prediction of a target in one way."""
    trunk = "float32" if way.part is not None else way.dtype
    folding = FoldingOptions(num_recycles=options.num_recycles, dtype=trunk)
    with ExitStack() as stack:
        if way.plain:
            stack.enter_context(forced("reference"))
        if way.part is not None:
            stack.enter_context(rounded(model.network, way.part, DTYPES[way.dtype]))
        spill = stack.enter_context(TemporaryDirectory()) if way.executor == "spilled" else ""
        run = executor(way.executor, Path(spill), device)
        target = FoldingTarget(features=features)
        (found,) = fold(model.network, model.preset, [target], folding, run, stages=Stages(device))
    return found


def cost_of(target: str, way: str, found: Prediction, first: Prediction) -> Cost:
    """Return how far a prediction is from the first of its target."""
    alpha = ATOM_ORDER["CA"]
    pae = np.nan if found.pae is None or first.pae is None else float(np.abs(found.pae - first.pae).mean())
    return Cost(
        target=target,
        way=way,
        rmsd=rmsd(found.protein.atom_positions[:, alpha], first.protein.atom_positions[:, alpha]),
        plddt=float(np.abs(found.plddt - first.plddt).mean()),
        mean_plddt=found.ranking_confidence,
        pae=pae,
    )


def table(costs: Sequence[Cost]) -> list[str]:
    """Return a line for each way: median, 90th percentile and largest RMSD, changes of pLDDT and PAE, and of ranks.

    The last column counts the pairs of targets whose order by mean pLDDT is another one than in float32.
    """
    ways = list(dict.fromkeys(cost.way for cost in costs))
    ranked = {way: np.array([cost.mean_plddt for cost in costs if cost.way == way]) for way in ways}
    lines = [
        f"{'':44} {'targets':>8} {'RMSD, median':>13} {'90 %':>8} {'largest':>8} {'pLDDT':>8} {'PAE':>8} "
        f"{'pairs reordered':>16}"
    ]
    for way in ways:
        chosen = [cost for cost in costs if cost.way == way]
        distances = np.array([cost.rmsd for cost in chosen])
        before, after = (np.sign(each[:, None] - each[None]) for each in (ranked[ways[0]], ranked[way]))
        pairs = max(1, len(chosen) * (len(chosen) - 1) // 2)
        lines.append(
            f"{way:44} {len(chosen):8} {np.median(distances):13.4f} {np.quantile(distances, 0.9):8.4f} "
            f"{distances.max():8.4f} {np.mean([cost.plddt for cost in chosen]):8.4f} "
            f"{np.mean([cost.pae for cost in chosen]):8.4f} {np.sum(before * after < 0) // 2 / pairs:16.2%}"
        )
    return lines
