"""A log of everything that a piece of code launches on a GPU: kernels, PyTorch's operators, casts and waits."""

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from helixfold.benchmark.static.host_waits import TENSOR_MAKERS, pretended, wait_of_call, wait_of_copy
from helixfold.execution.counter import Counter

# Operators that answer a question about dtypes.
_NO_LAUNCH = {"promote_types"}


@dataclass(frozen=True, kw_only=True)
class OperatorCall:
    """One launch: the operator's name, or that of our kernel, bytes read and written, and FLOP of products.

    `cast` says of what the operator changes only the dtype, and `waits` that the host waits for the GPU.
    """

    name: str
    is_kernel: bool = False
    moved: int = 0
    flop: int = 0
    in_float32: bool = False
    cast: Literal["parameter", "other"] | None = None
    waits: bool = False


class OperatorLog(Counter):
    """Counter that lists every call that computes, copies or waits.

    `parameters` are a module's parameters, whose casts are told apart. On the meta device, where an operator that waits
    has no result, one is made up.
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
        if wait_of_call(name, args, kwargs) is not None:
            self.calls.append(OperatorCall(name=name, waits=True))
            if args[0].is_meta:
                return pretended(name, args)
        launches, moved, products = self.launches, self.moved, self.products
        found = super().__torch_dispatch__(func, types, args, kwargs)
        if self.launches > launches and name not in _NO_LAUNCH:
            is_kernel = name == "launch"
            self.calls.append(
                OperatorCall(
                    name=args[0].lstrip("_") if is_kernel else name,
                    is_kernel=is_kernel,
                    moved=self.moved - moved,
                    flop=self.products - products,
                    in_float32=isinstance(found, Tensor) and found.dtype == torch.float32,
                    cast=self._cast(name, args, found),
                    waits=wait_of_copy(name, args, found) is not None,
                )
            )
        return found

    def _cast(self, name: str, args: tuple[Any, ...], found: Any) -> Literal["parameter", "other"] | None:
        if name != "_to_copy" or found.dtype == args[0].dtype:
            return None
        return "parameter" if _storage(args[0]) in self._parameters else "other"


class _Functions(TorchFunctionMode):
    """Mode that logs functions that copy values from the host, of which operators on the meta device show nothing."""

    def __init__(self, log: OperatorLog) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **kwargs or {})
        name = getattr(func, "__name__", "")
        if name in TENSOR_MAKERS and found.is_meta:
            self._log.calls.append(OperatorCall(name=name, waits=True))
        return found


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
