"""Run parts of the network on meta tensors, and log what they would launch on a GPU and save for gradients.

`UPDATES` has the updates of an Evoformer block, `BLOCK` the name of the block, and `PARTS` the names of other parts
whose kernels are compiled. `NAMES` has the names of all three. `ARCHITECTURES` has a GPU for each architecture of
kernels.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from helixfold.benchmark.block import evoformer, random_streams
from helixfold.benchmark.op_cases import Shape
from helixfold.benchmark.options import PassOptions
from helixfold.execution.counter import Counter
from helixfold.execution.nested import tensors, with_tensors_changed
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.whole import Whole
from helixfold.losses.config import LossConfig, finetuning, initial_training
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import IN_FLOAT32, AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.config import StackConfig
from helixfold.model.evoformer import EvoformerBlock, EvoformerStack, outer_mask
from helixfold.model.outputs import Outputs
from helixfold.model.presets import preset
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties, simulated_device
from helixfold.ops.dispatch import recorded
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer, add_together

if TYPE_CHECKING:
    from helixfold.ops.triton.compiled import CompiledKernel

_TEMPLATE_COUNT = 4
# Updates of a block in the paper's order: name, stream, and the stream that the context is computed from.
UPDATES = (
    ("row_attention", "msa", "pair"),
    ("column_attention", "msa", "msa"),
    ("msa_transition", "msa", "msa"),
    ("outer_product_mean", "pair", "msa"),
    *((name, "pair", "pair") for name in ("triangle_outgoing", "triangle_incoming")),
    *((name, "pair", "pair") for name in ("triangle_starting", "triangle_ending", "pair_transition")),
)
BLOCK = "Evoformer block"
# Other parts whose kernels differ from the block's.
PARTS = ("extra-MSA block", "template embedding", "structure module")
# A GPU for each architecture that kernels are compiled for.
ARCHITECTURES: Mapping[str, DeviceProperties] = {
    "sm_75": DEVICE_MODELS["t4"],
    "sm_80": DEVICE_MODELS["a100-80"],
    "sm_86": DEVICE_MODELS["rtx3090"],
    "sm_89": DEVICE_MODELS["rtx4090"],
    "sm_90": DEVICE_MODELS["h200"],
    "sm_100": replace(
        DEVICE_MODELS["h200"], name="NVIDIA B200", capability=(10, 0), memory=178 * 2**30, multiprocessors=148
    ),
    "sm_120": replace(
        DEVICE_MODELS["rtx4090"],
        name="NVIDIA GeForce RTX 5090",
        capability=(12, 0),
        memory=31 * 2**30,
        multiprocessors=170,
    ),
}
# Names of all parts that `helixfold benchmark kernels` compiles.
NAMES = (*(name.replace("_", " ") for name, _, _ in UPDATES), BLOCK, *PARTS)
# Functions that create a tensor from values of the host, which do not appear as operators.
TENSOR_MAKERS = {"tensor", "as_tensor", "new_tensor", "asarray"}
# Operators that read or create single values, and operators whose result's size depends on values.
_WAITING_OPERATORS = {
    *("_local_scalar_dense", "is_nonzero", "equal", "lift_fresh"),
    *("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"),
}
_INDEXING_OPERATORS = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_COPY_OPERATORS = {"_to_copy", "copy_", "copy"}


def wait_of_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return why an operator call makes the host wait for the GPU, as the end of a sentence, or None if it does not.

    `name` is the operator's name without its overload. Copies between devices are not considered (`wait_of_copy`).
    """
    if name in _WAITING_OPERATORS or (name == "repeat_interleave" and "output_size" not in kwargs):
        return "is called"
    if name in _INDEXING_OPERATORS and any(each.dtype == torch.bool for each in tensors(args[1])):
        return "is called with a boolean index"
    return None


def wait_of_copy(name: str, args: Sequence[Any], result: Any) -> str | None:
    """Return why an operator call waits because it copies between devices, as the end of a sentence, or None.

    `name` is the operator's name without its overload. Operators that are not copies give None.
    """
    if name in _COPY_OPERATORS and isinstance(result, Tensor):
        devices = {each.device.type for each in (*tensors(list(args)), result)}
        return "copies from one device to another" if len(devices) > 1 else None
    return None


def pretended(name: str, args: Sequence[Any]) -> Any:
    """Return a plausible result of an operator that reads values, for meta tensors, which have no values.

    Every condition is assumed to be true. Raise `NotImplementedError` for other operators.
    """
    if name not in _PRETENDED_RESULTS:
        raise NotImplementedError(f"{name} is not supported on the meta device, because its result is unknown")
    return _PRETENDED_RESULTS[name](*args)


def _value(x: Tensor) -> bool | int | float:
    return True if x.dtype == torch.bool else 1.0 if x.is_floating_point() else 1


def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    present = [each for each in indices if each is not None]
    dimensions = sum(each.ndim if each.dtype == torch.bool else 1 for each in present)
    return x.new_empty((present[0].numel(), *x.shape[dimensions:]))


_PRETENDED_RESULTS: Mapping[str, Callable[..., Any]] = {
    "_local_scalar_dense": _value,
    **dict.fromkeys(("is_nonzero", "equal"), lambda *_: True),
    "_to_copy": lambda x: torch.ones(x.shape, dtype=x.dtype),
    "nonzero": lambda x: x.new_empty((x.numel(), x.ndim), dtype=torch.long),
    "masked_select": lambda x, _: x.new_empty(x.numel()),
    **dict.fromkeys(("index", "_unsafe_index"), _indexed),
    **dict.fromkeys(("index_put_", "_index_put_impl_"), lambda x, *_: x),
    "index_put": lambda x, *_: torch.empty_like(x),
}


class SavedMemory:
    """Context that measures the memory of all tensors that autograd saves for the backward pass in it.

    Parameters of `module` do not count.
    """

    def __init__(self, module: nn.Module | None) -> None:
        self._parameters = set() if module is None else {_storage(each) for each in module.parameters()}
        self._storages: dict[int, Any] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor)

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    @property
    def bytes(self) -> int:
        """The number of bytes that were saved; memory that several tensors share counts once."""
        return sum(storage.nbytes() for storage in self._storages.values())

    def _save(self, tensor: Tensor) -> Tensor:
        if _storage(tensor) not in self._parameters:
            self._storages[_storage(tensor)] = tensor.untyped_storage()
        return tensor


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


META = torch.device("meta")
# Operators about dtypes, which launch nothing.
_OPERATORS_WITHOUT_LAUNCH = {"promote_types"}


@dataclass(frozen=True, kw_only=True)
class OperatorCall:
    """A launch of an operator or kernel: its name, and the number of bytes of its input and output tensors (`moved`).

    `cast` is set if the operator only converts a parameter or another tensor to a different dtype. `waits` is true if
    the host waits for the GPU.
    """

    name: str
    is_kernel: bool = False
    moved: int = 0
    cast: Literal["parameter", "other"] | None = None
    waits: bool = False


class OperatorLog(Counter):
    """Counter that lists every call on meta tensors that computes, copies or waits.

    `calls` has them in order. Casts of the parameters of `module` are distinguished from other casts. Tensors on the
    CPU belong to the host, so only copies between them and meta tensors are listed. If an operator that waits has no
    result on the meta device, a plausible result is returned.
    """

    def __init__(self, module: nn.Module | None = None) -> None:
        super().__init__()
        self.calls: list[OperatorCall] = []
        self._parameters = set() if module is None else {_storage(each) for each in module.parameters()}
        self._functions = _Functions(self)

    def __enter__(self) -> Self:
        self._functions.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._functions.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = func._overloadpacket.__name__, kwargs or {}
        on_meta = any(each.is_meta for each in tensors(list(args)))
        to_host = name == "_to_copy" and on_meta and kwargs.get("device", META).type != "meta"
        if on_meta and (to_host or wait_of_call(name, args, kwargs) is not None):
            self.calls.append(OperatorCall(name=name, waits=True))
            return pretended(name, args)
        launches, moved = self.launches, self.moved
        result = super().__torch_dispatch__(func, types, args, kwargs)
        on_meta = on_meta or any(each.is_meta for each in tensors(result))
        if on_meta and self.launches > launches and name not in _OPERATORS_WITHOUT_LAUNCH:
            is_kernel = name == "launch"
            self.calls.append(
                OperatorCall(
                    name=args[0].lstrip("_") if is_kernel else name,
                    is_kernel=is_kernel,
                    moved=self.moved - moved,
                    cast=self._cast(name, args, result),
                    waits=wait_of_copy(name, args, result) is not None,
                )
            )
        return result

    def _cast(self, name: str, args: tuple[Any, ...], result: Any) -> Literal["parameter", "other"] | None:
        if name != "_to_copy" or result.dtype == args[0].dtype:
            return None
        return "parameter" if _storage(args[0]) in self._parameters else "other"


class _Functions(TorchFunctionMode):
    """Mode that logs functions that copy values from the host, which do not appear as operators on the meta device."""

    def __init__(self, log: OperatorLog) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        name = getattr(func, "__name__", "")
        if name in TENSOR_MAKERS and result.is_meta:
            self._log.calls.append(OperatorCall(name=name, waits=True))
        return result


def shape_of(options: PassOptions, dtype: torch.dtype) -> Shape:
    """Return preset and input sizes of these options as a `Shape` with this dtype of the activations."""
    sizes = {"residues": options.residues, "rows": options.rows, "extra_rows": options.extra_rows}
    return Shape(preset=options.preset, dtype=dtype, **sizes)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the network: a function to run, and the tensors whose gradients are computed (none in a prediction).

    `module` has the parameters, if any. If `accumulates`, gradients are added to the parameters' gradients.
    `floor` is the number of bytes that any implementation of the forward and of the backward pass must move, which is
    each input and output once. Inputs are the streams, their masks and the parameters, and for the backward pass also
    the gradient of the output. Outputs are the new stream, or the gradients of streams and parameters. The floor of the
    Evoformer block is the sum over its updates.
    """

    name: str
    run: Callable[[], Any]
    module: nn.Module | None = None
    leaves: list[Tensor] = field(default_factory=list)
    accumulates: bool = False
    floor: tuple[int, int] = (0, 0)


def parts(sizes: Shape) -> Iterator[Part]:
    """Yield all parts that `helixfold benchmark launches` counts, in its order, on meta tensors.

    They are blocks in training and in prediction, other modules, losses, whole passes, and the optimizer's update.
    """
    model = preset(sizes.preset).model
    evoformer = partial(_block, sizes, model.evoformer, sizes.rows)
    low = sizes.dtype
    yield evoformer(low, name="Evoformer block")
    yield evoformer(torch.float32, name="Evoformer block, float32 parameters")
    yield evoformer(low, name="Evoformer block, prediction", learns=False)
    yield evoformer(torch.float32, name="Evoformer block, prediction, float32 parameters", learns=False)
    yield _block(sizes, model.extra_msa, sizes.extra_rows, low, name="extra-MSA block", global_columns=True)
    with META:
        network = AlphaFold(model).train()
    for name, child in network.named_children():
        child.to(torch.float32 if name in IN_FLOAT32 else low)
    batch = random_batch(sizes.residues, sizes.rows, sizes.extra_rows, _TEMPLATE_COUNT, META, method=model.method)
    yield from _network_parts(network, batch, sizes)
    with META:
        network = AlphaFold(model)
    yield _update(network, low)


def _network_parts(network: AlphaFold, batch: Batch, sizes: Shape) -> Iterator[Part]:
    run, residues = Whole(), sizes.residues
    pair = _leaf(1, residues, residues, network.config.c_z, dtype=sizes.dtype)
    single = _leaf(1, residues, network.config.c_s, dtype=sizes.dtype)
    templates = network.template_embedder
    if templates is not None:
        yield Part(
            name="template embedding",
            run=lambda: templates(run, batch, pair, outer_mask(batch.seq_mask)),
            module=templates,
            leaves=[pair, *templates.parameters()],
        )
    structure = network.structure_module
    yield Part(
        name="structure module",
        run=lambda: structure(run, single, pair, batch.aatype, batch.seq_mask),
        module=structure,
        leaves=[single, pair, *structure.parameters()],
    )
    labels, method = random_labels(batch), network.config.method
    with torch.no_grad(), OperatorLog():
        outputs = network(run, [batch], None, sizes.dtype)
    outputs = with_tensors_changed(lambda each: each.detach().requires_grad_(each.is_floating_point()), outputs)

    def losses(precomputed: Outputs | None, config: LossConfig) -> Tensor:
        results = network(run, [batch], None, sizes.dtype) if precomputed is None else precomputed
        return total_loss(results, batch, labels, config).total.sum()

    for stage, config in (("initial training", initial_training(method)), ("fine-tuning", finetuning(method))):
        yield Part(name=f"losses of {stage}", run=partial(losses, outputs, config), leaves=list(tensors(outputs)))
    yield Part(name="prediction pass", run=partial(network.fold, run, [batch], None, sizes.dtype), module=network)
    yield Part(
        name="training step, without recycling and update",
        run=partial(losses, None, initial_training(method)),
        module=network,
        leaves=list(network.parameters()),
        accumulates=True,
    )


def _update(network: AlphaFold, dtype: torch.dtype) -> Part:
    """Return the optimizer's update after a step of one micro-batch, as a part."""
    optimizer = FlatOptimizer(network, OptimizerConfig(), working_dtype=dtype, keep_float32=IN_FLOAT32)

    def run() -> None:
        optimizer.collect(last=True)
        optimizer.step(1e-3, micro_batches=1)

    return Part(name="update of the parameters", run=run, module=network)


def _block(
    sizes: Shape,
    config: StackConfig,
    rows: int,
    parameters: torch.dtype,
    *,
    name: str,
    learns: bool = True,
    global_columns: bool = False,
) -> Part:
    """Return a block as a part; `parameters` is the dtype of its parameters."""
    residues, c_z = sizes.residues, preset(sizes.preset).model.c_z
    with META:
        stack = EvoformerStack(replace(config, blocks=1), c_z, global_columns=global_columns).to(parameters)
        masks = torch.empty(1, rows, residues), torch.empty(1, residues, residues)
    stack.train(learns).requires_grad_(learns)
    streams = [
        _leaf(1, count, residues, channels, dtype=sizes.dtype).requires_grad_(learns)
        for count, channels in ((rows, config.c_m), (residues, c_z))
    ]
    leaves = [*streams, *stack.parameters()] if learns else []
    return Part(name=name, run=lambda: stack(Whole(), *streams, *masks), module=stack, leaves=leaves)


def _leaf(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META, requires_grad=True)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The launches of a part's forward or backward pass.

    `name` is the part's name. `calls` has all launches. `kernels` has the compiled kernels of our launches in the same
    order, if they were compiled. `kept` is the number of bytes that the forward pass saves for the backward pass,
    without parameters, and `floor` the minimum number of bytes to move (see `Part`).
    """

    name: str
    backward: bool
    kernels: list["CompiledKernel"]
    calls: list[OperatorCall]
    floor: int
    kept: int


# Function that returns a context; entering it gives the list of kernels that are launched in it.
Compiled = Callable[[], AbstractContextManager[list["CompiledKernel"]]]


def both_passes(
    part: Part, properties: DeviceProperties, compiled: Compiled = lambda: nullcontext([])
) -> Iterator[Pass]:
    """Yield a part's forward pass, and its backward pass if it has one, on a simulated GPU.

    The part is run twice, and only the second run counts, because the first one creates tables of constants.
    """
    with simulated_device(properties), torch.set_grad_enabled(bool(part.leaves)):
        with OperatorLog():
            part.run()
        with compiled() as kernels, SavedMemory(part.module) as saved, OperatorLog(part.module) as log:
            outputs = [each for each in tensors(part.run()) if each.requires_grad]
        new_pass = partial(Pass, name=part.name, kept=saved.bytes)
        yield new_pass(backward=False, kernels=kernels, calls=log.calls, floor=part.floor[0])
        if not part.leaves:
            return
        gradients = [torch.empty_like(each) for each in outputs]
        if part.accumulates:
            for leaf in part.leaves:
                leaf.grad = torch.empty_like(leaf)
        with compiled() as kernels, OperatorLog(part.module) as log:
            leaf_gradients = torch.autograd.grad(outputs, part.leaves, gradients, allow_unused=True)
            if part.accumulates:
                # This counts as one operator for each dtype; on a GPU there is a launch for each 64 parameters.
                add_together([leaf.grad for leaf in part.leaves if leaf.grad is not None], leaf_gradients)
        yield new_pass(backward=True, kernels=kernels, calls=log.calls, floor=part.floor[1])


def passes(
    sizes: Shape, names: Sequence[str], properties: DeviceProperties, compiled: Compiled, unsupported: dict[str, str]
) -> Iterator[Pass]:
    """Yield the forward and backward pass, in training, of the named updates of a block, the block, and other parts.

    `names` are some of `NAMES`. `compiled` is the context that compiles and lists kernels. Reasons why our kernels do
    not support an operator on the GPU are added to `unsupported` by the operator's name.
    """
    for part in _named_parts(sizes, names, properties):
        with recorded() as calls:
            yield from both_passes(part, properties, compiled)
        for operator, arguments in calls:
            reason = operator.unsupported_reasons(properties, *arguments).get("triton")
            if reason is not None:
                unsupported[operator.name] = reason


def _named_parts(sizes: Shape, names: Sequence[str], properties: DeviceProperties) -> Iterator[Part]:
    yield from _Block(sizes).parts(names)
    if any(name in PARTS for name in names):
        for part in parts(sizes):
            if part.name in names and part.name in PARTS:
                inputs = sum(each.nbytes for each in part.leaves)
                with simulated_device(properties), OperatorLog():
                    outputs = sum(each.nbytes for each in tensors(part.run()))
                yield replace(part, floor=(inputs + outputs, 2 * inputs + outputs))


class _Block:
    """An Evoformer block with its streams on meta tensors; parameters have the streams' dtype."""

    def __init__(self, sizes: Shape) -> None:
        stack = evoformer(sizes.preset, 1, META).requires_grad_(True).train().to(sizes.dtype)
        self._block: EvoformerBlock = stack.blocks[0]  # type: ignore[assignment]
        msa, pair, *masks = random_streams(sizes.preset, sizes.residues, sizes.rows, sizes.dtype, META)
        self._streams = {"msa": msa.requires_grad_(), "pair": pair.requires_grad_()}
        self._masks = dict(zip(("msa", "pair"), masks, strict=True))

    def parts(self, names: Sequence[str]) -> Iterator[Part]:
        """Yield the updates with these names, and the block if `names` contains it."""
        forward = backward = 0
        for attribute, stream, context in UPDATES:
            name, update, streams = (
                attribute.replace("_", " "),
                getattr(self._block, attribute),
                dict.fromkeys((stream, context)),
            )
            changed, leaves = self._streams[stream].nbytes, self._leaves(update, streams)
            inputs = sum(each.nbytes for each in leaves)
            floor = inputs + sum(self._masks[each].nbytes for each in streams) + changed
            forward, backward = forward + floor, backward + floor + inputs
            if name in names:
                context_from = None if context == stream else (self._streams[context], self._masks[context])
                run = partial(Whole(), update, self._streams[stream], self._masks[stream], context_from)
                yield Part(name=name, run=run, module=update, leaves=leaves, floor=(floor, floor + inputs))
        if BLOCK in names:
            run = partial(self._block, Whole(), *self._streams.values(), *self._masks.values())
            leaves = self._leaves(self._block, self._streams)
            yield Part(name=BLOCK, run=run, module=self._block, leaves=leaves, floor=(forward, backward))

    def _leaves(self, module: nn.Module, streams: Iterable[str]) -> list[Tensor]:
        return [*(self._streams[each] for each in streams), *module.parameters()]
