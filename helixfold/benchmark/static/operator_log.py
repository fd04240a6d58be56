"""A log of everything that a piece of code launches on a GPU: kernels, PyTorch's operators, casts and waits."""

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from helixfold.benchmark.static.host_waits import TENSOR_MAKERS, pretended, wait_of_call, wait_of_copy
from helixfold.execution.counter import Counter
from helixfold.execution.nested import tensors

META = torch.device("meta")
# Operators that answer a question about dtypes.
_NO_LAUNCH = {"promote_types"}


@dataclass(frozen=True, kw_only=True)
class OperatorCall:
    """One launch: the name of the operator or kernel, and the bytes of its input and output tensors.

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

    Casts of the module's parameters are told from others. Tensors on the CPU are the host's own: only copies between
    them and meta tensors are listed. Where an operator that waits has no result on the meta device, one is made up.
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
        found = super().__torch_dispatch__(func, types, args, kwargs)
        on_meta = on_meta or any(each.is_meta for each in tensors(found))
        if on_meta and self.launches > launches and name not in _NO_LAUNCH:
            is_kernel = name == "launch"
            self.calls.append(
                OperatorCall(
                    name=args[0].lstrip("_") if is_kernel else name,
                    is_kernel=is_kernel,
                    moved=self.moved - moved,
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
