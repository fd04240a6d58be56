"""Count the memory and work of a piece of code: tensor memory, FLOP of matrix products, memory traffic, launches.

Tensors may be real or on the meta device, where they have no data. The same code can therefore be counted for another
machine, and at sizes that do not fit into this one.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial, reduce
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helixfold.execution.nested import tensors

# Operators that allocate tensors or return views of them, and compute nothing.
_ALLOCATE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}
# Matrix products; the right operand is the last argument.
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}


class Counter(TorchDispatchMode):
    """Context manager that counts the memory and work of everything PyTorch computes inside it.

    `live` is the bytes of memory of tensors that were allocated inside and still exist, and `peak` its maximum during
    the current stage. `peaks` has the peak of each finished stage, by the names passed to `begin`. `products` is the
    floating-point operations of matrix products, `moved` the bytes of the tensors that operators read and wrote, and
    `launches` the number of operators that compute something. `offloaded` is the live bytes that were allocated under
    `counted_as_offloaded`, which `live` does not include, and `peak_offloaded` its maximum.
    """

    def __init__(self, stage: str = "") -> None:
        """Start counting for `stage`, the name under which `begin` records its peak."""
        super().__init__()
        self.stage, self.peaks = stage, dict[str, int]()
        self.live = self.peak = self.offloaded = self.peak_offloaded = 0
        self.products = self.moved = self.launches = 0
        self._allocations: dict[int, _Allocation] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here. Otherwise PyTorch imports its compiler, which is slow, to find that out.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run or skip one PyTorch operator and count it; views are not counted."""
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        operator = _operator(func)
        # Another dispatch mode below this one must see every operator.
        result = func(*args, **kwargs) if torch._C._len_torch_dispatch_stack() else _result(operator, args, kwargs)
        outputs = [result] if isinstance(result, Tensor) else list(tensors(result))
        if not operator.returns_argument:
            for tensor in outputs:
                self._add(tensor)
        if operator.name in _ALLOCATE:
            return result
        self.launches += 1
        moved = 0
        for each in (*args, *outputs):
            if isinstance(each, Tensor):
                moved += _size(each)
            elif isinstance(each, list | tuple):
                moved += sum(map(_size, tensors(each)))
        self.moved += moved
        if operator.name.rstrip("_") in _PRODUCTS:
            # Each element is a sum of as many products as the last operand has rows.
            self.products += 2 * outputs[0].numel() * args[-1].shape[-2]
        return result

    def begin(self, stage: str) -> None:
        """Record the peak of the current stage and begin another; a repeated stage keeps its highest peak."""
        self.peaks[self.stage] = max(self.peaks.get(self.stage, 0), self.peak)
        self.stage, self.peak = stage, self.live

    def _add(self, tensor: Tensor) -> None:
        """Count the memory of a new tensor, unless another tensor shares it."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._allocations:
            return
        size = storage.nbytes()
        is_offloaded = _is_offloaded.get()
        if is_offloaded:
            self.offloaded += size
            self.peak_offloaded = max(self.peak_offloaded, self.offloaded)
        else:
            self.live += size
            self.peak = max(self.peak, self.live)
        allocation = _Allocation(storage, self._remove)
        allocation.key, allocation.size, allocation.is_offloaded = key, size, is_offloaded
        self._allocations[key] = allocation

    def _remove(self, allocation: "_Allocation") -> None:
        """Subtract the memory of a tensor that no longer exists."""
        del self._allocations[allocation.key]
        if allocation.is_offloaded:
            self.offloaded -= allocation.size
        else:
            self.live -= allocation.size


class _Allocation(weakref.ref[Any]):
    """Weak reference to a storage that was allocated inside a counter; `key` is the storage's address."""

    __slots__ = ("is_offloaded", "key", "size")
    key: int
    size: int
    is_offloaded: bool


_is_offloaded: ContextVar[bool] = ContextVar("_is_offloaded", default=False)


@contextmanager
def counted_as_offloaded() -> Iterator[None]:
    """Count memory allocated inside this context as `offloaded`: on a disk, or host memory of a GPU run."""
    token = _is_offloaded.set(True)
    try:
        yield
    finally:
        _is_offloaded.reset(token)


# Cache of the layouts of operators' results on the meta device, by everything that they depend on. PyTorch takes long
# to compute them, and a network repeats the same calls.
_layouts: dict[Hashable, Any] = {}
_Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
# Elementwise functions that return integers for integers, and functions that return booleans.
_RETURN_INTEGERS = {
    "add",
    "sub",
    "rsub",
    "mul",
    "neg",
    "clamp",
    "where",
    "clone",
    "_to_copy",
    "bitwise_and",
    "bitwise_or",
}
_RETURN_BOOLEANS = {
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_not",
    "isfinite",
    "isnan",
    "isinf",
}


@dataclass(frozen=True, eq=False, slots=True)
class _Operator:
    """An operator, and what happens to the memory of its arguments.

    `returns_argument` is true if the result shares memory with an argument. `written` is the position or the name of
    the argument that the operator writes; None unless exactly one is written and returned with the same shape.
    """

    run: Any
    name: str
    returns_argument: bool
    is_pointwise: bool
    written: int | str | None


@cache
def _operator(func: Any) -> _Operator:
    """Return the properties of a PyTorch operator from its schema."""
    returns = func._schema.returns
    keeps_shape = torch.Tag.inplace_view not in func.tags  # unlike `squeeze_`
    written = [
        argument.name if argument.kwarg_only else place
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return _Operator(
        run=func,
        name=func._overloadpacket.__name__,
        returns_argument=any(each.alias_info is not None for each in returns),
        is_pointwise=torch.Tag.pointwise in func.tags,
        written=written[0] if len(written) == len(returns) == 1 and keeps_shape else None,
    )


def _result(operator: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an operator's result. For meta tensors this is an empty tensor of the right layout; nothing is run."""
    func, name = operator.run, operator.name
    if name in _ALLOCATE and name not in _SIMPLE:
        return func(*args, **kwargs)
    try:
        key = func, _signature(args), _signature(tuple(kwargs.items())) if kwargs else ()
    except _NotOnMetaError:
        return func(*args, **kwargs)
    if (written := operator.written) is not None:
        # Nothing is written on the meta device, and the operator returns the argument that it writes.
        return kwargs[written] if isinstance(written, str) else args[written]
    layouts = _layouts.get(key)
    if layouts is None and (layout := _simple(operator, args, kwargs)) is not None:
        layouts = _layouts[key] = layout
    if layouts is None:
        result = func(*args, **kwargs)
        inputs = {_storage(tensor) for tensor in tensors(args)}
        outputs = result if isinstance(result, tuple) else (result,)
        present = [each for each in outputs if each is not None]  # unneeded gradients are None
        if all(isinstance(each, Tensor) and each.is_meta and _storage(each) not in inputs for each in present):
            entry = tuple(each if each is None else (each.shape, each.stride(), each.dtype) for each in outputs)
            _layouts[key] = entry if isinstance(result, tuple) else entry[0]
        return result
    if isinstance(layouts[-1], torch.dtype):
        return _empty(layouts)
    return tuple(_empty(each) for each in layouts)


def _simple(operator: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the layout of the result of a frequent operator; None for other operators."""
    if operator.is_pointwise:
        return _pointwise(operator.name, args, kwargs)
    return _SIMPLE[operator.name](*args, **kwargs) if operator.name in _SIMPLE else None


def _product(left: Tensor, right: Tensor) -> _Layout:
    """Return the layout of a matrix product, also of batches."""
    return _dense((*left.shape[:-1], *right.shape[left.ndim - 1 :]), left.dtype)


def _layer_norm(x: Tensor, channels: Sequence[int], *_: Any) -> tuple[_Layout, ...]:
    """Return the layouts of the normalised tensor, the means and the reciprocal deviations."""
    of_rows = _dense((*x.shape[: x.ndim - len(channels)], *[1] * len(channels)), torch.float32)
    return _dense(x.shape, x.dtype), of_rows, of_rows


def _glu(x: Tensor, dim: int = -1) -> _Layout:
    """Return the layout of a gated linear unit, which halves `dim`."""
    return _dense([size // 2 if each == dim % x.ndim else size for each, size in enumerate(x.shape)], x.dtype)


def _joined(parts: Sequence[Tensor], dim: int = 0, *, stacks: bool = False) -> _Layout:
    """Return the layout of parts joined along `dim`, or along a new dim if `stacks`."""
    shape = list(parts[0].shape)
    if stacks:
        shape.insert(dim % (len(shape) + 1), len(parts))
    else:
        shape[dim] = sum(part.shape[dim] for part in parts)
    return _dense(shape, reduce(torch.promote_types, (part.dtype for part in parts)))


def _reduced(
    x: Tensor, dims: Sequence[int] | None = None, keeps: bool = False, *, dtype: torch.dtype | None = None
) -> _Layout | None:
    """Return the layout of a reduction over `dims`, which are kept with size 1 if `keeps`."""
    if not dims or not x.is_floating_point():
        return None
    over = {dim % x.ndim for dim in dims}
    shape = [1 if dim in over else size for dim, size in enumerate(x.shape) if keeps or dim not in over]
    return _dense(shape, dtype or x.dtype)


def _reduced_to_one(x: Tensor, dim: int | None = None, keeps: bool = False, *, dtype: Any = None) -> _Layout | None:
    """Return the layout of a reduction over one dim; None for a reduction over all."""
    return None if dim is None else _reduced(x, [dim], keeps, dtype=dtype)


def _range(*bounds: float, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> _Layout | None:
    """Return the layout of `torch.arange` on the meta device."""
    start, stop, step = bounds if len(bounds) == 3 else (*(0, *bounds)[-2:], 1)
    default = torch.int64 if all(isinstance(bound, int) for bound in bounds) else torch.get_default_dtype()
    return _on_meta(device, max(0, ceil((stop - start) / step)), dtype or default)


def _spaced(_first: float, _last: float, steps: int, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """Return the layout of `torch.linspace` with this number of steps on the meta device."""
    return _on_meta(device, steps, dtype or torch.get_default_dtype())


def _on_meta(device: Any, size: int, dtype: torch.dtype) -> _Layout | None:
    """Return the layout of a vector of this size if the device is meta, else None."""
    return None if device is None or torch.device(device).type != "meta" else _dense([size], dtype)


def _padded(x: Tensor, sizes: Sequence[int], *_: Any) -> _Layout | None:
    """Return the layout of a padded contiguous tensor; `sizes` are as for `torch.nn.functional.pad`."""
    if not x.is_contiguous():
        return None
    shape = list(x.shape)
    for place in range(0, len(sizes), 2):  # the last dim's sizes come first
        shape[-1 - place // 2] += sum(sizes[place : place + 2])
    return _dense(shape, x.dtype)


def _looked_up(table: Tensor, indices: Sequence[Tensor | None]) -> _Layout | None:
    """Return the layout of a table indexed by one tensor of integers in its first dim; None for other indices."""
    first, *others = indices
    if others or first is None or first.dtype != torch.int64:
        return None
    shape = *first.shape, *table.shape[1:]
    strides = [(*[0] * first.ndim, *table.stride()[1:]), (*first.stride(), *[0] * (table.ndim - 1))]
    return shape, _pointwise_strides(shape, strides), table.dtype


_SIMPLE: dict[str, Callable[..., Any]] = {
    "index": _looked_up,
    "arange": _range,
    "linspace": _spaced,
    "constant_pad_nd": _padded,
    "gather": lambda x, _, index, **__: _dense(index.shape, x.dtype),
    **dict.fromkeys(("mm", "bmm", "mv"), _product),
    **dict.fromkeys(("addmm", "baddbmm"), lambda _, left, right, **factors: _product(left, right)),
    **dict.fromkeys(("_softmax", "_log_softmax"), lambda x, *_: _dense(x.shape, x.dtype)),
    **dict.fromkeys(("sum", "mean", "amax"), _reduced),
    "prod": lambda x, *dim_and_keeps, dtype=None: _reduced_to_one(x, *dim_and_keeps, dtype=dtype),
    "argmax": lambda x, *dim_and_keeps: _reduced_to_one(x, *dim_and_keeps, dtype=torch.int64),
    "flip": lambda x, _: _pointwise("clone", (x,), {}),
    "linalg_cross": lambda x, other, **_: _dense(np.broadcast_shapes(x.shape, other.shape), x.dtype),
    "linalg_vector_norm": lambda x, _=2, *others, **named: _reduced(x, *others, **named),
    "native_layer_norm": _layer_norm,
    "empty_like": lambda x, *, dtype=None, memory_format=None, **_: _pointwise(
        "clone", (x,), {"dtype": dtype, "memory_format": memory_format}
    ),
    "glu": _glu,
    "cat": _joined,
    "stack": partial(_joined, stacks=True),
}


def _dense(shape: Sequence[int], dtype: torch.dtype) -> _Layout:
    """Return the layout of a contiguous tensor."""
    return tuple(shape), tuple(prod(shape[dim + 1 :]) for dim in range(len(shape))), dtype


def _pointwise(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Layout | None:
    """Return the layout of an elementwise function's result in PyTorch; None for cases left to PyTorch."""
    tensors = [each for each in args if isinstance(each, Tensor)]
    shape = np.broadcast_shapes(*(each.shape for each in tensors))
    dtypes = [each.dtype for each in tensors[name == "where" :] if each.ndim or not shape]
    if not dtypes or kwargs.keys() - {"dtype", "memory_format", "alpha", "value"}:
        return None
    dtype = kwargs.get("dtype") or reduce(torch.promote_types, dtypes)
    if not dtype.is_floating_point and name not in _RETURN_INTEGERS | _RETURN_BOOLEANS:
        return None
    dtype = torch.bool if name in _RETURN_BOOLEANS else dtype
    if kwargs.get("memory_format") == torch.contiguous_format or all(each.is_contiguous() for each in tensors):
        return _dense(shape, dtype)
    expanded = [each.expand(shape) for each in tensors]
    if len(expanded) == 1 and _is_dense(expanded[0]):
        return tuple(shape), expanded[0].stride(), dtype
    return tuple(shape), _pointwise_strides(shape, [each.stride() for each in expanded]), dtype


def _is_dense(x: Tensor) -> bool:
    """Return whether a tensor fills its memory without gaps, in any order of its dims."""
    size = 1
    for stride, length in sorted(zip(x.stride(), x.shape, strict=True)):
        if length > 1:
            if stride != size:
                return False
            size *= length
    return True


def _pointwise_strides(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the strides of an elementwise function's result in PyTorch, from the strides of its operands.

    The result is dense. Its dims are ordered by the strides of the first operand in which they differ (see
    `TensorIterator` in PyTorch's source). PyTorch's own Python function for this imports its symbolic shapes, which is
    slow.
    """

    def is_faster(one: int, other: int) -> bool | None:
        """Return whether dim `one` has smaller strides than dim `other`; None if no operand decides."""
        for operand in strides:
            if operand[one] and operand[other]:
                if operand[one] != operand[other]:
                    return operand[one] < operand[other]
                if shape[one] > shape[other]:
                    return False
        return None

    order: list[int] = []  # the dim whose elements lie next to each other comes first
    for dim in reversed(range(len(shape))):
        place = len(order)
        for before in reversed(range(len(order))):
            faster = is_faster(order[before], dim)
            if faster:
                break
            if faster is not None:
                place = before
        order.insert(place, dim)
    result, size = [0] * len(shape), 1
    for dim in order:
        result[dim], size = size, size * shape[dim]
    return tuple(result)


class _NotOnMetaError(Exception):
    """A tensor is not on the meta device."""


def _signature(value: Any) -> Hashable:
    """Return a hashable key of arguments; raise `_NotOnMetaError` for a tensor that is not on the meta device."""
    if isinstance(value, Tensor):
        if not value.is_meta:
            raise _NotOnMetaError
        return value.shape, value.stride(), value.dtype
    if isinstance(value, tuple | list):
        return tuple(map(_signature, value))
    # 1, 1.0 and True are equal, but give different results.
    return type(value), value


def _empty(layout: _Layout | None) -> Tensor | None:
    """Return an uninitialised meta tensor of this layout."""
    if layout is None:
        return None
    shape, stride, dtype = layout
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _storage(tensor: Tensor) -> int:
    """Return an identifier of a tensor's memory, valid while a tensor with this memory exists."""
    return tensor.untyped_storage()._cdata


def _size(tensor: Tensor) -> int:
    """Return the bytes of a tensor in memory; an expanded tensor has fewer than its elements would take."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())
