"""Other programs to measure next to ours, in this process and with random parameters.

`PEERS` has the programs by the value of `--peer`, `PUBLISHED` the models that all of them have. `BLOCKS` has functions
that build an Evoformer block of a model for MSA stream, pair stream and their masks. The block runs forward, and if the
streams require gradients, also backward. `NETWORKS` has functions that build a network of a dtype on a device, which
takes a batch and runs one recycling iteration.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.io.errors import InputError
from helixfold.apps.verify.runs import deepmind_features
from helixfold.benchmark.measurement import Action, Cost
from helixfold.model.batch import Batch
from helixfold.model.presets import PRESETS

PUBLISHED = tuple(name for name in PRESETS if name.startswith("model_") and "multimer" not in name)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A program: its name in tables, its module and others that replace it if it cannot be imported, and its source.

    `source` is a phrase on where to get it and which version was tried.
    """

    name: str
    modules: tuple[str, ...]
    source: str


PEERS = {
    "jax": Peer(
        name="DeepMind's JAX program",
        modules=("alphafold.model.modules", "colabdesign.af.alphafold.model.modules"),
        source="pip install 'helixfold[parity]' installs alphafold-colabfold 2.3.20 with JAX 0.10.2, which was tried",
    ),
    "openfold": Peer(
        name="OpenFold",
        modules=("openfold.model.model",),
        source="get it from https://github.com/aqlaboratory/openfold; 2.2.0 (commit ce0029e) was tried",
    ),
    "open-omics": Peer(
        name="Open-Omics",
        modules=("alphafold_pytorch_jit.backbones",),
        source="get it from https://github.com/IntelLabs/open-omics-alphafold; commit b984645 was tried",
    ),
}


def require_peers(names: Iterable[str], preset: str, threads: int | None) -> None:
    """Import programs; raise `InputError` if one cannot be imported or does not have the preset.

    JAX gets `threads` threads, by default as many as PyTorch.
    """
    for name in names:
        if preset not in PUBLISHED:
            raise InputError(f"--peer {name} needs one of the models {', '.join(PUBLISHED)}; got --preset {preset}")
        # JAX starts a thread for each processor that is available.
        with _processors(threads or torch.get_num_threads()):
            _module(name)
            if name == "jax":
                import_module("jax").devices()


def _module(name: str) -> ModuleType:
    reasons = []
    for module in PEERS[name].modules:
        try:
            return import_module(module)
        except ImportError as error:
            reasons.append(f"{module} cannot be imported ({error})")
    raise InputError(f"--peer {name}: {' and '.join(reasons)}; {PEERS[name].source}")


@contextmanager
def _processors(count: int) -> Iterator[None]:
    """Make only `count` processors available to this thread and the threads that it starts inside, on Linux."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    available = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(available)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, available)


def built_once(build: Callable[[], Callable[..., object]]) -> Callable[..., object]:
    """Return a function that builds a function at its first call, and calls this at every call."""
    built = cache(build)

    def call(*arguments: object) -> object:
        return built()(*arguments)

    return call


def compared(costs: Mapping[str, Cost], peers: Iterable[str]) -> list[str]:
    """Return a sentence for each measured program of these names: how many times as fast our fastest way is."""
    seconds = {by: cost.seconds for by, cost in costs.items() if cost.failure is None}
    ours = min((by for by in seconds if by.startswith("ours")), key=lambda by: seconds[by], default=None)
    if ours is None:
        return []
    return [f"{ours}: {seconds[by] / seconds[ours]:.2f} times as fast as {by}" for by in peers if by in seconds]


def module_pass(module: nn.Module, forward: Callable[[], Any], streams: Sequence[Tensor]) -> Action:
    """Return a function that calls `forward`, and also runs backward if the streams require gradients.

    `forward` returns the new streams of a block, and the function returns these, or the gradients of the MSA and pair
    stream and of all parameters of `module`.
    """
    gradients = streams[0].requires_grad
    inputs = [*streams[:2], *module.parameters()]

    def run() -> object:
        with torch.set_grad_enabled(gradients):
            outputs = forward()
            if not gradients:
                return outputs
            return torch.autograd.grad(outputs, inputs, [torch.ones_like(each) for each in outputs])

    return run


def _random(module: nn.Module, stream: Tensor) -> nn.Module:
    """Return a module in evaluation mode with small random parameters of the stream's dtype, on its device."""
    module = module.eval().to(stream).requires_grad_(stream.requires_grad)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02)
    return module


def _openfold_block(preset: str, streams: Sequence[Tensor]) -> Action:
    """Return a block with chunks, as OpenFold predicts, or without if gradients are needed, as it trains."""
    config = import_module("openfold.config").model_config(preset, train=streams[0].requires_grad)
    settings, kind = config.model.evoformer_stack, import_module("openfold.model.evoformer").EvoformerBlock
    block = _random(kind(**{name: settings[name] for name in signature(kind).parameters}), streams[0])
    inputs = [stream.to(streams[0].dtype) for stream in streams]
    return module_pass(block, partial(block, *inputs, chunk_size=config.globals.chunk_size), streams)


def _openfold_network(preset: str, dtype: torch.dtype, device: torch.device) -> Callable[[Batch], object]:
    """Return a network that computes in chunks of a few rows, as the block; on a CPU, tuning would choose all rows."""
    config = import_module("openfold.config").model_config(preset)
    # Its attention kernels need a GPU. They are not called with this option and with gradients enabled (below), which
    # no tensor requires.
    config.globals.use_lma = device.type == "cpu"
    model = config.model
    for stack in (model.evoformer_stack, model.extra_msa.extra_msa_stack, model.template.template_pair_stack):
        stack.tune_chunk_size = False
    network = import_module("openfold.model.model").AlphaFold(config)
    network = _random(network, torch.empty(0, dtype=dtype, device=device))
    with_angles = import_module("openfold.data.data_transforms").atom37_to_torsion_angles("template_")

    @torch.set_grad_enabled(device.type == "cpu")
    def run(batch: Batch) -> object:
        arrays = deepmind_features(batch)
        arrays["template_all_atom_mask"] = arrays["template_all_atom_masks"]
        wide = {name: value.astype(np.int64) if value.dtype == np.int32 else value for name, value in arrays.items()}
        features = {name: torch.from_numpy(value)[0].to(device) for name, value in wide.items()}
        if batch.template_mask.shape[1]:
            features = with_angles(features)
        # The last dimension is of recycling iterations.
        return network({name: value[..., None] for name, value in features.items()})

    return run


def _open_omics_block(preset: str, streams: Sequence[Tensor]) -> Action:
    """Return a block with the kernels of Intel's tpp-pytorch-extension, if it is installed."""
    if streams[0].requires_grad:
        raise NotImplementedError("it has no backward pass")
    backbones = _module("open-omics")
    try:
        kernels = import_module("tpp_pytorch_extension.alphafold")
    except ImportError as error:
        print(f"Open-Omics is measured without its kernels: {error}")
    else:
        backbones.GatingAttention.forward = kernels.Alpha_Attention.GatingAttentionOpti_forward
        kernel = kernels.Alpha_TriangleMultiplication.TriangleMultiplicationOpti_forward
        backbones.TriangleMultiplication.forward = kernel
    config = import_module("alphafold.model.config").model_config(preset).model
    trunk, channels = config.embeddings_and_evoformer, [stream.shape[-1] for stream in streams[:2]]
    block = backbones.NoExtraEvoformerIteration(
        trunk.evoformer.to_dict(), config.global_config.to_dict(), False, channels[0], *channels
    )
    block = _random(block, streams[0])
    return module_pass(block, partial(block, *(stream[0].to(streams[0]) for stream in streams)), streams)


def _jax_block(preset: str, streams: Sequence[Tensor]) -> Action:
    """Return a compiled block that computes four rows at a time, as published."""
    modules, jax, haiku = _module("jax"), import_module("jax"), import_module("haiku")
    config = import_module(modules.__name__.replace(".modules", ".config")).model_config(preset).model
    evoformer = config.embeddings_and_evoformer.evoformer
    for direction in ("outgoing", "incoming"):
        # Published parameters of these models have separate projections.
        evoformer[f"triangle_multiplication_{direction}"].fuse_projection_weights = False
    device = jax.devices("cpu" if streams[0].device.type == "cpu" else "gpu")[0]
    dtype = jax.numpy.dtype(str(streams[0].dtype).removeprefix("torch."))

    def array(values: np.ndarray) -> Any:
        return jax.device_put(jax.numpy.asarray(values, dtype), device)

    def forward(msa: Any, pair: Any, msa_mask: Any, pair_mask: Any) -> tuple[Any, Any]:
        block = modules.EvoformerIteration(evoformer, config.global_config, is_extra_msa=False)
        outputs = block({"msa": msa, "pair": pair}, {"msa": msa_mask, "pair": pair_mask}, False)
        return outputs["msa"], outputs["pair"]

    network, key, random = haiku.transform(forward), jax.random.PRNGKey(0), np.random.default_rng(0)
    inputs = [array(stream[0].detach().float().cpu().numpy()) for stream in streams]
    shapes = jax.eval_shape(network.init, key, *inputs)
    parameters = jax.tree_util.tree_map(lambda each: array(0.02 * random.standard_normal(each.shape)), shapes)

    def total(*arguments: Any) -> Any:
        return sum(each.sum() for each in network.apply(*arguments))

    function = jax.grad(total, argnums=(0, 2, 3)) if streams[0].requires_grad else network.apply
    compiled = jax.jit(function).lower(parameters, key, *inputs).compile()
    return lambda: jax.block_until_ready(compiled(parameters, key, *inputs))


BLOCKS: dict[str, Callable[[str, Sequence[Tensor]], Action]] = {
    "jax": _jax_block,
    "openfold": _openfold_block,
    "open-omics": _open_omics_block,
}
NETWORKS: dict[str, Callable[[str, torch.dtype, torch.device], Callable[[Batch], object]]] = {
    "openfold": _openfold_network
}
