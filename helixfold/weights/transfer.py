"""Parameters for a network to begin with that come from the file of another network, and what of them is new.

A network for complexes takes over those of a monomer, or of another release, wherever names and shapes have a
counterpart. A chain alone, without templates, is then folded as by the monomer with the outer product mean first and
without the biases of point attention's queries, which AlphaFold-Multimer does not have.
"""

import fnmatch
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import pad

from data_pipeline.io.errors import InputError, did_you_mean, printable
from helixfold.model.config import MSA_LETTERS, ConfigError, ModelConfig, StructureConfig
from helixfold.model.embedders import MAX_SEPARATION
from helixfold.model.multimer import ANGLE_CHANNELS, CHAIN_DIFFERENCES, SEPARATIONS
from helixfold.model.presets import PRESETS
from helixfold.model.templates import TEMPLATE_BINS, TEMPLATE_TYPES
from helixfold.weights.checkpoint import load_checkpoint, read_header
from helixfold.weights.load import file_shapes, load_weights, matching_presets, model_shapes, read_shapes

# Settings without which tensors of equal shapes do not mean the same, or most shapes differ.
_ALIKE = (
    *("c_z", "c_s", "evoformer.c_m", "evoformer.msa_heads", "evoformer.pair_heads", "evoformer.c_outer"),
    *("extra_msa.c_m", "extra_msa.msa_heads", "extra_msa.pair_heads", "extra_msa.c_outer", "template.pair_heads"),
    *("structure.c", "structure.heads", "structure.c_scalar", "structure.query_points", "structure.value_points"),
)
# New maps that add to what was learnt already begin with zeros, so that they disturb nothing at first.
_ZEROS = ("template_embedder.out.weight", "template_embedder.out.bias")
_MOST_NAMED = 5  # parameters in an error
_BLOCK = re.compile(r"(?<=\.blocks\.)\d+(?=\.)")


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """Parameters that a network begins with, by name; those that are not in `state` begin with random values.

    The other fields are names: of parameters that were converted to another layout or unit, that have more inputs than
    in the file (the weights of these are 0), that are new, and that are new because they have another shape in the
    file; and of parameters of the file that have no counterpart.
    """

    state: dict[str, Tensor]
    taken: int  # number of values that come from the file
    converted: tuple[str, ...] = ()
    extended: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    reshaped: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def listing(self) -> dict[str, list[str]]:
        """Return all names by what they are.

        The blocks of a stack share a line, and so do the names of a block that no value is taken for.
        """
        kinds = ("new", "reshaped", "unused", "extended", "converted")
        taken = {_block_of(name) for name in self.state}
        stacks = {_BLOCK.sub("*", f"{block}.") for block in taken}

        def shortened(name: str) -> str:
            block = _block_of(name)
            is_block_of_its_own = block not in taken and _BLOCK.sub("*", f"{block}.") in stacks
            return f"{block}.*" if is_block_of_its_own else _BLOCK.sub("*", name)

        return {kind: list(dict.fromkeys(map(shortened, getattr(self, kind)))) for kind in kinds}

    def description(self, source: str) -> str:
        """Return one sentence on what comes from the file named `source`, and on all that does not."""
        names = self.listing()
        zeros = [name for name in names["new"] if name in _ZEROS]
        groups = {
            "new, with random values": [name for name in names["new"] if name not in _ZEROS],
            "new, with zeros": zeros,
            "new, since they have another shape there": names["reshaped"],
            "left out, without a counterpart here": names["unused"],
            "with more inputs, whose weights are 0": names["extended"],
            "converted to this network's layout and units": names["converted"],
        }
        parts = [f"{what}: {', '.join(these)}" for what, these in groups.items() if these]
        return "; ".join([f"starts from {self.taken:,} parameters of {source}", *parts])


def _block_of(name: str) -> str:
    """Return the name of the block that a parameter belongs to, or ""."""
    found = _BLOCK.search(name)
    return "" if found is None else name[: found.end()]


def initial_weights(path: Path, config: ModelConfig, new: Sequence[str] = ()) -> InitialWeights:
    """Return the parameters of a file that a network begins with, even if it lacks some of them.

    `new` are patterns, as of file names, for parameters that a changed network has and the file lacks, or has in
    another shape. With them, parameters of the file that the network does not have are left out.

    What a file may lack is the aligned-error head, as AlphaFold's `_ptm` models did when they began (Suppl. Sec.
    1.9.7), and, for a network of complexes, whatever its own model does not have. `template.update_factor` and
    `template.plddt_slope`, which have no parameters, may differ. Raise `InputError` if the file is damaged or does not
    fit.
    """
    if new:
        return _with_new(path, config, new)
    try:
        state = load_weights(path, config)
        return InitialWeights(state=state, taken=sum(tensor.numel() for tensor in state.values()))
    except InputError as error:
        source = _source(path, config)
        if source is None:
            form, shapes = read_shapes(path)
            ours = model_shapes(config)
            if form == "safetensors" and shapes != ours and shapes.keys() & ours.keys():
                advice = "if you changed the network, name its new parameters with --new-parameters"
                raise InputError(f"{error}; {advice}") from None
            raise
    if differing := _differences(source, config):
        raise InputError.at(path, f"its parameters cannot be taken over: {differing}")
    return _taken_over(load_weights(path, source), source, config)


def _with_new(path: Path, config: ModelConfig, patterns: Sequence[str]) -> InitialWeights:
    shapes = model_shapes(config)
    for pattern in patterns:
        if not fnmatch.filter(shapes, pattern):
            problem = f"--new-parameters '{printable(pattern)}' matches no parameter of the network"
            raise InputError(f"{problem}{did_you_mean(pattern, shapes)}")
    named = {name for pattern in patterns for name in fnmatch.filter(shapes, pattern)}
    state, source = _content(path, config, named)
    if source is not None and (differing := _differences(source, config)):
        raise InputError.at(path, f"its parameters cannot be taken over: {differing}")
    found = {
        name: state[name].float()
        for name, shape in shapes.items()
        if name in state and tuple(state[name].shape) == shape
    }
    if without := [name for name in shapes if name not in found and name not in named]:
        rest = f" and {len(without) - _MOST_NAMED:,} more" if len(without) > _MOST_NAMED else ""
        raise InputError.at(
            path,
            f"it lacks {', '.join(without[:_MOST_NAMED])}{rest}, or has them in another shape; to start them "
            "anew, name them too with --new-parameters",
        )
    return InitialWeights(
        state=found,
        taken=sum(tensor.numel() for tensor in found.values()),
        new=tuple(name for name in shapes if name not in state),
        reshaped=tuple(name for name in shapes if name in state and name not in found),
        unused=tuple(name for name in state if name not in shapes),
    )


def _content(path: Path, config: ModelConfig, new: Collection[str]) -> tuple[dict[str, Tensor], ModelConfig | None]:
    """Return the parameters of a file for `_with_new`, and the settings of their network if they are known."""
    form, shapes = read_shapes(path)
    if form == "safetensors":
        state, _ = load_checkpoint(path)
        with suppress(ConfigError):  # settings that only a changed network has
            return state, ModelConfig.from_dict(read_header(path).config)
        return state, None
    for name in matching_presets(shapes, form):
        source = PRESETS[name]().model
        return load_weights(path, source), source
    known = {name: shape for name, shape in model_shapes(config).items() if name not in new}
    return load_weights(path, config, known), None


def _taken_over(state: dict[str, Tensor], source: ModelConfig, config: ModelConfig) -> InitialWeights:
    shapes = model_shapes(config)
    made = state
    if source.method == "monomer" and config.method == "multimer":
        made = multimer_parameters(state, source, config)
    found = {name: made[name] for name in shapes if name in made and tuple(made[name].shape) == shapes[name]}
    extended = tuple(name for name in EXTENDED if name in found and found[name] is not state.get(name))
    return InitialWeights(
        state=found | {name: torch.zeros(shapes[name]) for name in _ZEROS if name in shapes and name not in found},
        taken=sum(tensor.numel() for tensor in found.values())
        - sum(EXTENDED[name] * len(found[name]) for name in extended),
        converted=tuple(name for name in found if found[name] is not state.get(name) and name not in extended),
        extended=extended,
        new=tuple(name for name in shapes if name not in found),
        unused=tuple(name for name in state if name not in found and not (made is not state and name in CONVERTED)),
    )


def _source(path: Path, config: ModelConfig) -> ModelConfig | None:
    """Return the settings of the network whose parameters a file holds; None if they are of no use to this one."""
    form, shapes = read_shapes(path)
    if form == "safetensors" and (template := config.template) is not None:
        with suppress(ConfigError):
            stored = ModelConfig.from_dict(read_header(path).config)
            if stored.template is not None and config == replace(
                stored,
                template=replace(
                    stored.template, update_factor=template.update_factor, plddt_slope=template.plddt_slope
                ),
            ):
                return stored
    headless = replace(config, heads=replace(config.heads, aligned_error=False))
    if config.heads.aligned_error and file_shapes(headless, form) == shapes:
        return headless
    if config.method != "multimer":
        return None
    if form == "safetensors":
        try:
            candidates = [ModelConfig.from_dict(read_header(path).config)]
        except ConfigError:
            return None
    else:
        named = (PRESETS[name]().model for name in matching_presets(shapes, form))
        candidates = [*named, *_monomers_like(config)]
    return next((each for each in candidates if file_shapes(each, form) == shapes), None)


def _monomers_like(config: ModelConfig) -> Iterator[ModelConfig]:
    """Yield the settings of monomers of this size, with and without templates and aligned-error head."""
    for template in (config.template, None):
        for aligned_error in (True, False):
            yield replace(
                config,
                method="monomer",
                triangle_projections="separate",
                evoformer=replace(config.evoformer, outer_product="middle"),
                extra_msa=replace(config.extra_msa, outer_product="middle"),
                template=template,
                structure=replace(config.structure, position_scale=StructureConfig().position_scale),
                heads=replace(config.heads, aligned_error=aligned_error, masked_msa_letters=MSA_LETTERS),
            )


def _differences(source: ModelConfig, config: ModelConfig) -> str:
    """Return in what settings two networks differ that must be equal, or ""."""
    theirs, ours = source.flat(), config.flat()
    return "; ".join(
        f"{name} is {theirs[name]} there and {ours[name]} here"
        for name in _ALIKE
        if name in theirs and name in ours and theirs[name] != ours[name]
    )


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
