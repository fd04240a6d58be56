"""Models that share the frozen parameters of a base model and train low-rank changes of weights, or the heads."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.io.errors import InputError, printable
from helixfold.model.alphafold import IN_FLOAT32, AlphaFold
from helixfold.model.config import ModelConfig
from helixfold.model.presets import Preset
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.weights.adapters import changed_parameters
from helixfold.weights.find import find_parameters
from helixfold.weights.load import load_weights
from helixfold.weights.low_rank import LORA_A, LORA_B, MAGNITUDE, LowRankConfig, effective_weight, row_lengths
from helixfold.weights.tensor_file import digest_of
from helixfold.weights.transfer import initial_weights

HEADS_PREFIX = "heads."  # first part of the names of the heads' parameters


@dataclass(kw_only=True)
class FrozenParameters:
    """Float32 parameters of a base model on one device, which all adapted models share.

    `state` has the parameters by name, `name` is the name of their file, and `sha256` their digest. If some parameters
    are new, `began_with` is a sentence on which ones, and `listing` lists them for `config.json`. Each parameter is
    copied to another dtype at most once.
    """

    config: ModelConfig
    state: Mapping[str, Tensor]
    name: str
    sha256: str
    began_with: str = ""
    listing: Mapping[str, Any] | None = None
    _rounded: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, state: Mapping[str, Tensor], config: ModelConfig, name: str, device: torch.device
    ) -> "FrozenParameters":
        """Return the parameters of a base model on a device, from a state dict in CPU memory.

        `name` is the name of their file. The caller must not change the state dict afterwards.
        """
        return cls(
            config=config,
            state={each: tensor.detach().to(device) for each, tensor in state.items()},
            name=name,
            sha256=digest_of(state),
        )

    def dtype_of(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which a model whose trunk has `dtype` computes with this parameter."""
        is_rounded = dtype != torch.float32 and name.split(".", maxsplit=1)[0] not in IN_FLOAT32
        return dtype if is_rounded else self.state[name].dtype

    def in_dtype(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return a parameter in the dtype in which a model whose trunk has `dtype` computes with it."""
        if self.dtype_of(name, dtype) == self.state[name].dtype:
            return self.state[name]
        if name not in self._rounded:
            self._rounded[name] = self.state[name].to(dtype)
        return self._rounded[name]

    def model(self, changed: Mapping[str, Tensor] = MappingProxyType({})) -> AlphaFold:
        """Return a new model that shares these parameters without copying them, except for the `changed` ones.

        `changed` has the new values of some parameters by name. None of the model's parameters has a gradient.
        """
        with torch.device("meta"):
            model = AlphaFold(self.config)
        model.load_state_dict({**self.state, **changed}, assign=True)
        return model.requires_grad_(False)


class LowRankTrained:
    """Training of low-rank changes (LoRA) of some weights of a model with frozen parameters.

    `apply` computes the effective weights W + scale B A and stores them instead of the model's weights. They are not
    `nn.Parameter`s: autograd propagates their gradients to A and B at the end of the backward pass and frees them. So
    only A and B have gradients, moments and averages.
    """

    def __init__(self, base: FrozenParameters, config: LowRankConfig, *, seed: int) -> None:
        """Initialise A like PyTorch's linear layers, seeded by the seed and the layer's name, and B with zeros."""
        self.model, self.base, self.config = base.model(), base, config
        self.matrices = nn.Module()  # A and B (and the magnitudes of DoRA) under the names of their layers
        shapes = {name: tuple(tensor.shape) for name, tensor in base.state.items()}
        self._maps = config.matching_maps(shapes)
        self._changed = [f"{name}.weight" for name in self._maps]
        for name in self._maps:
            _add(self.matrices, name, _first_values(base.state[f"{name}.weight"], config, seed, name))
        self._dtype = torch.float32

    def optimizer(self, config: OptimizerConfig, dtype: torch.dtype, *, averages: bool) -> FlatOptimizer:
        """Return a new optimizer of A and B, which stay float32; the trunk's frozen parameters are cast to `dtype`."""
        self._dtype = dtype
        _place_frozen(self.model, self.base, [name for name in self.base.state if name not in self._changed], dtype)
        return FlatOptimizer(self.matrices, config, keep_float32=(), averages=averages)

    def apply(self) -> None:
        """Compute the effective weights from the current A and B, with the autograd graph that leads back to them."""
        for name in self._maps:
            matrices = dict(self.matrices.get_submodule(name).named_parameters(recurse=False))
            weight = effective_weight(
                self.base.state[f"{name}.weight"],
                matrices[LORA_A],
                matrices[LORA_B],
                self.config.scale,
                matrices.get(MAGNITUDE),
            )
            # An `nn.Parameter` would end the graph here. PyTorch's `functional_call` also stores plain tensors.
            _place(self.model, f"{name}.weight", weight.to(self.base.dtype_of(f"{name}.weight", self._dtype)))

    def release(self) -> None:
        """Replace the model's effective weights with the frozen ones, which frees their memory."""
        _place_frozen(self.model, self.base, self._changed, torch.float32)

    def state(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the float32 state dict of the model with these values of A and B merged into its weights."""
        return {**self.base.state, **changed_parameters(self.base.state, numbers, self.config)}


class HeadsTrained:
    """Training of the heads of a model; all other parameters are frozen.

    The heads of `model` are copies of the parameters of `base`.
    """

    def __init__(self, base: FrozenParameters) -> None:
        self.model, self.base = base.model(), base
        for name, tensor in base.state.items():
            if name.startswith(HEADS_PREFIX):
                _place(self.model, name, nn.Parameter(tensor.clone()))

    def optimizer(self, config: OptimizerConfig, dtype: torch.dtype, *, averages: bool) -> FlatOptimizer:
        """Return a new optimizer of the heads; the trunk's frozen parameters are cast to `dtype`."""
        _place_frozen(
            self.model, self.base, [name for name in self.base.state if not name.startswith(HEADS_PREFIX)], dtype
        )
        return FlatOptimizer(self.model, config, averages=averages)

    def apply(self) -> None:
        """Do nothing: the optimizer changes the heads in place."""

    def release(self) -> None:
        """Do nothing: `apply` allocates no memory."""

    def state(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the float32 state dict of the model with these values of the heads' parameters."""
        return {**self.base.state, **{name: numbers[name] for name in self.base.state if name.startswith(HEADS_PREFIX)}}


def _first_values(weight: Tensor, config: LowRankConfig, seed: int, name: str) -> dict[str, Tensor]:
    """Return the initial values of the matrices of a linear map: A is random, and B is zeros."""
    outputs, inputs = weight.shape
    # PyTorch's CPU generator uses 32 bits of a seed.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    # Hu et al.'s program draws A like the weights of `nn.Linear`: uniform with a variance of 1 / (3 inputs).
    limit = 1 / math.sqrt(inputs)
    a = torch.empty(config.rank, inputs).uniform_(-limit, limit, generator=generator)
    values = {LORA_A: a.to(weight), LORA_B: weight.new_zeros(outputs, config.rank)}
    if config.decomposed:
        values[MAGNITUDE] = row_lengths(weight)
    return values


def _place(model: nn.Module, name: str, value: Tensor) -> None:
    """Set the parameter of a model with this name to a tensor."""
    path, _, parameter = name.rpartition(".")
    model.get_submodule(path)._parameters[parameter] = value  # type: ignore[assignment]


def _place_frozen(model: nn.Module, base: FrozenParameters, names: Sequence[str], dtype: torch.dtype) -> None:
    """Set the parameters of a model with these names to the frozen ones, cast for a trunk with `dtype`."""
    for name in names:
        _place(model, name, nn.Parameter(base.in_dtype(name, dtype), requires_grad=False))


def _add(root: nn.Module, path: str, values: Mapping[str, Tensor]) -> None:
    """Add parameters to the module at a path below `root`, creating modules that are missing."""
    module = root
    for part in path.split("."):
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value))


def adapter_names(kind: str, names: Sequence[str]) -> list[str]:
    """Return the names of the averaged parameters that an adapter file of this kind ("lora" or "heads") holds."""
    return [name for name in names if kind == "lora" or name.startswith(HEADS_PREFIX)]


def base_file(model: str | None, weights: Path | None) -> tuple[Preset, Path]:
    """Return the preset and the parameter file that `helixfold predict` would use for these options.

    Raise `InputError` if they select no parameters, or several models.
    """
    models = find_parameters([] if model is None else [model], weights)
    if len(models) > 1:
        names = ", ".join(preset.name for preset, _ in models)
        raise InputError(f"{weights} has several models ({names}); choose one with --model")
    ((preset, path),) = models
    if path is None:
        raise InputError(f"the model '{preset.name}' has random parameters; pass trained ones with --weights")
    return preset, path


def load_base(
    preset: Preset, path: Path, device: torch.device, *, new: Sequence[str] = (), adapter: str = "full", seed: int = 0
) -> FrozenParameters:
    """Read the parameters of the base model of a fine-tuning from the file `path`.

    `new` are patterns of parameters that start from the network's own initial values, drawn with the seed; see
    `initial_weights`. Raise `InputError` if the file is damaged or of another model, or if the `adapter` does not train
    the new parameters.
    """
    if not new:
        return FrozenParameters.of(load_weights(path, preset.model), preset.model, path.name, device)
    initial = initial_weights(path, preset.model, new)
    frozen = [name for name in (*initial.new, *initial.reshaped) if adapter not in ("full", name.split(".")[0])]
    if frozen:
        raise InputError(f"--adapter {adapter} does not train the new parameter {frozen[0]}; pass --adapter full")
    torch.manual_seed(seed)
    state = {**AlphaFold(preset.model).state_dict(), **initial.state}
    base = FrozenParameters.of(state, preset.model, path.name, device)
    base.began_with = initial.description(printable(path.name))
    base.listing = {"parameters": initial.taken, **initial.listing()}
    return base
