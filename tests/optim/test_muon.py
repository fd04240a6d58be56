"""Muon moves hidden matrices as torch's does, and Adam all else; its state goes on where it was saved."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from data_pipeline.io.config import ConfigError
from helixfold.optim.config import MuonConfig, OptimizerConfig
from helixfold.optim.flat import FlatOptimizer, Slot, is_hidden_matrix, orthogonal
from tests.optim.networks import float32_parameters

CONFIG = OptimizerConfig(method="muon", clipping="none", ema_decay=0.9, muon=MuonConfig(rate=2.0))
STEPS = 12


class Network(nn.Module):
    """Two hidden matrices of one shape and one of another, between layers that are Adam's."""

    def __init__(self) -> None:
        super().__init__()
        self.input_embedder = nn.Linear(9, 16)
        self.hidden = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 32)])
        self.heads = nn.ModuleDict({"one": nn.Linear(32, 10)})

    def forward(self, x: Tensor) -> Tensor:
        now = self.input_embedder(x.to(self.hidden[0].weight.dtype))
        for layer in self.hidden:
            now = layer(now).tanh()
        return self.heads["one"](now.float())

    def loss(self, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(8, 9, generator=generator), torch.randn(8, 10, generator=generator)
        return (self(x) - y).square().mean()


def step(model: Network, optimizer: FlatOptimizer, number: int, rate: float = 1e-3) -> None:
    model.loss(number).backward()
    optimizer.collect()
    optimizer.step(rate, micro_batches=1)


@pytest.mark.parametrize("shape", [(16, 16), (12, 40), (40, 12)])
def test_singular_values_become_alike_and_singular_vectors_stay(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape) * torch.logspace(-0.5, 0.5, shape[1])
    found = orthogonal(matrices, 5)
    values = torch.linalg.svdvals(found)
    assert ((values > 0.5) & (values < 1.3)).float().mean() > 0.9
    # The published polynomial, applied to the singular values alone.
    left, expected, right = torch.linalg.svd(matrices.double(), full_matrices=False)
    expected = expected / expected.norm(dim=-1, keepdim=True)
    for _ in range(5):
        expected = 3.4445 * expected - 4.7750 * expected**3 + 2.0315 * expected**5
    torch.testing.assert_close(found.double(), left @ expected.diag_embed() @ right, rtol=0, atol=1e-3)
    assert (orthogonal(torch.zeros(2, *shape), 5) == 0).all()
    for tiny in (1e-14, 1e-25, 1e-40):  # the squares of the last two are zero
        assert orthogonal(matrices * tiny, 5).abs().max() < 0.01


@pytest.mark.parametrize("clipping", ["none", "global", "sample", "adagc"])
def test_steps_are_those_of_torchs_muon_and_adam(clipping: str) -> None:
    config = replace(CONFIG, clipping=clipping, clip_norm=1e6, adagc=replace(CONFIG.adagc, relative_threshold=1e6))
    ours, plain = Network(), Network()
    plain.load_state_dict(ours.state_dict())
    optimizer = FlatOptimizer(ours, config, keep_float32=("heads",))
    matrices = [layer.weight for layer in plain.hidden]
    others = [each for each in plain.parameters() if not any(each is matrix for matrix in matrices)]
    muon = torch.optim.Muon(matrices, lr=2e-3, weight_decay=0, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.Adam(others, lr=1e-3, eps=1e-6)
    begun = {name: value.clone() for name, value in plain.state_dict().items()}
    for number in range(STEPS):
        step(ours, optimizer, number)
        plain.zero_grad()
        plain.loss(number).backward()
        muon.step()
        adam.step()
    for name, value in plain.state_dict().items():
        # torch's iterates in bfloat16, so its steps are off by a few percent of their length.
        moved, right = float32_parameters(optimizer)[name] - begun[name], value - begun[name]
        assert (moved - right).norm() < 0.15 * right.norm(), name


def test_the_average_and_the_working_copy_follow_what_muon_moved() -> None:
    model = Network()
    optimizer = FlatOptimizer(model, CONFIG, keep_float32=("heads",), working_dtype=torch.bfloat16)
    before = float32_parameters(optimizer)["hidden.0.weight"].clone()
    step(model, optimizer, 0)
    now = float32_parameters(optimizer)["hidden.0.weight"]
    assert (now - before).norm() > 0
    assert torch.equal(model.hidden[0].weight, now.bfloat16())
    torch.testing.assert_close(optimizer.averaged()["hidden.0.weight"], 0.9 * before + 0.1 * now)


def test_a_saved_state_goes_on_as_if_nothing_had_been() -> None:
    model, again = Network(), Network()
    optimizer = FlatOptimizer(model, CONFIG, keep_float32=("heads",))
    for number in range(4):
        step(model, optimizer, number)
    resumed = FlatOptimizer(again, CONFIG, keep_float32=("heads",))
    for name, tensor in resumed.tensors().items():
        tensor.copy_(optimizer.tensors()[name])
    resumed.restored()
    for number in range(4, 7):
        step(model, optimizer, number)
        step(again, resumed, number)
    assert all(torch.equal(tensor, resumed.tensors()[name]) for name, tensor in optimizer.tensors().items())
    assert optimizer.tensors()["momentum"].abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "shape", "hidden"),
    [
        ("evoformer.blocks.0.msa_transition.linear_1.weight", (512, 256), True),
        ("structure_module.transition.0.weight", (64, 64), True),
        ("evoformer.blocks.0.msa_transition.linear_1.bias", (512,), False),
        ("evoformer.blocks.0.row_attention.pair_bias.weight", (4, 128), False),
        ("heads.distogram.weight", (64, 128), False),
        ("input_embedder.left.weight", (128, 22), False),
    ],
)
def test_hidden_matrices_are_those_between_representations(name: str, shape: tuple[int, ...], hidden: bool) -> None:
    assert is_hidden_matrix(Slot(name=name, shape=shape, offset=0)) is hidden


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"momentum": 1.5}, {"rounds": 0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        MuonConfig(**wrong)  # type: ignore[arg-type]
