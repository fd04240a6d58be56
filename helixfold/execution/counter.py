"""Counts of the memory and work of a piece of code: bytes of tensors, FLOP of products, bytes moved and launches.

Real tensors are counted as well as tensors on the meta device, which hold no numbers. So the same code can be counted
for another machine, and at sizes that would not fit into this one.
"""

import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helixfold.execution.nested import tensors

# Operators that allocate tensors or return views of them, and compute nothing.
_ALLOCATE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}
# Matrix products; the right operand is the last argument.
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}


class Counter(TorchDispatchMode):
    """Context that counts everything PyTorch computes inside it.

    `live` is the bytes of tensors that were allocated inside and still exist, and `peak` the most of them during the
    current stage. `peaks` has the peak of each finished stage, by the names that `begin` was given. `products` is the
    floating-point operations of matrix products, `moved` the bytes of the tensors that operators read and wrote, and
    `launches` the number of operators that compute something. `offloaded` is the live bytes that were allocated under
    `counted_as_offloaded`, which `live` does not include; `peak_offloaded` is the most of these.
    """

    def __init__(self, stage: str = "") -> None:
        super().__init__()
        self.stage, self.peaks = stage, dict[str, int]()
        self.live = self.peak = self.offloaded = self.peak_offloaded = 0
        self.products = self.moved = self.launches = 0
        self._held: dict[int, _Held] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled, so PyTorch need not import its compiler to find out.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        operator = _operator(func)
        # Another mode beneath this one must see every operator itself.
        found = func(*args, **kwargs) if torch._C._len_torch_dispatch_stack() else _result(operator, args, kwargs)
        outputs = [found] if isinstance(found, Tensor) else list(tensors(found))
        if not operator.is_given:
            for tensor in outputs:
                self._hold(tensor)
        if operator.name in _ALLOCATE:
            return found
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
        return found

    def begin(self, stage: str) -> None:
        """Record the peak of the current stage and begin another; a stage that comes again keeps its highest peak."""
        self.peaks[self.stage] = max(self.peaks.get(self.stage, 0), self.peak)
        self.stage, self.peak = stage, self.live

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._held:
            return
        size = storage.nbytes()
        is_offloaded = _is_offloaded.get()
        if is_offloaded:
            self.offloaded += size
            self.peak_offloaded = max(self.peak_offloaded, self.offloaded)
        else:
            self.live += size
            self.peak = max(self.peak, self.live)
        held = _Held(storage, self._release)
        held.key, held.size, held.is_offloaded = key, size, is_offloaded
        self._held[key] = held

    def _release(self, held: "_Held") -> None:
        del self._held[held.key]
        if held.is_offloaded:
            self.offloaded -= held.size
        else:
            self.live -= held.size


class _Held(weakref.ref[Any]):
    """Memory that was allocated inside a counter, by the identifier of its storage."""

    __slots__ = ("is_offloaded", "key", "size")
    key: int
    size: int
    is_offloaded: bool


_is_offloaded: ContextVar[bool] = ContextVar("_is_offloaded", default=False)


@contextmanager
def counted_as_offloaded() -> Iterator[None]:
    """Count memory that is allocated inside this context as `offloaded`: it is a disk's or the host's beside a GPU."""
    token = _is_offloaded.set(True)
    try:
        yield
    finally:
        _is_offloaded.reset(token)


# Layouts of operators' results for tensors on the meta device, by everything that they depend on: PyTorch takes long to
# find them, and a network repeats the same calls in every block.
_known: dict[Hashable, Any] = {}
_Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass(frozen=True, eq=False, slots=True)
class _Operator:
    """Facts about an operator. `is_given`: it returns memory of its arguments. `written`: the argument that it writes.

    `written` is the position or the name of an argument, and None unless exactly one is written and returned.
    """

    run: Any
    name: str
    is_given: bool
    written: int | str | None


@cache
def _operator(func: Any) -> _Operator:
    returns = func._schema.returns
    written = [
        argument.name if argument.kwarg_only else place
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return _Operator(
        run=func,
        name=func._overloadpacket.__name__,
        is_given=any(each.alias_info is not None for each in returns),
        written=written[0] if len(written) == len(returns) == 1 else None,
    )


def _result(operator: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an operator's result; for meta tensors an empty one of the right layout, without running the operator."""
    func = operator.run
    try:
        key = func, _signature(args), _signature(tuple(kwargs.items())) if kwargs else ()
    except _NotOnMetaError:
        return func(*args, **kwargs)
    if (written := operator.written) is not None:
        # Nothing is written on the meta device, and the operator returns the argument that it writes.
        return kwargs[written] if isinstance(written, str) else args[written]
    layouts = _known.get(key)
    if layouts is None:
        found = func(*args, **kwargs)
        given = {_storage(tensor) for tensor in tensors(args)}
        outputs = found if isinstance(found, tuple) else (found,)
        made = [each for each in outputs if each is not None]  # gradients that are not needed are None
        if all(isinstance(each, Tensor) and each.is_meta and _storage(each) not in given for each in made):
            known = tuple(each if each is None else (each.shape, each.stride(), each.dtype) for each in outputs)
            _known[key] = known if isinstance(found, tuple) else known[0]
        return found
    if isinstance(layouts[-1], torch.dtype):
        return _made(layouts)
    return tuple(_made(each) for each in layouts)


class _NotOnMetaError(Exception):
    """Error for a tensor that is not on the meta device."""


def _signature(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        if not value.is_meta:
            raise _NotOnMetaError
        return value.shape, value.stride(), value.dtype
    if isinstance(value, tuple | list):
        return tuple(map(_signature, value))
    # 1, 1.0 and True are equal, but give different results.
    return type(value), value


def _made(layout: _Layout | None) -> Tensor | None:
    if layout is None:
        return None
    shape, stride, dtype = layout
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _storage(tensor: Tensor) -> int:
    """Return an identifier that all tensors of the same memory share, valid while one of them exists."""
    return tensor.untyped_storage()._cdata


def _size(tensor: Tensor) -> int:
    """Return the bytes of a tensor that are read or written; an expanded tensor has fewer in memory than elements."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())
