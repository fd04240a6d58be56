"""A capturer that behaves on a CPU as `GraphCapturer` does on a GPU, and finds errors that would occur there.

It captures PyTorch's operators instead of kernels. As on a GPU, a capture computes nothing: in-place changes are
undone, and memory that the action allocated is overwritten with NaN. A replay runs the same operators on this memory
without running the Python code of the action, and overwrites its temporaries, which other graphs may use.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from helixfold.benchmark.passes import wait_of_call
from helixfold.execution.graphs import CapturedGraph
from helixfold.execution.nested import tensors, with_tensors_changed

Result = TypeVar("Result")


class OperatorCapturer:
    """The capturer; `launched` and `captured` count the calls. A capture of more than `limit` bytes fails."""

    def __init__(self, limit: int | None = None) -> None:
        self.launched = self.captured = self.replayed = self.cleared = 0
        self.limit = limit

    def launch(self, action: Callable[[], Result]) -> Result:
        self.launched += 1
        return action()

    def capture(self, action: Callable[[], Result]) -> CapturedGraph[Result]:
        self.captured += 1
        tape = _Tape(self.limit)
        random = torch.get_rng_state()
        try:
            with mock.patch.object(torch.nn.functional, "one_hot", _one_hot), tape:
                result = action()
        finally:
            tape.undo()
            torch.set_rng_state(random)
        results = {_key(each) for each in tensors(result)}
        tape.overwrite()

        def replay() -> None:
            self.replayed += 1
            tape.replay()
            tape.overwrite(but=results)

        return CapturedGraph(result=result, replay=replay)

    def clear(self) -> None:
        self.cleared += 1


@dataclass(frozen=True, kw_only=True)
class _Outside:
    """A tensor outside the graph's memory, which may be freed before a replay."""

    storage: StorageWeakRef
    dtype: torch.dtype
    place: tuple[Any, ...]

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)  # type: ignore[attr-defined]
        if storage is None:
            raise AssertionError(f"a replay reads freed memory, of a tensor of {self.dtype} and shape {self.place[1]}")
        with torch.no_grad():
            return torch.empty(0, dtype=self.dtype).set_(storage, *self.place)


@dataclass(kw_only=True)
class _Call:
    func: Any
    args: Any
    kwargs: Any
    results: Any = None  # None if the operator changes its arguments in place


@dataclass(eq=False)
class _Tape(TorchDispatchMode):
    """Operators in order. Storages are identified by their addresses, which stay unique while the tape holds them."""

    limit: int | None
    calls: list[_Call] = field(default_factory=list)
    own: dict[int, Tensor] = field(default_factory=dict)
    numbers: dict[int, Tensor] = field(default_factory=dict)
    outside: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)  # with the bytes before a change

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.lift_fresh.default and args[0].ndim == 0:
            # A number that is assigned to elements: on a GPU it is an argument of the kernel.
            self.numbers[_key(args[0])] = args[0]
            return func(*args)
        reason = wait_of_call(func._overloadpacket.__name__, args, kwargs)
        if reason is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func} {reason}")
        for each in tensors([args, kwargs]):
            if _key(each) not in self.own and _key(each) not in self.numbers:
                self.outside.setdefault(_key(each), (each, None))
        call = _Call(func=func, args=with_tensors_changed(_as_it_is, args), kwargs=kwargs)
        written = list(_written(func, args, kwargs))
        for each in written:
            tensor, before = self.outside.get(_key(each), (None, None))
            if tensor is not None and before is None:
                self.outside[_key(each)] = tensor, _bytes(tensor).clone()
        result = func(*args, **kwargs)
        new = {_key(each): each for each in tensors(result)}
        new = {
            key: each
            for key, each in new.items()
            if not any(key in memory for memory in (self.own, self.numbers, self.outside))
        }
        self.own.update(new)
        if self.limit is not None and sum(_bytes(each).numel() for each in self.own.values()) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory while a graph is captured")
        # An operator that only changes shapes is not replayed.
        if (written or new) and torch.Tag.inplace_view not in func.tags:
            if not written:
                call.results = with_tensors_changed(_as_it_is, result)
            self.calls.append(call)
        return result

    def undo(self) -> None:
        """Undo the changes of memory outside the graph, and release that memory."""
        for tensor, before in self.outside.values():
            if before is not None:
                _bytes(tensor).copy_(before)

        def let_go(tensor: Tensor) -> Any:
            if _key(tensor) in self.own or _key(tensor) in self.numbers:
                return tensor
            place = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
            return _Outside(storage=StorageWeakRef(tensor.untyped_storage()), dtype=tensor.dtype, place=place)

        for call in self.calls:
            call.args, call.kwargs = (with_tensors_changed(let_go, each) for each in (call.args, call.kwargs))
        self.outside = {}

    def replay(self) -> None:
        # Operators were captured below autograd, which would reject in-place changes of views.
        with torch._C._AutoDispatchBelowAutograd():
            for call in self.calls:
                args, kwargs = _with_outside([call.args, call.kwargs])
                results = call.func(*args, **kwargs)
                for place, value in zip(tensors(call.results), tensors(results), strict=call.results is not None):
                    place.copy_(value)

    def overwrite(self, but: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """Fill the graph's own memory with NaN, or with numbers that are invalid as an index."""
        for key, tensor in self.own.items():
            if key not in but:
                _bytes(tensor).fill_(1 if tensor.dtype == torch.bool else 255)


def _one_hot(x: Tensor, num_classes: int) -> Tensor:
    """Replace PyTorch's function, which reads values on a CPU but not on a GPU."""
    return (x[..., None] == torch.arange(num_classes, device=x.device)).long()


def _with_outside(value: Any) -> Any:
    if isinstance(value, _Outside):
        return value.tensor()
    if isinstance(value, list | tuple):
        return type(value)(_with_outside(each) for each in value)
    if isinstance(value, dict):
        return {name: _with_outside(each) for name, each in value.items()}
    return value


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    for index, each in enumerate(func._schema.arguments):
        if each.alias_info is not None and each.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(each.name)
            yield from tensors([value])


def _as_it_is(tensor: Tensor) -> Tensor:
    """Return a tensor of the same memory whose shape stays as it is."""
    with torch.no_grad():
        place = tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
        return torch.empty(0, dtype=tensor.dtype).set_(*place)


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bytes(tensor: Tensor) -> Tensor:
    """The whole memory of a tensor's storage."""
    with torch.no_grad():
        return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
