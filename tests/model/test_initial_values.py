"""Parameters start as in DeepMind's program: the same distributions with the same spread, place by place."""

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helixfold.model.alphafold import AlphaFold
from helixfold.model.layers import LayerNorm
from helixfold.model.presets import preset

# Standard deviations of the weights that start random, by distribution, as measured on DeepMind's program at model_1's
# sizes (haiku's initialisation, three seeds). All other weights start at zero.
MEASURED = {
    "uniform": {
        r"evoformer\.blocks\.\d\.(row|column)_attention\.attention\.qkv": 0.01398,
        r"(evoformer|extra_msa_stack)\.blocks\.\d\.triangle_(starting|ending)\.attention\.qkv": 0.02083,
        r"extra_msa_stack\.blocks\.\d\.row_attention\.attention\.qkv": 0.0442,
        r"extra_msa_stack\.blocks\.\d\.column_attention\.query": 0.0440,
        r"extra_msa_stack\.blocks\.\d\.column_attention\.(key|value)": 0.1665,
        r"template_embedder\.pair\.blocks\.\d\.triangle_(starting|ending)\.attention\.qkv": 0.0395,
        r"template_embedder\.attention\.query": 0.0281,
        r"template_embedder\.attention\.(key|value)": 0.0395,
    },
    "normal": {
        r"(evoformer|extra_msa_stack)\.blocks\.\d\.(row_attention|triangle_(starting|ending))\.pair_bias": 0.0885,
        r"template_embedder\.pair\.blocks\.\d\.triangle_(starting|ending)\.pair_bias": 0.1264,
    },
    "cut normal": {
        r"input_embedder\.msa": 0.1433,
        r"input_embedder\.(target|left|right)": 0.2132,
        r"input_embedder\.relative_position": 0.1245,
        r"recycling_embedder\.distances": 0.2604,
        r"extra_msa_embedder\.linear": 0.2028,
        r"template_embedder\.pair\.linear": 0.1506,
        r"template_embedder\.angles\.linear_1": 0.1877,
        r"template_embedder\.angles\.linear_2": 0.0884,
        r"template_embedder\.pair\.blocks\.\d\.triangle_(outgoing|incoming)\.(left|right)": 0.1249,
        r"template_embedder\.pair\.blocks\.\d\.pair_transition\.linear_1": 0.1762,
        r"evoformer\.blocks\.\d\.outer_product_mean\.(left|right)": 0.0625,
        r"extra_msa_stack\.blocks\.\d\.outer_product_mean\.(left|right)": 0.1247,
        r"evoformer\.blocks\.\d\.msa_transition\.linear_1": 0.0884,
        r"extra_msa_stack\.blocks\.\d\.msa_transition\.linear_1": 0.1770,
        r"(evoformer|extra_msa_stack)\.blocks\.\d\.pair_transition\.linear_1": 0.1250,
        r"(evoformer|extra_msa_stack)\.blocks\.\d\.triangle_(outgoing|incoming)\.(left|right)": 0.0884,
        r"single": 0.0624,
        r"structure_module\.(initial|attention\.(query|key_value|query_points|key_value_points))": 0.0510,
        r"structure_module\.attention\.pair_bias": 0.0884,
        r"structure_module\.transition\.linear_[12]": 0.0721,
        r"structure_module\.angles\.(current|initial)": 0.0510,
        r"structure_module\.angles\.blocks\.\d\.linear_1": 0.1250,
        r"structure_module\.angles\.out": 0.0885,
        r"heads\.lddt\.linear_1": 0.0721,
        r"heads\.lddt\.linear_2": 0.1250,
    },
}
# Largest value and fourth moment of each distribution, in units of its standard deviation.
LARGEST = {"uniform": 3**0.5, "normal": float("inf"), "cut normal": 2 / 0.87962566103423978}
FOURTH_MOMENT = {"uniform": 1.8, "normal": 3.0, "cut normal": 2.37}
WEIGHTS = {(place, kind): std for kind, places in MEASURED.items() for place, std in places.items()}


@pytest.fixture(scope="module")
def model() -> AlphaFold:
    """Every place of model_1_ptm at its size, in one block of each stack."""
    config = preset("model_1_ptm").model
    torch.manual_seed(0)
    return AlphaFold(
        replace(
            config,
            evoformer=replace(config.evoformer, blocks=1),
            extra_msa=replace(config.extra_msa, blocks=1),
            template=replace(config.template, blocks=1),
        )
    )


def start_of(name: str) -> tuple[str, float]:
    """Distribution and standard deviation of the weight of this module; "zeros" where DeepMind's starts so."""
    found = [(kind, std) for (place, kind), std in WEIGHTS.items() if re.fullmatch(place, name)]
    assert len(found) < 2, name
    return found[0] if found else ("zeros", 0.0)


def fourth_moment(values: Tensor) -> float:
    return float((values.double() - values.double().mean()).pow(4).mean() / values.double().var() ** 2)


def test_every_weight_has_the_distribution_of_deepminds(model: AlphaFold) -> None:
    matched = set()
    for name, parameter in model.named_parameters():
        place, _, leaf = name.rpartition(".")
        if leaf != "weight" or isinstance(model.get_submodule(place), LayerNorm):
            continue
        kind, std = start_of(place)
        matched.add((kind, std))
        if kind == "zeros":
            assert (parameter == 0).all(), name
            continue
        values = parameter.detach()
        # Both numbers are measured: four standard errors of a sample of this size, and a hundredth for theirs.
        found, error = float(values.std()), 4 * (2 * values.numel()) ** -0.5
        assert found == pytest.approx(std, rel=0.01 + error), name
        assert abs(values.mean()) < 5 * std * values.numel() ** -0.5, name
        assert values.abs().max() <= 1.01 * (1 + error) * std * LARGEST[kind], name
        assert fourth_moment(values) == pytest.approx(FOURTH_MOMENT[kind], rel=6 * error), name
    assert matched - {("zeros", 0.0)} == {(kind, std) for (_, kind), std in WEIGHTS.items()}


def test_norms_start_as_norms_gates_open_and_all_other_biases_at_zero(model: AlphaFold) -> None:
    for name, parameter in model.named_parameters():
        place, _, leaf = name.rpartition(".")
        if isinstance(model.get_submodule(place), LayerNorm):
            assert (parameter == (leaf == "weight")).all(), name
        elif leaf == "bias":
            assert (parameter == place.endswith("gate")).all(), name
        elif leaf == "point_weights":
            assert torch.nn.functional.softplus(parameter).detach() == pytest.approx(torch.ones(12)), name
        else:
            assert leaf == "weight", name
