"""Machines that one does not own, from published figures: assumptions for plans on paper.

Rates are NVIDIA's data sheets'. What a pass computes, reads and writes is counted for the card (`training`). What
share of the rates a program reaches is that of the one which NVIDIA entered in MLPerf HPC v3.0 (OpenFold on H100;
described in ScaleFold, arXiv 2404.11068), in bfloat16.
"""

from dataclasses import dataclass

from data_pipeline.config import ConfigError
from helixfold.execution.recompute import RecomputeConfig
from helixfold.ops.card import CARDS, Card
from helixfold.parallel.layout import Layout
from helixfold.planning.links import Line, Links
from helixfold.planning.recompute_choice import TrainingNeeds
from helixfold.planning.steps import Machine
from helixfold.planning.training import forward_costs, keep_of, part_costs, part_products

# The share of a device's rates that is reached, the time of calls aside. It was found by bisection: with it `predict`
# gives the first of `PUBLISHED` its 1.808 s, by what is counted for an H100. Nothing else here was fitted.
REACHED = 0.1703
# Bytes of each parameter that a step of the optimizer reads and writes: gradient, master, moments and average.
_OPTIMIZER_BYTES = 40
# What of a link's rate collectives reach, and seconds of one that sends next to nothing.
_LINK_REACHED, _NEAR_LATENCY, _FAR_LATENCY = 0.8, 20e-6, 40e-6
# What others than tensors take of a GPU's memory.
_MEMORY_LEFT = 0.92


@dataclass(frozen=True, kw_only=True)
class Rates:
    """A device by its rates: FLOP of bfloat16 products a second, bytes of its memory a second.

    `call` are the seconds of an operator that computes next to nothing, as PyTorch launches them one by one.
    """

    product: float
    memory: float
    reached: float = REACHED
    call: float = 5e-6

    def seconds(self, needs: TrainingNeeds, branch_rank: int, keep: RecomputeConfig | None, part: str) -> float:
        """Return the time in which the part's products are computed or its bytes moved, and its operators called."""
        place = needs.card, needs.layout
        once = part_products(needs.model, needs.size, *place, branch_rank=branch_rank)[part]
        if keep is None:
            directions = [forward_costs(needs.model, needs.size, *place, branch_rank=branch_rank)[part].forward]
            products = once.forward.products
        else:
            cost = part_costs(needs.model, needs.size, keep_of(keep, part), *place, branch_rank=branch_rank)[part]
            directions = [cost.forward, cost.backward]
            products = (1 + (keep_of(keep, part) != "none")) * once.forward.products + once.backward.products
        moved = sum(each.moved for each in directions)
        busy = needs.samples * max(products / self.product, moved / self.memory) / self.reached
        return busy + self.call * sum(each.launches for each in directions)

    def optimizer(self, parameters: int) -> float:
        """Return the time in which all that it reads and writes is moved."""
        return parameters * _OPTIMIZER_BYTES / self.memory


@dataclass(frozen=True, kw_only=True)
class _Sheet:
    """Of a data sheet: dense bfloat16 FLOP/s, bytes/s of memory, bytes/s one way by NVLink and by network."""

    card: Card
    product: float
    memory: float
    nvlink: float
    network: float


# Nodes of eight, each GPU with a network adapter of its own: 400 Gbit/s (DGX H100 and H200), 200 Gbit/s (DGX A100).
_SHEETS = {
    "h100": _Sheet(card=CARDS["h100"], product=989e12, memory=3.35e12, nvlink=450e9, network=50e9),
    "h200": _Sheet(card=CARDS["h200"], product=989e12, memory=4.8e12, nvlink=450e9, network=50e9),
    "a100": _Sheet(card=CARDS["a100-80"], product=312e12, memory=2.0e12, nvlink=300e9, network=25e9),
}
NAMES = tuple(_SHEETS)


def named(name: str) -> Machine:
    """Return the machine of that name."""
    if name not in _SHEETS:
        raise ConfigError(f"there is no machine {name!r}; choose one of {', '.join(NAMES)}, or measure the one at hand")
    sheet = _SHEETS[name]
    return Machine(
        name=name,
        card=sheet.card,
        speeds=Rates(product=sheet.product, memory=sheet.memory),
        memory=int(_MEMORY_LEFT * sheet.card.memory),
        per_node=8,
        near=_links(sheet.nvlink, _NEAR_LATENCY),
        far=_links(sheet.network, _FAR_LATENCY),
        overlaps=True,
    )


def _links(rate: float, latency: float) -> Links:
    line = Line(fixed=latency, slope=1 / (_LINK_REACHED * rate))
    return Links(all_to_all=line, all_gather=line, reduce_scatter=line, all_reduce=line)


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
