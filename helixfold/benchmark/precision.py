"""Measure how low precision changes predictions, for `helixfold benchmark precision`.

Each target is folded in float32 with the executor `Whole`, and again in lower precisions, with other executors, with
plain PyTorch operators, and with one part of the network at a time in low precision. The differences from the first
prediction are printed; nothing is timed. `TRUNK`, `STRUCTURE` and `HEADS` are sections of the network. `PARTS` has the
parts in them that are computed in low precision one at a time.
"""

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

# Sections of the network, in which a `RoundedPart` is.
TRUNK, STRUCTURE, HEADS = "trunk", "structure module", "output heads"


@dataclass(frozen=True, kw_only=True)
class RoundedPart:
    """A part of the network to compute in low precision: operators in the trunk, structure module or heads.

    `name` is for the table. `within` is one of the three, and `operators` names the operators in it; empty means all.
    """

    name: str
    within: str = TRUNK
    operators: tuple[str, ...] = ()


# Parts of the trunk by operator, and the other parts, which are normally computed in float32 in every precision.
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
class _Position:
    """Current position in the forward pass: the part of the network, and whether inside a rounded operator."""

    part: str = TRUNK
    inside: bool = field(default=False)


@contextmanager
def rounded(network: AlphaFold, part: RoundedPart, dtype: torch.dtype) -> Iterator[None]:
    """Within the context, compute the operators of a part in `dtype`: cast arguments to it, and results to float32.

    Masks and parameters are not cast; operators cast parameters to the dtype of their activations. The operators of the
    structure module support only float32, so their arguments and results are rounded and computed in float32. The same
    is done for the output heads.
    """
    position, widens = _Position(), part.within != TRUNK

    def rounded_tensor(tensor: Tensor) -> Tensor:
        if tensor.dtype != torch.float32:
            return tensor
        return tensor.to(dtype).float() if widens else tensor.to(dtype)

    def carry_out(operator: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_rounded = position.part == part.within and (not part.operators or operator.name in part.operators)
        if position.inside or not is_rounded:
            return operator.run(*args, **kwargs)
        names = signature(operator.reference).parameters
        position.inside = True
        try:
            arguments = [
                rounded_tensor(value) if isinstance(value, Tensor) and "mask" not in name else value
                for name, value in zip(names, args, strict=False)
            ]
            result = operator.run(*arguments, **kwargs)
        finally:
            position.inside = False
        if widens:
            return with_tensors_changed(rounded_tensor, result)
        return with_tensors_changed(lambda tensor: tensor.float() if tensor.dtype == dtype else tensor, result)

    with ExitStack() as hooks, intercepted(carry_out):
        modules = [(STRUCTURE, network.structure_module), *((HEADS, head) for head in network.heads.children())]
        for name, module in modules:
            _follow(hooks, position, name, module)
        yield


def _follow(hooks: ExitStack, position: _Position, name: str, module: nn.Module) -> None:
    """Set `position.part` to `name` while the module computes."""

    def enter(*_: Any) -> None:
        position.part = name

    def leave(*_: Any) -> None:
        position.part = TRUNK

    hooks.callback(module.register_forward_pre_hook(enter).remove)
    hooks.callback(module.register_forward_hook(leave).remove)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to fold: the trunk's precision, the executor, and whether operators are plain PyTorch.

    With a `part`, only that part of the network is in this precision, and the rest in float32.
    """

    dtype: str = "float32"
    executor: str = "whole"
    plain: bool = False
    part: RoundedPart | None = None

    def __str__(self) -> str:
        if self.part is not None:
            return f"{self.dtype} in {self.part.name} only"
        return f"{self.dtype}, {self.executor}{', plain PyTorch' if self.plain else ''}"


def ways(dtypes: Sequence[str], *, by_part: bool) -> list[Way]:
    """Return the ways to fold each target; the first is the reference, float32 with the executor `Whole`.

    They are every executor in float32; in each of `dtypes` every executor and plain PyTorch; and with `by_part` each
    of `PARTS` only.
    """
    all_ways = [Way(executor=name) for name in EXECUTORS]
    for dtype in dtypes:
        all_ways += [Way(dtype=dtype, executor=name) for name in EXECUTORS]
        all_ways.append(Way(dtype=dtype, plain=True))
        all_ways += [Way(dtype=dtype, part=part) for part in PARTS if by_part]
    return all_ways


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Differences of a prediction from the prediction in float32: lengths in Å, pLDDT from 0 to 100.

    `pae` is NaN if the model has no predicted aligned error.
    """

    target: str
    way: str
    rmsd: float  # of C-alpha atoms, superposed
    plddt: float  # mean over residues of the absolute change
    mean_plddt: float  # ranking confidence of this prediction
    pae: float  # mean over pairs of the absolute change


def run(options: PrecisionOptions) -> None:
    """Fold all targets in every way, and print how predictions differ from float32.

    With `--json`, the differences of every target are also written to a file. Raise `InputError` if more than one model
    is named, or if every target is too long.
    """
    device = pick_device(options.device)
    if len(options.models) != 1:
        raise InputError(f"expected one model to measure, got {len(options.models)}; pass one with --models")
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
    """Fold a target in every way, and yield the differences from the first way, beginning with the first way itself."""
    features, first = prepare(target).features, None
    for way in ways(options.dtypes, by_part=options.by_part):
        result = prediction(model, features, options, device, way)
        first = first or result
        yield cost_of(target.name, str(way), result, first)


def prediction(
    model: ReadyModel, features: Features, options: PrecisionOptions, device: torch.device, way: Way
) -> Prediction:
    """Fold a target, given by its features, in one way, and return the prediction."""
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
        (result,) = fold(model.network, model.preset, [target], folding, run, stages=Stages(device))
    return result


def cost_of(target: str, way: str, result: Prediction, first: Prediction) -> Cost:
    """Return the differences of a prediction from the `first` prediction of the same target.

    `target` and `way` are names for the table.
    """
    alpha = ATOM_ORDER["CA"]
    pae = np.nan if result.pae is None or first.pae is None else float(np.abs(result.pae - first.pae).mean())
    return Cost(
        target=target,
        way=way,
        rmsd=rmsd(result.protein.atom_positions[:, alpha], first.protein.atom_positions[:, alpha]),
        plddt=float(np.abs(result.plddt - first.plddt).mean()),
        mean_plddt=result.ranking_confidence,
        pae=pae,
    )


def table(costs: Sequence[Cost]) -> list[str]:
    """Return a header and a line for each way: median, 90th percentile and largest RMSD, mean changes of pLDDT and PAE.

    The last column is the fraction of pairs of targets whose order by mean pLDDT differs from the order in float32.
    """
    ways = list(dict.fromkeys(cost.way for cost in costs))
    confidences = {way: np.array([cost.mean_plddt for cost in costs if cost.way == way]) for way in ways}
    lines = [
        f"{'':44} {'targets':>8} {'RMSD, median':>13} {'90 %':>8} {'largest':>8} {'pLDDT':>8} {'PAE':>8} "
        f"{'pairs reordered':>16}"
    ]
    for way in ways:
        of_way = [cost for cost in costs if cost.way == way]
        distances = np.array([cost.rmsd for cost in of_way])
        before, after = (np.sign(each[:, None] - each[None]) for each in (confidences[ways[0]], confidences[way]))
        pairs = max(1, len(of_way) * (len(of_way) - 1) // 2)
        lines.append(
            f"{way:44} {len(of_way):8} {np.median(distances):13.4f} {np.quantile(distances, 0.9):8.4f} "
            f"{distances.max():8.4f} {np.mean([cost.plddt for cost in of_way]):8.4f} "
            f"{np.mean([cost.pae for cost in of_way]):8.4f} {np.sum(before * after < 0) // 2 / pairs:16.2%}"
        )
    return lines
