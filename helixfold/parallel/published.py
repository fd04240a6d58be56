"""Machines by name, from published figures: assumptions for plans on paper, to be replaced by readings where there are
any (`probe`).

Rates of devices are NVIDIA's data sheets'. What a program reaches of them is that of the one that NVIDIA entered in
MLPerf HPC v3.0 (OpenFold on H100; described in ScaleFold, arXiv 2404.11068), in bfloat16: its step of one sample on
each GPU fixes `REACHED`, and nothing else here was fitted.
"""

from dataclasses import dataclass

from data_pipeline.config import ConfigError
from helixfold.parallel.layout import Layout
from helixfold.parallel.machine import Line, Links, Machine
from helixfold.parallel.work import UpdateWork

# The share of a device's roofs that updates reach, kernels' least time aside: see above.
REACHED = 0.103
# Kernels of an update without gradients, and forward and backward: counted in its plain reference in bfloat16. Of all
# that is in no stack, most are the structure module's. Each takes so many seconds, as PyTorch launches them one by one.
_UPDATE_KERNELS, _REST_KERNELS, _KERNEL = (32, 72), (2000, 6000), 5e-6
# A backward pass is twice a forward pass: two products for each, and as much more to read and to write.
_LEARNS = 3
# Bytes of each parameter that a step of the optimizer reads and writes: gradient, master, moments and average.
_OPTIMIZER_BYTES = 40
# What of a link's rate collectives reach, and seconds of one that sends next to nothing.
_LINK_REACHED, _NEAR_LATENCY, _FAR_LATENCY = 0.8, 20e-6, 40e-6
# What others than tensors take of a GPU's memory.
_MEMORY_LEFT = 0.92


@dataclass(frozen=True, kw_only=True)
class Roofs:
    """A device by its rates: FLOP of bfloat16 products a second, bytes of its memory a second."""

    product: float
    memory: float
    reached: float = REACHED

    def update(self, stack: str, name: str, work: UpdateWork, share: float, *, learns: bool) -> float:
        seconds = max(work.flops / self.product, work.moved / self.memory) / self.reached
        return (_LEARNS if learns else 1) * share * seconds + _UPDATE_KERNELS[learns] * _KERNEL

    def rest(self, share: float, *, learns: bool) -> float:
        return _REST_KERNELS[learns] * _KERNEL

    def optimizer(self, parameters: int) -> float:
        return parameters * _OPTIMIZER_BYTES / self.memory


@dataclass(frozen=True, kw_only=True)
class _Sheet:
    """Of a data sheet: dense bfloat16 FLOP/s, bytes/s and bytes of memory, bytes/s one way by NVLink and by network."""

    product: float
    memory_rate: float
    memory: float
    nvlink: float
    network: float


# Nodes of eight, each GPU with a network adapter of its own: 400 Gbit/s (DGX H100 and H200), 200 Gbit/s (DGX A100).
_SHEETS = {
    "h100": _Sheet(product=989e12, memory_rate=3.35e12, memory=80e9, nvlink=450e9, network=50e9),
    "h200": _Sheet(product=989e12, memory_rate=4.8e12, memory=141e9, nvlink=450e9, network=50e9),
    "a100": _Sheet(product=312e12, memory_rate=2.0e12, memory=80e9, nvlink=300e9, network=25e9),
}
NAMES = tuple(_SHEETS)


def named(name: str) -> Machine:
    """The machine of that name."""
    if name not in _SHEETS:
        raise ConfigError(f"there is no machine {name!r}; choose one of {', '.join(NAMES)}, or measure the one at hand")
    sheet = _SHEETS[name]
    return Machine(
        name=name,
        speeds=Roofs(product=sheet.product, memory=sheet.memory_rate),
        memory=int(_MEMORY_LEFT * sheet.memory),
        per_node=8,
        near=_links(sheet.nvlink, _NEAR_LATENCY),
        far=_links(sheet.network, _FAR_LATENCY),
        overlaps=True,
    )


def _links(rate: float, latency: float) -> Links:
    line = Line(fixed=latency, slope=1 / (_LINK_REACHED * rate))
    return Links(exchange=line, gather=line, scatter=line, reduce=line)


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A step of AlphaFold's initial training that somebody else measured."""

    source: str
    machine: str
    layout: Layout
    recomputes: bool
    seconds: float


# NVIDIA's entries to MLPerf HPC v3.0: crop 256, 128 sequences, 1,024 extra ones, 1 to 4 recycling passes.
PUBLISHED = (
    PublishedRun(
        source="one sample on each GPU", machine="h100", layout=Layout(dp=256), recomputes=True, seconds=1.808
    ),
    PublishedRun(
        source="2,080 GPUs, eight for a sample",
        machine="h100",
        layout=Layout(dp=260, dap=8),
        recomputes=False,
        seconds=0.682,
    ),
)
