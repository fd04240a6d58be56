"""Initial parameters of a network from the file of another network.

A network for complexes can start from the parameters of a monomer or of another release, where names and shapes match.
A single chain without templates is then folded as by the monomer, except that the outer product mean comes first and
the queries of point attention have no bias, as in AlphaFold-Multimer. `EXTENDED` maps weights with more inputs than in
a monomer to the number of missing inputs. `CONVERTED` are parameters of a monomer whose values get other names.
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
from helixfold.weights.conversion import differences
from helixfold.weights.load import (
    differing_settings,
    file_shapes,
    load_weights,
    matching_presets,
    model_shapes,
    read_shapes,
)

# Settings that must be equal: otherwise tensors of equal shapes differ in meaning, or most shapes differ.
_EQUAL_SETTINGS = (
    *("c_z", "c_s", "evoformer.c_m", "evoformer.msa_heads", "evoformer.pair_heads", "evoformer.c_outer"),
    *("extra_msa.c_m", "extra_msa.msa_heads", "extra_msa.pair_heads", "extra_msa.c_outer", "template.pair_heads"),
    *("structure.c", "structure.heads", "structure.c_scalar", "structure.query_points", "structure.value_points"),
)
# New maps whose output is added to trained activations start with zeros, so that they change nothing at first.
_ZERO_PARAMETERS = ("template_embedder.out.weight", "template_embedder.out.bias")
_MAX_LISTED = 5  # parameters in an error
_BLOCK_INDEX = re.compile(r"(?<=\.blocks\.)\d+(?=\.)")


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """Initial parameters of a network by name; parameters that are not in `state` keep their initial values.

    `taken` is the number of values in `state` from the file. The other fields are names of parameters: `converted` to
    another layout or unit; `extended` by inputs that the file does not have, with weights of 0; `new`; `reshaped`,
    which are new because they have another shape in the file; and `unused` parameters of the file.
    """

    state: dict[str, Tensor]
    taken: int  # number of values from the file
    converted: tuple[str, ...] = ()
    extended: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    reshaped: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def listing(self) -> dict[str, list[str]]:
        """Return all names of parameters by kind: "new", "reshaped", "unused", "extended" and "converted".

        The blocks of a stack share an entry, with `*` for the index. In a stack of which `state` has some blocks, the
        parameters of the other blocks share an entry for each block.
        """
        kinds = ("new", "reshaped", "unused", "extended", "converted")
        blocks = {_block_of(name) for name in self.state}
        stacks = {_BLOCK_INDEX.sub("*", f"{block}.") for block in blocks}

        def shortened(name: str) -> str:
            block = _block_of(name)
            is_block_of_its_own = block not in blocks and _BLOCK_INDEX.sub("*", f"{block}.") in stacks
            return f"{block}.*" if is_block_of_its_own else _BLOCK_INDEX.sub("*", name)

        return {kind: list(dict.fromkeys(map(shortened, getattr(self, kind)))) for kind in kinds}

    def description(self, source: str) -> str:
        """Return text for "training ...": "starts from N parameters of SOURCE", and the listed names of each kind."""
        names = self.listing()
        zeros = [name for name in names["new"] if name in _ZERO_PARAMETERS]
        groups = {
            "new, with their initial values": [name for name in names["new"] if name not in _ZERO_PARAMETERS],
            "new, with zeros": zeros,
            "new, because they have another shape there": names["reshaped"],
            "left out, without a counterpart here": names["unused"],
            "with more inputs, whose weights are 0": names["extended"],
            "converted to this network's layout and units": names["converted"],
        }
        parts = [f"{what}: {', '.join(listed_names)}" for what, listed_names in groups.items() if listed_names]
        return "; ".join([f"starts from {self.taken:,} parameters of {source}", *parts])


def _block_of(name: str) -> str:
    """Return the name of the block that a parameter belongs to, or ""."""
    match = _BLOCK_INDEX.search(name)
    return "" if match is None else name[: match.end()]


def initial_weights(path: Path, config: ModelConfig, new: Sequence[str] = ()) -> InitialWeights:
    """Return initial parameters of a network with the settings `config` from a file, which may lack some of them.

    `new` has shell-style patterns for the names of parameters that the file lacks or has in another shape, for a
    changed network. With them, parameters of the file that the network does not have are ignored.

    Without patterns, a file may lack the aligned-error head, as the files from which AlphaFold's `_ptm` models were
    trained (Suppl. Sec. 1.9.7), and, for a network of complexes, everything that the model of the file does not have.
    `template.update_factor` and `template.plddt_slope`, which have no parameters, may differ. Raise `InputError` if the
    file is damaged or does not fit.
    """
    if new:
        return _with_new(path, config, new)
    try:
        state = load_weights(path, config)
        return InitialWeights(state=state, taken=sum(tensor.numel() for tensor in state.values()))
    except InputError:
        source = _source(path, config)
        if source is None:
            _require_unchanged(path, config)
            raise
    if differing := _differences(source, config):
        raise InputError.at(path, f"its parameters cannot be taken over: {differing}")
    return _transfer(load_weights(path, source), source, config)


def _require_unchanged(path: Path, config: ModelConfig) -> None:
    """Raise `InputError` with advice if a file is for the network of `config` before the user changed it."""
    form, shapes = read_shapes(path)
    ours = model_shapes(config)
    if form != "safetensors" or not shapes.keys() & ours.keys():
        return
    if shapes != ours:
        advice = "if you changed the network, pass its new parameters with --new-parameters"
        if presets := matching_presets(shapes, form):
            advice += f"; if not, choose a preset that it fits: {', '.join(presets)}"
        raise InputError.at(path, f"does not fit this model: {differences(ours, shapes)}; {advice}")
    if changed := differing_settings(path, read_header(path).config, config):
        advice = f"if you changed the network, name any parameter of the file: --new-parameters {next(iter(ours))}"
        raise InputError.at(path, f"is for another model: {'; '.join(changed)}; {advice}")


def _with_new(path: Path, config: ModelConfig, patterns: Sequence[str]) -> InitialWeights:
    """Return initial parameters from a file; parameters that match `patterns` may be absent or have another shape."""
    shapes = model_shapes(config)
    for pattern in patterns:
        if not fnmatch.filter(shapes, pattern):
            problem = f"--new-parameters '{printable(pattern)}' matches no parameter of the network"
            raise InputError(f"{problem}{did_you_mean(pattern, shapes)}")
    named = {name for pattern in patterns for name in fnmatch.filter(shapes, pattern)}
    state, source = _content(path, config, named)
    if source is not None and (differing := _differences(source, config)):
        raise InputError.at(path, f"its parameters cannot be taken over: {differing}")
    matching = {
        name: state[name].float()
        for name, shape in shapes.items()
        if name in state and tuple(state[name].shape) == shape
    }
    if lacking := [name for name in shapes if name not in matching and name not in named]:
        rest = f" and {len(lacking) - _MAX_LISTED:,} more" if len(lacking) > _MAX_LISTED else ""
        raise InputError.at(
            path,
            f"it lacks {', '.join(lacking[:_MAX_LISTED])}{rest}, or has them in another shape; to start them "
            "with their initial values, pass them with --new-parameters, too",
        )
    return InitialWeights(
        state=matching,
        taken=sum(tensor.numel() for tensor in matching.values()),
        new=tuple(name for name in shapes if name not in state),
        reshaped=tuple(name for name in shapes if name in state and name not in matching),
        unused=tuple(name for name in state if name not in shapes),
    )


def _content(path: Path, config: ModelConfig, new: Collection[str]) -> tuple[dict[str, Tensor], ModelConfig | None]:
    """Return the parameters of a file for `_with_new`, and the settings of their network or None."""
    form, shapes = read_shapes(path)
    if form == "safetensors":
        state, _ = load_checkpoint(path)
        with suppress(ConfigError):  # settings that only a changed network has
            return state, ModelConfig.from_dict(read_header(path).config)
        return state, None
    for name in matching_presets(shapes, form):
        source = PRESETS[name]().model
        return load_weights(path, source), source
    expected = {name: shape for name, shape in model_shapes(config).items() if name not in new}
    return load_weights(path, config, expected), None


def _transfer(state: dict[str, Tensor], source: ModelConfig, config: ModelConfig) -> InitialWeights:
    """Return initial parameters of `config` from all parameters `state` of a network with the settings `source`.

    For a network of complexes, the parameters of a single-chain network are converted.
    """
    shapes = model_shapes(config)
    converted = state
    if source.method == "monomer" and config.method == "multimer":
        converted = multimer_parameters(state, source, config)
    used = {
        name: converted[name] for name in shapes if name in converted and tuple(converted[name].shape) == shapes[name]
    }
    extended = tuple(name for name in EXTENDED if name in used and used[name] is not state.get(name))
    return InitialWeights(
        state=used
        | {name: torch.zeros(shapes[name]) for name in _ZERO_PARAMETERS if name in shapes and name not in used},
        taken=sum(tensor.numel() for tensor in used.values())
        - sum(EXTENDED[name] * len(used[name]) for name in extended),
        converted=tuple(name for name in used if used[name] is not state.get(name) and name not in extended),
        extended=extended,
        new=tuple(name for name in shapes if name not in used),
        unused=tuple(name for name in state if name not in used and not (converted is not state and name in CONVERTED)),
    )


def _source(path: Path, config: ModelConfig) -> ModelConfig | None:
    """Return the settings of the network of a file if its parameters can be transferred, else None."""
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
    """Yield the settings of monomer networks of this size, with and without templates and aligned-error head."""
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
    """Describe the differences in the settings that must be equal; return "" if all are equal."""
    theirs, ours = source.flat(), config.flat()
    return "; ".join(
        f"{name} is {theirs[name]} there and {ours[name]} here"
        for name in _EQUAL_SETTINGS
        if name in theirs and name in ours and theirs[name] != ours[name]
    )


_POINT_ATTENTION_NAME = "structure_module.attention"
_TEMPLATE_EMBEDDER_NAME = "template_embedder"
_TEMPLATE_PAIR = f"{_TEMPLATE_EMBEDDER_NAME}.pair"
_POSITION_WEIGHT, _TORSION_WEIGHT = (
    "input_embedder.relative_position.weight",
    f"{_TEMPLATE_EMBEDDER_NAME}.angles.linear_1.weight",
)
# Linear maps of which a monomer has only some of the inputs, and the number of missing inputs.
EXTENDED = {
    _POSITION_WEIGHT: SEPARATIONS + 1 + CHAIN_DIFFERENCES - (2 * MAX_SEPARATION + 1),
    _TORSION_WEIGHT: ANGLE_CHANNELS - TEMPLATE_TYPES,
}
# Parameters of a monomer whose values go to parameters with other names in the network for complexes.
CONVERTED = tuple(
    f"{name}.{kind}"
    for name in (
        f"{_POINT_ATTENTION_NAME}.key_value",
        f"{_POINT_ATTENTION_NAME}.key_value_points",
        f"{_TEMPLATE_PAIR}.linear",
    )
    for kind in ("weight", "bias")
)


def multimer_parameters(state: dict[str, Tensor], monomer: ModelConfig, multimer: ModelConfig) -> dict[str, Tensor]:
    """Convert a monomer's parameters to the names, layout and units of a network for complexes.

    `monomer` and `multimer` are the settings of the two networks. Weights of inputs that a monomer does not have
    (`EXTENDED`), such as "in another chain", are 0. Other parameters are returned unchanged, also if the network for
    complexes does not have them.
    """
    result = {name: tensor for name, tensor in state.items() if not name.startswith(_POINT_ATTENTION_NAME)}
    for name in ("target", "left", "right"):
        # Without the first channel, which marks chain breaks.
        result[f"input_embedder.{name}.weight"] = state[f"input_embedder.{name}.weight"][:, 1:]
    result[_POSITION_WEIGHT] = pad(state[_POSITION_WEIGHT], (0, EXTENDED[_POSITION_WEIGHT]))
    letters = multimer.heads.masked_msa_letters
    for kind in ("weight", "bias"):
        result[f"heads.masked_msa.linear.{kind}"] = state[f"heads.masked_msa.linear.{kind}"][:letters]
    scale = monomer.structure.position_scale / multimer.structure.position_scale
    result |= _point_attention(state, monomer.structure, scale)
    for kind in ("weight", "bias"):
        rotation, translation = state[f"structure_module.backbone_update.{kind}"].split(3)
        result[f"structure_module.backbone_update.{kind}"] = torch.cat([rotation, scale * translation])
    return result | _templates(state) if monomer.template else result


def _point_attention(state: dict[str, Tensor], config: StructureConfig, scale: float) -> dict[str, Tensor]:
    """Convert the parameters of invariant point attention; lengths in the new unit are `scale` times the old ones."""
    h, d, p = config.heads, config.c_scalar, config.value_points

    def old(name: str) -> Tensor:
        return state[f"{_POINT_ATTENTION_NAME}.{name}"]

    key, value = rearrange(old("key_value.weight"), "(h two d) c -> two (h d) c", two=2, h=h)
    result = {"query.weight": old("query.weight"), "key.weight": key, "value.weight": value}
    for kind in ("weight", "bias"):
        query = rearrange(old(f"query_points.{kind}"), "(x h q) ... -> (h x q) ...", x=3, h=h)
        both = rearrange(old(f"key_value_points.{kind}"), "(x h p) ... -> h x p ...", x=3, h=h)
        keys, values = both.split([config.query_points, p], 2)
        result[f"query_points.{kind}"] = scale * query
        result[f"key_points.{kind}"] = scale * keys.flatten(0, 2)
        result[f"value_points.{kind}"] = scale * values.flatten(0, 2)
        result[f"pair_bias.{kind}"] = old(f"pair_bias.{kind}")
    # The softplus of these is the weight of squared distances.
    result["point_weights"] = _inverse_softplus(torch.nn.functional.softplus(old("point_weights")) / scale**2)
    means, points, pairs = old("out.weight").split([h * d, 4 * h * p, old("pair_bias.weight").shape[1] * h], 1)
    result["out.weight"] = torch.cat([means, points / scale, pairs], 1)
    # Attention weights sum to 1, so the bias of the values becomes a bias of the result. The bias of the keys has no
    # effect.
    value_bias = rearrange(old("key_value.bias"), "(h two d) -> two (h d)", two=2, h=h)[1]
    result["out.bias"] = old("out.bias") + means @ value_bias
    return {f"{_POINT_ATTENTION_NAME}.{name}": tensor for name, tensor in result.items()}


def _templates(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert the parameters of the first maps of the template embedder.

    A monomer was not trained with directions between residues, and only the residue types of its torsion features are
    the same.
    """
    weight = state[f"{_TEMPLATE_PAIR}.linear.weight"]
    maps = ("distances", "has_beta", "column_type", "row_type", "directions", "has_backbone")
    sizes = (TEMPLATE_BINS.count, 1, TEMPLATE_TYPES, TEMPLATE_TYPES, 3, 1)
    result = {
        f"{_TEMPLATE_PAIR}.{name}.weight": part
        for name, part in zip(maps, weight.split(sizes, 1), strict=True)
        if name != "directions"
    }
    result[f"{_TEMPLATE_PAIR}.distances.bias"] = state[f"{_TEMPLATE_PAIR}.linear.bias"]
    result[_TORSION_WEIGHT] = pad(state[_TORSION_WEIGHT][:, :TEMPLATE_TYPES], (0, EXTENDED[_TORSION_WEIGHT]))
    return result


def _inverse_softplus(values: Tensor) -> Tensor:
    """Return the values whose softplus is `values`."""
    return values + torch.log(-torch.expm1(-values))
