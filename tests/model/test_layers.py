"""Linear maps start as AlphaFold's do and compute in the dtype of their input."""

import pytest
import torch

from helixfold.execution.slabs import Slabs
from helixfold.model.alphafold import AlphaFold
from helixfold.model.layers import LayerNorm, Linear, ToHeads, Transition
from tests.support.networks import tiny_config


@pytest.mark.parametrize(("init", "variance"), [("linear", 1 / 400), ("relu", 2 / 400)])
def test_weights_start_from_a_cut_normal_distribution(init: str, variance: float) -> None:
    linear = Linear(400, 300, init=init)
    assert abs(linear.weight.var() / variance - 1) < 0.03
    assert abs(linear.weight.mean()) < 1e-3
    # Cut at two standard deviations of the distribution before the cut.
    largest = 2 * variance**0.5 / 0.87962566103423978
    assert 0.98 * largest < linear.weight.abs().max() <= largest
    assert (linear.bias == 0).all()


def test_maps_into_heads_start_as_haiku_draws_an_array_with_an_axis_for_heads() -> None:
    """Fans of [c, heads, width] are c * heads and c * width; side by side, each map starts as if it were alone."""
    for maps in (1, 3):
        weight = ToHeads(96, 4, 40, maps=maps).weight
        limit = (6 / (96 * 4 + 96 * 40)) ** 0.5
        assert weight.shape == (maps * 160, 96)
        assert 0.99 * limit < weight.abs().max() <= limit
        assert abs(weight.std() / (limit / 3**0.5) - 1) < 0.02


def test_other_biases_of_attention_start_from_a_whole_normal_distribution() -> None:
    weight = Linear(400, 300, init="normal").weight
    assert abs(weight.var() * 400 - 1) < 0.03
    assert weight.abs().max() > 4 / 400**0.5


@pytest.mark.parametrize(("init", "bias"), [("zeros", 0), ("gate", 1)])
def test_gates_start_open_and_residual_updates_at_zero(init: str, bias: int) -> None:
    linear = Linear(8, 4, init=init)
    assert (linear.weight == 0).all()
    assert (linear.bias == bias).all()
    assert Linear(8, 4, bias=False).bias is None


# Endings of names, the first that fits counts (AlphaFold 2, Suppl. Sec. 1.11.4).
PLACES = {
    "structure_module.angles.out": "linear",
    "heads.lddt.linear_2": "relu",
    "structure_module.transition.linear_2": "relu",
    "template_embedder.angles.linear_2": "relu",
    "template_embedder.pair.linear": "relu",
    ".linear_1": "relu",
    # What is added to a stream, and logits.
    ".linear_2": "zeros",
    ".linear_3": "zeros",
    ".out": "zeros",
    "structure_module.backbone_update": "zeros",
    "heads.distogram.linear": "zeros",
    "heads.masked_msa.linear": "zeros",
    "heads.experimentally_resolved.linear": "zeros",
    "heads.aligned_error.linear": "zeros",
    "gate": "gate",
    "structure_module.attention.pair_bias": "linear",
    ".pair_bias": "normal",
    # Queries, keys and values of attention, but not of invariant point attention.
    ".qkv": "glorot",
    **{
        f"{place}.{part}": "glorot"
        for place in ("column_attention", "template_embedder.attention")
        for part in ("query", "key", "value")
    },
    "": "linear",
}


def test_every_map_starts_as_its_place_demands() -> None:
    linears = {name: each for name, each in AlphaFold(tiny_config()).named_modules() if isinstance(each, Linear)}
    found = {name: linear.init for name, linear in linears.items()}
    assert found == {name: next(PLACES[end] for end in PLACES if name.endswith(end)) for name in linears}
    assert set(found.values()) == {"linear", "relu", "normal", "glorot", "zeros", "gate"}


def test_a_fresh_block_changes_no_stream() -> None:
    block = AlphaFold(tiny_config()).evoformer.blocks[0].eval()
    msa, pair = torch.randn(1, 3, 5, 64), torch.randn(1, 5, 5, 32)
    found = block(Slabs(), msa.clone(), pair.clone(), torch.ones(1, 3, 5), torch.ones(1, 5, 5))
    assert (found[0] == msa).all()
    assert (found[1] == pair).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_arithmetic_follows_the_activations(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 4, 8, dtype=dtype)
    transition = Transition(8, 4)
    torch.nn.init.normal_(transition.linear_2.weight)
    for module in (Linear(8, 5), Linear(8, 5, bias=False), LayerNorm(8)):
        assert module(x).dtype == dtype
        assert module.weight.dtype == torch.float32
    assert transition(x, torch.ones(2, 3, 4), ()).dtype == dtype


def test_statistics_of_a_norm_are_taken_in_float32() -> None:
    # In bfloat16 the mean of these would be off by more than their spread.
    x = (torch.randn(4, 256) + 300).bfloat16()
    exact = torch.nn.functional.layer_norm(x.double(), (256,))
    assert (LayerNorm(256)(x).double() - exact).abs().max() < 0.02


def test_a_norm_divides_by_the_deviation_with_alphafolds_floor() -> None:
    x = 1e-3 * torch.randn(3, 16)
    expected = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(LayerNorm(16)(x), expected)


def test_a_transition_sees_one_element_at_a_time() -> None:
    transition = Transition(8, 2)
    torch.nn.init.normal_(transition.linear_2.weight)
    x, mask = torch.randn(1, 3, 4, 8), torch.ones(1, 3, 4)
    whole = transition(x, mask, ())
    torch.testing.assert_close(whole[:, 1:2, 2:3], transition(x[:, 1:2, 2:3], mask[:, 1:2, 2:3], ()))
    assert (transition(x, torch.zeros(1, 3, 4), ()) == whole).all()
