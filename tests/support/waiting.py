"""A context in which calls that would make the host wait for a GPU raise, with tensors of any device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from helixfold.benchmark.passes import wait_of_call, wait_of_copy
from helixfold.execution.nested import tensors

# Functions that read a tensor's values, or make a tensor from values of the host, which are then copied.
FUNCTIONS = {
    *("__bool__", "__float__", "__int__", "__index__", "item", "tolist", "numpy", "cpu", "equal", "allclose"),
    *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"),
    *("tensor", "as_tensor", "new_tensor", "asarray"),
}


class HostWaits(AssertionError):
    """A function or operator that makes the host wait."""


class _Functions(TorchFunctionMode):
    def __init__(self, reads: int, on_host: Tensor | None) -> None:
        super().__init__()
        self.reads, self.on_host = reads, on_host

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "tolist" and self.reads > 0:
            self.reads -= 1
        elif name in FUNCTIONS and args[0] is not self.on_host:
            raise HostWaits(f"{name} is called")
        return func(*args, **kwargs or {})


class _Operators(TorchDispatchMode):
    def __init__(self, on_host: Tensor | None) -> None:
        super().__init__()
        self.on_host = on_host

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._overloadpacket.__name__
        operands = list(tensors(args))
        if operands and operands[0] is self.on_host:
            return func(*args, **kwargs or {})
        reason = wait_of_call(name, args, kwargs or {})
        if reason is None:
            result = func(*args, **kwargs or {})
            reason = wait_of_copy(name, args, result)
        if reason is not None:
            raise HostWaits(f"{func} {reason}")
        return result


@contextmanager
def no_host_waits(*, reads: int = 0, on_host: Tensor | None = None) -> Iterator[None]:
    """Raise `HostWaits` where code inside would make the host wait for a GPU, in backward passes too.

    `reads` is the number of expected calls of `tolist`; `on_host` is a tensor that is never on a GPU.
    """
    functions = _Functions(reads, on_host)
    with functions, _Operators(on_host):
        yield
    if functions.reads:
        raise HostWaits(f"expected {reads} calls of tolist, got {reads - functions.reads}")
