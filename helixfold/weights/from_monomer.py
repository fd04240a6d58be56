"""Conversion of a monomer's parameters to those of AlphaFold-Multimer's network, as far as both have the same content.

A chain alone, without templates, is then folded as by the monomer with the outer product mean first and without the
biases of point attention's queries, which AlphaFold-Multimer does not have.
"""

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import pad

from helixfold.config import ModelConfig, StructureConfig
from helixfold.model.embedders import MAX_SEPARATION
from helixfold.model.multimer import ANGLE_CHANNELS, CHAIN_DIFFERENCES, SEPARATIONS
from helixfold.model.templates import TEMPLATE_BINS, TEMPLATE_TYPES

_ATTENTION = "structure_module.attention"
_TEMPLATES = "template_embedder"
_TEMPLATE_PAIR = f"{_TEMPLATES}.pair"
_POSITION, _TORSIONS = "input_embedder.relative_position.weight", f"{_TEMPLATES}.angles.linear_1.weight"
# Maps of inputs that a monomer knows a part of, and how many it does not know.
EXTENDED = {
    _POSITION: SEPARATIONS + 1 + CHAIN_DIFFERENCES - (2 * MAX_SEPARATION + 1),
    _TORSIONS: ANGLE_CHANNELS - TEMPLATE_TYPES,
}
# A monomer's parameters whose content is in others of the network for complexes.
CONVERTED = tuple(
    f"{name}.{kind}"
    for name in (f"{_ATTENTION}.key_value", f"{_ATTENTION}.key_value_points", f"{_TEMPLATE_PAIR}.linear")
    for kind in ("weight", "bias")
)


def multimer_parameters(state: dict[str, Tensor], monomer: ModelConfig, multimer: ModelConfig) -> dict[str, Tensor]:
    """Return a monomer's parameters under the names, in the layout and in the units of a network for complexes.

    Weights of inputs that a monomer does not know (`EXTENDED`), such as "in another chain", are 0. Parameters of other
    names are as they were.
    """
    found = {name: tensor for name, tensor in state.items() if not name.startswith(_ATTENTION)}
    for name in ("target", "left", "right"):
        # Without the first channel, which marks breaks of the chain.
        found[f"input_embedder.{name}.weight"] = state[f"input_embedder.{name}.weight"][:, 1:]
    found[_POSITION] = pad(state[_POSITION], (0, EXTENDED[_POSITION]))
    letters = multimer.heads.masked_msa_letters
    for kind in ("weight", "bias"):
        found[f"heads.masked_msa.linear.{kind}"] = state[f"heads.masked_msa.linear.{kind}"][:letters]
    scale = monomer.structure.position_scale / multimer.structure.position_scale
    found |= _point_attention(state, monomer.structure, scale)
    for kind in ("weight", "bias"):
        rotation, translation = state[f"structure_module.backbone_update.{kind}"].split(3)
        found[f"structure_module.backbone_update.{kind}"] = torch.cat([rotation, scale * translation])
    return found | _templates(state) if monomer.template else found


def _point_attention(state: dict[str, Tensor], config: StructureConfig, scale: float) -> dict[str, Tensor]:
    """Return the parameters of invariant point attention; points are `scale` times as long in the new unit."""
    h, d, p = config.heads, config.c_scalar, config.value_points

    def old(name: str) -> Tensor:
        return state[f"{_ATTENTION}.{name}"]

    key, value = rearrange(old("key_value.weight"), "(h two d) c -> two (h d) c", two=2, h=h)
    found = {"query.weight": old("query.weight"), "key.weight": key, "value.weight": value}
    for kind in ("weight", "bias"):
        query = rearrange(old(f"query_points.{kind}"), "(x h q) ... -> (h x q) ...", x=3, h=h)
        both = rearrange(old(f"key_value_points.{kind}"), "(x h p) ... -> h x p ...", x=3, h=h)
        keys, values = both.split([config.query_points, p], 2)
        found[f"query_points.{kind}"] = scale * query
        found[f"key_points.{kind}"] = scale * keys.flatten(0, 2)
        found[f"value_points.{kind}"] = scale * values.flatten(0, 2)
        found[f"pair_bias.{kind}"] = old(f"pair_bias.{kind}")
    # Weights of squared distances, after a softplus.
    found["point_weights"] = _inverse_softplus(torch.nn.functional.softplus(old("point_weights")) / scale**2)
    means, points, pairs = old("out.weight").split([h * d, 4 * h * p, old("pair_bias.weight").shape[1] * h], 1)
    found["out.weight"] = torch.cat([means, points / scale, pairs], 1)
    # The weights of attention add up to 1, so that the values' bias is one of the result. That of keys has no effect.
    value_bias = rearrange(old("key_value.bias"), "(h two d) -> two (h d)", two=2, h=h)[1]
    found["out.bias"] = old("out.bias") + means @ value_bias
    return {f"{_ATTENTION}.{name}": tensor for name, tensor in found.items()}


def _templates(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of the template embedder's first maps.

    A monomer never saw directions between residues, and its features of torsions are others, but for the residue types.
    """
    weight = state[f"{_TEMPLATE_PAIR}.linear.weight"]
    maps = ("distances", "has_beta", "column_type", "row_type", "directions", "has_backbone")
    sizes = (TEMPLATE_BINS.count, 1, TEMPLATE_TYPES, TEMPLATE_TYPES, 3, 1)
    found = {
        f"{_TEMPLATE_PAIR}.{name}.weight": part
        for name, part in zip(maps, weight.split(sizes, 1), strict=True)
        if name != "directions"
    }
    found[f"{_TEMPLATE_PAIR}.distances.bias"] = state[f"{_TEMPLATE_PAIR}.linear.bias"]
    found[_TORSIONS] = pad(state[_TORSIONS][:, :TEMPLATE_TYPES], (0, EXTENDED[_TORSIONS]))
    return found


def _inverse_softplus(values: Tensor) -> Tensor:
    return values + torch.log(-torch.expm1(-values))
