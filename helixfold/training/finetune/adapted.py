"""Models that share frozen parameters and differ in what is trained: low-rank changes of weights, or the heads.

The frozen parameters are those of the model that fine-tuning begins with.
"""

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

HEADS = "heads."


@dataclass(kw_only=True)
class FrozenParameters:
    """Parameters of one model on one device that any number of adapted models share, in float32.

    `name` is that of their file, and `began_with` says in a sentence what of it they are, with the listing that
    `config.json` has if some are new. A copy of a parameter in another dtype is made once.
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
        """Move a state dict in CPU memory to a device; from now on nobody may change it."""
        return cls(
            config=config,
            state={each: tensor.detach().to(device) for each, tensor in state.items()},
            name=name,
            sha256=digest_of(state),
        )

    def dtype_of(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which a model computes with a parameter whose trunk has `dtype`."""
        is_rounded = dtype != torch.float32 and name.split(".", maxsplit=1)[0] not in IN_FLOAT32
        return dtype if is_rounded else self.state[name].dtype

    def in_dtype(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return a parameter in the dtype in which a model computes with it whose trunk has `dtype`."""
        if self.dtype_of(name, dtype) == self.state[name].dtype:
            return self.state[name]
        if name not in self._rounded:
            self._rounded[name] = self.state[name].to(dtype)
        return self._rounded[name]

    def model(self, changed: Mapping[str, Tensor] = MappingProxyType({})) -> AlphaFold:
        """Return a model of its own whose parameters are these but for changed ones, which takes no memory for them."""
        with torch.device("meta"):
            model = AlphaFold(self.config)
        model.load_state_dict({**self.state, **changed}, assign=True)
        return model.requires_grad_(False)


class LowRankTrained:
    """Training of low-rank changes of some weights of a model with frozen parameters.

    `apply` makes the weights W + scale B A outside of the model and puts them where its operators look for theirs. They
    are no parameters: autograd carries their gradients on to A and B at the end of the backward pass and frees them. So
    only A and B have gradients, moments and averages.
    """

    def __init__(self, base: FrozenParameters, config: LowRankConfig, *, seed: int) -> None:
        """Begin with A drawn as PyTorch draws linear maps, from the seed and the name of each map, and B zero."""
        self.model, self.base, self.config = base.model(), base, config
        self.numbers = nn.Module()
        shapes = {name: tuple(tensor.shape) for name, tensor in base.state.items()}
        self._maps = config.matching_maps(shapes)
        self._changed = [f"{name}.weight" for name in self._maps]
        for name in self._maps:
            _add(self.numbers, name, _first_values(base.state[f"{name}.weight"], config, seed, name))
        self._dtype = torch.float32

    def optimizer(self, config: OptimizerConfig, dtype: torch.dtype, *, averages: bool) -> FlatOptimizer:
        """Return a new optimizer of A and B, which stay float32; frozen ones of the trunk are rounded to `dtype`."""
        self._dtype = dtype
        _place_frozen(self.model, self.base, [name for name in self.base.state if name not in self._changed], dtype)
        return FlatOptimizer(self.numbers, config, keep_float32=(), averages=averages)

    def apply(self) -> None:
        """Make the effective weights from the present A and B, with the autograd graph that leads back to them."""
        for name in self._maps:
            numbers = dict(self.numbers.get_submodule(name).named_parameters(recurse=False))
            weight = effective_weight(
                self.base.state[f"{name}.weight"],
                numbers[LORA_A],
                numbers[LORA_B],
                self.config.scale,
                numbers.get(MAGNITUDE),
            )
            # Not an `nn.Parameter`, at which the graph would end. PyTorch's `functional_call` does the same.
            _place(self.model, f"{name}.weight", weight.to(self.base.dtype_of(f"{name}.weight", self._dtype)))

    def release(self) -> None:
        """Give the model the frozen weights again, in place of the effective ones."""
        _place_frozen(self.model, self.base, self._changed, torch.float32)

    def state(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state dict of the merged model, in float32."""
        return {**self.base.state, **changed_parameters(self.base.state, numbers, self.config)}


class HeadsTrained:
    """Training of the parameters of the heads of a model whose other parameters are frozen."""

    def __init__(self, base: FrozenParameters) -> None:
        self.model, self.base = base.model(), base
        for name, tensor in base.state.items():
            if name.startswith(HEADS):
                _place(self.model, name, nn.Parameter(tensor.clone()))

    def optimizer(self, config: OptimizerConfig, dtype: torch.dtype, *, averages: bool) -> FlatOptimizer:
        """Return a new optimizer of the heads; the trunk's frozen parameters are rounded to `dtype`."""
        _place_frozen(self.model, self.base, [name for name in self.base.state if not name.startswith(HEADS)], dtype)
        return FlatOptimizer(self.model, config, averages=averages)

    def apply(self) -> None:
        """Do nothing: the optimizer changes the heads in place."""

    def release(self) -> None:
        """Do nothing: there is nothing to free."""

    def state(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state dict with other heads, in float32."""
        return {**self.base.state, **{name: numbers[name] for name in self.base.state if name.startswith(HEADS)}}


def _first_values(weight: Tensor, config: LowRankConfig, seed: int, name: str) -> dict[str, Tensor]:
    outputs, inputs = weight.shape
    # PyTorch's generator on a CPU takes 32 bits of a seed.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    # As Hu et al.'s program: the distribution of `nn.Linear`, uniform with a variance of 1 / (3 inputs).
    limit = 1 / math.sqrt(inputs)
    a = torch.empty(config.rank, inputs).uniform_(-limit, limit, generator=generator)
    values = {LORA_A: a.to(weight), LORA_B: weight.new_zeros(outputs, config.rank)}
    if config.decomposed:
        values[MAGNITUDE] = row_lengths(weight)
    return values


def _place(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, own = name.rpartition(".")
    model.get_submodule(path)._parameters[own] = value  # type: ignore[assignment]


def _place_frozen(model: nn.Module, base: FrozenParameters, names: Sequence[str], dtype: torch.dtype) -> None:
    for name in names:
        _place(model, name, nn.Parameter(base.in_dtype(name, dtype), requires_grad=False))


def _add(root: nn.Module, path: str, values: Mapping[str, Tensor]) -> None:
    """Add parameters to the module at a path below `root`, which is made where it is missing."""
    module = root
    for part in path.split("."):
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value))


def adapter_names(kind: str, names: Sequence[str]) -> list[str]:
    """Return which of an optimizer's averages belong into the file of an adapter."""
    return [name for name in names if kind == "lora" or name.startswith(HEADS)]


def base_file(model: str | None, weights: Path | None) -> tuple[Preset, Path]:
    """Return the preset and the parameter file that `helixfold predict` would take for these options.

    Raise `InputError` if they name no parameters, or several models.
    """
    found = find_parameters([] if model is None else [model], weights)
    if len(found) > 1:
        names = ", ".join(preset.name for preset, _ in found)
        raise InputError(f"{weights} has several models ({names}); choose one with --model")
    ((preset, path),) = found
    if path is None:
        raise InputError(f"the model '{preset.name}' has random parameters; name trained ones with --weights")
    return preset, path


def load_base(
    preset: Preset, path: Path, device: torch.device, *, new: Sequence[str] = (), adapter: str = "full", seed: int = 0
) -> FrozenParameters:
    """Read the parameters of a model. Raise `InputError` if the file is damaged or of another model.

    `new` are patterns of parameters that begin with the network's own values, as drawn with the seed; see
    `initial_weights`. Raise `InputError` too if the `adapter` does not train these.
    """
    if not new:
        return FrozenParameters.of(load_weights(path, preset.model), preset.model, path.name, device)
    initial = initial_weights(path, preset.model, new)
    if left := [name for name in (*initial.new, *initial.reshaped) if adapter not in ("full", name.split(".")[0])]:
        raise InputError(f"--adapter {adapter} does not train the new parameter {left[0]}; pass --adapter full")
    torch.manual_seed(seed)
    state = {**AlphaFold(preset.model).state_dict(), **initial.state}
    base = FrozenParameters.of(state, preset.model, path.name, device)
    base.began_with = initial.description(printable(path.name))
    base.listing = {"parameters": initial.taken, **initial.listing()}
    return base
