"""An update that somebody adds to a block is known to all that plans, and no file but the model's is told of it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.execution.recompute import RecomputeConfig
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model import evoformer
from helixfold.model.config import StackConfig
from helixfold.model.evoformer import EvoformerBlock, Streams
from helixfold.model.update import Executor, Stream, Update
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.parallel.mesh import Layout
from helixfold.planning.estimate import Device, Training, estimate
from helixfold.planning.passes import part_costs, prediction_memory
from helixfold.planning.size import PassSize
from tests.support.networks import relative_error, tiny_config

SIZE = PassSize(residues=32, msa_rows=4, extra_rows=4, templates=0, dtype=torch.float32)
H200 = DEVICE_MODELS["h200"]
CONFIG = replace(tiny_config("middle").with_settings(["structure.layers=1"]), template=None)
# An odd number of channels for an intermediate result, and so many of them that it is larger than anything else.
WIDTH = 333
AUTO, NONE = RecomputeConfig.everywhere("auto"), RecomputeConfig.everywhere("none")


class Wide(Update):
    """Adds what a wide map makes of each column and of the mean of all."""

    axis = "columns"
    context_axis = "columns"
    context_dim = 1

    def __init__(self, c_z: int) -> None:
        super().__init__()
        self.expand, self.contract = nn.Linear(c_z, WIDTH), nn.Linear(WIDTH, c_z)

    def context(self, pair: Float[Tensor, "b j i c"], mask: Float[Tensor, "b j i"]) -> tuple[Float[Tensor, "b j w"]]:
        return (self.expand(pair).mean(2),)

    def forward(
        self, pair: Float[Tensor, "b j i c"], mask: Float[Tensor, "b j i"], context: tuple[Float[Tensor, "b k w"]]
    ) -> Float[Tensor, "b j i c"]:
        hidden = self.expand(pair).sigmoid() + context[0].mean(1)[:, None, None]
        return self.contract(hidden.tanh())


class BlockWithMore(EvoformerBlock):
    """An Evoformer block with one more update at its end."""

    def __init__(self, config: StackConfig, c_z: int, *, global_columns: bool) -> None:
        super().__init__(config, c_z, global_columns=global_columns)
        self.wide = Wide(c_z)

    def forward(self, run: Executor, msa: Stream, pair: Stream, msa_mask: Tensor, pair_mask: Tensor) -> Streams:
        msa, pair = super().forward(run, msa, pair, msa_mask, pair_mask)
        return msa, run(self.wide, pair, pair_mask)


@pytest.fixture
def with_more(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every block of the model has the update; what was counted before is forgotten."""
    counted = prediction_memory, part_costs
    monkeypatch.setattr(evoformer, "EvoformerBlock", BlockWithMore)
    for each in counted:
        each.cache_clear()
    yield
    for each in counted:
        each.cache_clear()


def test_forecasts_products_bytes_and_recompute_follow(request: pytest.FixtureRequest) -> None:
    work = Training(model=CONFIG, size=SIZE, recompute=AUTO)

    def counted() -> tuple[int, ...]:
        learning = part_costs(CONFIG, SIZE, "none", H200, plain=True)["evoformer"].forward.products
        sent = part_costs(CONFIG, SIZE, "none", H200, Layout(dap=2))["evoformer"].forward.messages
        return (
            prediction_memory(CONFIG, SIZE, "whole", H200).peak,
            work.memory(NONE, H200).peak,
            learning,
            sum(size for _, size in sent),
        )

    before = counted()
    device = Device(
        properties=H200, memory=estimate(replace(work, recompute=NONE), Device(properties=H200, memory=0)).needed
    )
    assert estimate(work, device).policy == NONE
    request.getfixturevalue("with_more")
    after = counted()
    n, c_z, blocks = SIZE.residues, CONFIG.c_z, CONFIG.evoformer.blocks
    prediction, training, products, sent = (later - earlier for later, earlier in zip(after, before, strict=True))
    # Its hidden channels, of which earlier updates' temporaries are a part.
    assert prediction > n * n * WIDTH * 4 // 2
    # Two hidden tensors are kept in every block of both stacks, and more while gradients are computed.
    assert training > (blocks + CONFIG.extra_msa.blocks) * 2 * n * n * WIDTH * 4
    assert products == blocks * 3 * 2 * n * n * WIDTH * c_z
    # The means of its columns, half of which go to the other rank, and the pair stream to the other axis or back.
    assert sent >= blocks * n * WIDTH * 4 // 2
    chosen = estimate(work, device)
    assert chosen.policy != NONE
    assert chosen.fits


@pytest.mark.usefixtures("with_more")
def test_slabs_are_cut_by_what_its_rows_take() -> None:
    block = BlockWithMore(replace(CONFIG.evoformer, blocks=1), CONFIG.c_z, global_columns=False).eval()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.2)
    sizes: list[int] = []
    block.wide.register_forward_hook(lambda _, given, __: sizes.append(given[0].shape[1]))
    streams = torch.randn(1, 5, 48, CONFIG.evoformer.c_m), torch.randn(1, 48, 48, CONFIG.c_z)
    masks = torch.ones(1, 5, 48), torch.ones(1, 48, 48)
    expected = block(Whole(), *streams, *masks)
    column = 48 * WIDTH * 4
    found = block(Slabs(budget=10 * column), *(each.clone() for each in streams), *masks)
    assert relative_error(found[1], expected[1]) < 1e-5
    # Two to four hidden tensors of a column at a time, in a budget of ten.
    whole, *slabs = sizes
    assert whole == sum(slabs) == 48
    assert 2 <= slabs[0] <= 5
