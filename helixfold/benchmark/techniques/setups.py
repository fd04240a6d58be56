"""The techniques that make HelixFold cheap, and ways to compute a step or a prediction with and without each of them.

Wang et al. 2022 (arXiv 2207.05477) name most of them: fused operators, fused tensors, recomputation, bfloat16, updates
in place, and hybrid parallelism.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import torch

from helixfold.execution.recompute import RecomputeConfig
from helixfold.parallel.layout import Layout

# How gradients are summed over ranks: in buckets while the backward pass runs, in buckets after it, or one tensor after
# another.
Reduction = Literal["overlapped", "afterwards", "by tensor"]
PredictionWay = Literal["whole", "slabs", "slabs, not in place", "spilled"]
Benefit = Literal["time", "memory"]
# The fused operators by kind.
KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "attention": frozenset({"attention", "self_attention", "global_attention"}),
        "triangle multiplication": frozenset({"triangle_operand", "triangle_multiplication", "triangle_update"}),
        "outer product mean": frozenset({"outer_product_operand", "outer_product_operands", "outer_product_mean"}),
        "transition": frozenset({"transition"}),
        "norms and linear layers": frozenset({"layer_norm", "norm_linear", "linear", "multiply"}),
        "residual addition": frozenset({"add_change"}),
        "invariant point attention": frozenset({"point_attention", "invariant_point_attention"}),
    }
)
ALL_OPERATORS = frozenset().union(*KINDS.values())
_SMALL_STREAMS = "streams are small beside what else a rank holds"
_ON_A_CPU = "on a CPU, sending takes the time of the processors that compute"
_NOTHING = RecomputeConfig.everywhere("none")


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """Way to compute a training step.

    `plain` names the operators that PyTorch's own functions compute. `flat_optimizer` says whether parameters,
    gradients and moments are in a few flat buffers, and `overlaps_messages` whether ranks that share a sample compute
    while they exchange its parts. `samples` is the number of examples of the step, which the ranks of `layout` share.
    """

    dtype: torch.dtype
    plain: frozenset[str] = frozenset()
    recompute: RecomputeConfig = field(default_factory=RecomputeConfig)
    flat_optimizer: bool = True
    reduction: Reduction = "overlapped"
    overlaps_messages: bool = True
    layout: Layout = field(default_factory=Layout)
    samples: int = 1
    recorded: bool = False  # passes are replayed as CUDA graphs

    def plainest(self) -> "TrainingSetup":
        """Return the setup that computes the same samples in this dtype on one rank with every technique switched off.

        With dtype float32, its results are those that all others are compared with.
        """
        return TrainingSetup(
            dtype=self.dtype, plain=ALL_OPERATORS, recompute=_NOTHING, flat_optimizer=False, samples=self.samples
        )


@dataclass(frozen=True, kw_only=True)
class PredictionSetup:
    """Way to compute a prediction; `plain` names the operators that PyTorch's own functions compute."""

    dtype: torch.dtype
    plain: frozenset[str] = frozenset()
    way: PredictionWay = "slabs"
    layout: Layout = field(default_factory=Layout)
    recorded: bool = False  # passes are replayed as CUDA graphs

    def plainest(self) -> "PredictionSetup":
        """Return the setup in this dtype on one rank with every technique switched off."""
        return PredictionSetup(dtype=self.dtype, plain=ALL_OPERATORS, way="whole")


Setup = TrainingSetup | PredictionSetup


@dataclass(frozen=True, kw_only=True)
class Technique:
    """A technique, what it is claimed to save, and the setups with and without it.

    `otherwise` says why it does not save that, where it does not.
    """

    name: str
    claim: Benefit
    on: Setup
    off: Setup
    otherwise: str = "what is not kept is computed again, and in small networks calls take longer than arithmetic"

    @property
    def is_training(self) -> bool:
        return isinstance(self.on, TrainingSetup)


def training_techniques(dtype: torch.dtype, ranks: int, processors: int, *, graphs: bool = False) -> list[Technique]:
    """Return the techniques of a training step: on one rank those of a device, on several those of parallelism.

    The model's blocks must have HelixFold's order if there are several ranks. `processors` are those of a machine whose
    ranks are processes on its CPU. `graphs` says whether the device replays CUDA graphs.
    """
    if ranks == 1:
        on = TrainingSetup(dtype=dtype)
        return [*_on_one_device(dtype), *([_graphs(replace(on, recorded=True), on)] if graphs else [])]
    crowded = f"{ranks} ranks share {processors} processors" if processors < ranks else "messages take what it saves"
    by_data = TrainingSetup(dtype=dtype, layout=Layout(dp=ranks), samples=ranks)
    one = TrainingSetup(dtype=dtype)
    found = [
        Technique(
            name="data parallelism",
            claim="time",
            on=by_data,
            off=replace(by_data, layout=Layout()),
            otherwise=crowded,
        ),
        Technique(
            name="flat reduction of gradients",
            claim="time",
            on=replace(by_data, reduction="afterwards"),
            off=replace(by_data, reduction="by tensor"),
            otherwise="gradients are too few to be bound by messages",
        ),
        Technique(
            name="reduction during the backward pass",
            claim="time",
            on=by_data,
            off=replace(by_data, reduction="afterwards"),
            otherwise=_ON_A_CPU,
        ),
    ]
    for name, layout in (
        ("axial parallelism", Layout(dap=ranks)),
        ("branch parallelism", Layout(bp=2)),
        ("branch and axial parallelism", Layout(bp=2, dap=ranks // 2)),
    ):
        if layout.ranks == ranks and (name, ranks) != ("branch and axial parallelism", 2):
            on = replace(one, layout=layout)
            found.append(Technique(name=f"{name} of a sample", claim="time", on=on, off=one, otherwise=crowded))
    by_axis = replace(one, layout=Layout(dap=ranks))
    found.append(
        Technique(
            name="exchanges during computation, axial",
            claim="time",
            on=by_axis,
            off=replace(by_axis, overlaps_messages=False),
            otherwise=_ON_A_CPU,
        )
    )
    return found


def _on_one_device(dtype: torch.dtype) -> list[Technique]:
    on = TrainingSetup(dtype=dtype)
    found = [
        Technique(name=f"fused {kind}", claim="time", on=on, off=replace(on, plain=names))
        for kind, names in (("operators, all", ALL_OPERATORS), *KINDS.items())
    ]
    found += [
        Technique(name="flat buffers of the optimizer", claim="time", on=on, off=replace(on, flat_optimizer=False)),
        Technique(
            name="recomputed blocks",
            claim="memory",
            on=on,
            off=replace(on, recompute=_NOTHING),
            otherwise="what fused operators keep is small beside parameters, gradients and moments",
        ),
    ]
    if dtype != torch.float32:
        found.append(_lower_precision(dtype, on))
    return found


def prediction_techniques(dtype: torch.dtype, ranks: int, *, graphs: bool = False) -> list[Technique]:
    """Return the techniques of a prediction on one rank, or on several ranks that share it.

    `graphs` says whether the device replays CUDA graphs.
    """
    on = PredictionSetup(dtype=dtype)
    if ranks > 1:
        shared = replace(on, layout=Layout(dap=ranks))
        return [
            Technique(
                name="axial parallelism of a prediction", claim="memory", on=shared, off=on, otherwise=_SMALL_STREAMS
            )
        ]
    whole = replace(on, way="whole")
    found = [
        Technique(name=f"fused {kind}", claim="time", on=on, off=replace(on, plain=names))
        for kind, names in (("operators, all", ALL_OPERATORS), *KINDS.items())
    ]
    found += [
        Technique(name="slabs", claim="memory", on=on, off=whole, otherwise=_SMALL_STREAMS),
        Technique(
            name="updates in place",
            claim="memory",
            on=on,
            off=replace(on, way="slabs, not in place"),
            otherwise=_SMALL_STREAMS,
        ),
        Technique(
            name="spilled streams", claim="memory", on=replace(on, way="spilled"), off=on, otherwise=_SMALL_STREAMS
        ),
    ]
    if graphs:
        found.append(_graphs(replace(whole, recorded=True), whole))
    if dtype != torch.float32:
        found.append(_lower_precision(dtype, on))
    return found


def _graphs(on: Setup, off: Setup) -> Technique:
    return Technique(
        name="CUDA graphs", claim="time", on=on, off=off, otherwise="kernels take longer than launching the next ones"
    )


def _lower_precision(dtype: torch.dtype, on: Setup) -> Technique:
    return Technique(
        name=str(dtype).removeprefix("torch."),
        claim="time",
        on=on,
        off=replace(on, dtype=torch.float32),
        otherwise="products are no faster in it here, or too small a part of the time",
    )
