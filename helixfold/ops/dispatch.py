"""Operators with a plain PyTorch reference and faster backends for some devices and arguments."""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from pkgutil import resolve_name
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from helixfold.ops.device_properties import DeviceProperties, is_simulated, properties_of

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Backend:
    """An implementation of an operator.

    `run` is a function with the operator's signature, or its name "module:function", which is imported at the first
    use. `kinds` are the supported kinds of device; if empty, all are supported. `unsupported_reason` takes the
    properties of a device and the operator's arguments. It returns why the backend does not support them, or None, and
    must not read the values of tensors. `slower` takes the operator's arguments and returns why a later backend is
    faster, or None; it is not called for a forced backend. `run_adding` is a function, or its name, that takes a
    residual before the operator's arguments. It returns the stream of the residual plus the result, or None if it does
    not support the addition.
    """

    name: str
    run: Callable[..., Any] | str
    run_adding: Callable[..., Any] | str | None = None
    kinds: tuple[str, ...] = ()
    unsupported_reason: Callable[..., str | None] = lambda *_, **__: None
    slower: Callable[..., str | None] = lambda *_, **__: None

    def is_for(self, properties: DeviceProperties) -> bool:
        """Return whether the backend supports this kind of device."""
        return not self.kinds or properties.kind in self.kinds

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The backend's function, with the operator's signature."""
        return resolve_name(self.run) if isinstance(self.run, str) else self.run

    @cached_property
    def function_adding(self) -> Callable[..., Any] | None:
        """The backend's function that also adds the result to a residual, if it has one."""
        return resolve_name(self.run_adding) if isinstance(self.run_adding, str) else self.run_adding


class Op(Generic[P, R]):
    """An operator and its backends in order of preference, with the reference last, which supports everything.

    The first argument is positional, and either a tensor or an object with a `device`. All other arguments are on the
    same device.
    """

    def __init__(self, reference: Callable[P, R], *backends: Backend) -> None:
        update_wrapper(self, reference)
        self.reference, self.name = reference, reference.__name__
        self.backends = (*backends, Backend(name="reference", run=reference))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute the operator with `run`, or pass the call to the function of `intercepted`."""
        if _interceptor is not None:
            result: R = _interceptor(self, args, kwargs)
            return result
        return self.run(*args, **kwargs)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute the operator with the backend from `choice`, even inside `intercepted`; record the call if wanted."""
        backend = self.choice(*args, **kwargs)
        self._record(backend, *args, **kwargs)
        return backend.function(*args, **kwargs)

    def run_added(self, residual: Any, addition: "Op[..., Any]", *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the stream of `residual` plus the result, which is multiplied by the dropout mask of the residual.

        One function computes both if the chosen backend has one. The residual adds the result if it has none, if calls
        are intercepted, or if `addition`, the operator that adds them, is forced to another backend.
        """
        if _interceptor is not None:
            result: R = residual.plus(self(*args, **kwargs))
            return result
        backend = self.choice(*args, **kwargs)
        self._record(backend, *args, **kwargs)
        total: R | None = None
        if backend.function_adding is not None and addition.forced_backend in (None, backend.name):
            total = backend.function_adding(residual, *args, **kwargs)
        return residual.plus(backend.function(*args, **kwargs)) if total is None else total

    def _record(self, backend: Backend, *args: P.args, **kwargs: P.kwargs) -> None:
        """Record a call and its backend for `forced`, `recorded` and `recorded_backends`."""
        if self.forced_backend == backend.name:
            _forced_uses[self.name] += 1
        if _calls is not None:
            _calls.append((self, inspect.signature(self.reference).bind(*args, **kwargs).args))
        if _used is not None and not is_simulated():
            _used.setdefault(self.name, set()).add(backend.name)

    @property
    def forced_backend(self) -> str | None:
        """The name of the backend that `forced` selects for this operator, or None."""
        return _forced if _forced_operators is None or self.name in _forced_operators else None

    def choice(self, *args: P.args, **kwargs: P.kwargs) -> Backend:
        """Return the first backend that supports the arguments and is not slower than a later one.

        Inside `forced`, return the forced backend, or the reference if that does not support the arguments. Raise
        ValueError inside `simulated_device` if the first argument is not on the meta device.
        """
        device = args[0].device  # type: ignore[attr-defined]
        properties = properties_of(device)
        if is_simulated() and device.type != "meta":
            raise ValueError(
                f"{self.name} needs tensors on meta while {properties.name} is simulated, got one on {device}"
            )
        is_forced = self.forced_backend is not None
        for backend in self.backends:
            is_candidate = backend.name == _forced if is_forced else backend.is_for(properties)
            if not is_candidate or backend.unsupported_reason(properties, *args, **kwargs) is not None:
                continue
            if is_forced or backend.slower(*args, **kwargs) is None:
                return backend
        return self.backends[-1]

    def unsupported_reasons(
        self, properties: DeviceProperties, *args: P.args, **kwargs: P.kwargs
    ) -> dict[str, str | None]:
        """Return for each backend, in order of preference, why it does not compute these arguments, or None.

        The tensors may be on the meta device.
        """
        return {
            backend.name: backend.unsupported_reason(properties, *args, **kwargs) or backend.slower(*args, **kwargs)
            if backend.is_for(properties)
            else f"for {' and '.join(backend.kinds)}, not {properties.kind}"
            for backend in self.backends
        }


def operator(*backends: Backend) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Return a decorator that makes a function the reference of an operator with these backends.

    Backends are in order of preference.
    """
    return lambda reference: Op(reference, *backends)


# Globals for all threads, because autograd computes gradients and recomputes blocks in other threads: the name of the
# forced backend, the operators for which it is forced (None: all), how often each operator used it, the recorded calls,
# the names of the backends that each operator used, and the function that intercepts all calls.
_forced: str | None = None
_forced_operators: Collection[str] | None = None
_forced_uses: Counter[str] = Counter()
_calls: list[tuple[Op[..., Any], tuple[Any, ...]]] | None = None
_used: dict[str, set[str]] | None = None
Interceptor = Callable[[Op[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_interceptor: Interceptor | None = None


@contextmanager
def forced(name: str, operators: Collection[str] | None = None) -> Iterator[Counter[str]]:
    """Use the backend with this name on all devices, or the reference where the backend does not support the call.

    With `operators`, force the backend only for operators with these names. Yield a counter of the backend's uses by
    operator. For tests and benchmarks.
    """
    global _forced, _forced_operators, _forced_uses
    earlier = _forced, _forced_operators, _forced_uses
    _forced, _forced_operators, _forced_uses = name, operators, Counter()
    try:
        yield _forced_uses
    finally:
        _forced, _forced_operators, _forced_uses = earlier


@contextmanager
def recorded() -> Iterator[list[tuple[Op[..., Any], tuple[Any, ...]]]]:
    """Record calls of operators: yield a list to which each operator and a tuple of all its arguments are appended."""
    global _calls  # noqa: PLW0603 (one list for the process)
    _calls = []
    try:
        yield _calls
    finally:
        _calls = None


@contextmanager
def recorded_backends() -> Iterator[dict[str, set[str]]]:
    """Record which backends compute each operator: yield a dict from operator names to sets of backend names.

    Calls on a simulated device are not recorded, because they compute nothing.
    """
    global _used  # noqa: PLW0603 (one dict for the process)
    earlier, _used = _used, {}
    try:
        yield _used
    finally:
        _used = earlier


def add_recorded_backends(used: Mapping[str, Collection[str]]) -> None:
    """Add the backends of a replayed CUDA graph, which calls no operators, to the record of `recorded_backends`.

    Without a record, do nothing.
    """
    if _used is not None:
        for name, backends in used.items():
            _used.setdefault(name, set()).update(backends)


def sorted_backends(used: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """Return the record of `recorded_backends` with operators and their backends in alphabetical order."""
    return {name: tuple(sorted(names)) for name, names in sorted(used.items())}


@contextmanager
def intercepted(interceptor: Interceptor) -> Iterator[None]:
    """Pass all calls of operators to `interceptor(operator, args, kwargs)`, which can compute them with `operator.run`.

    For benchmarks.
    """
    global _interceptor  # noqa: PLW0603 (one for the process)
    _interceptor = interceptor
    try:
        yield
    finally:
        _interceptor = None


def is_intercepted() -> bool:
    """Return whether code runs inside `intercepted`. A replayed CUDA graph calls no operators to intercept."""
    return _interceptor is not None


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Return whether gradients are enabled and any of these tensors requires one."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def first_reason(*checks: tuple[bool, str]) -> str | None:
    """Return the reason in the first (condition, reason) pair whose condition is true, or None."""
    return next((reason for holds, reason in checks if holds), None)


def unsupported_float64(properties: DeviceProperties, x: Tensor, *_: object, **__: object) -> str | None:
    """Return why a backend without float64 does not support the input `x`, or None; other arguments are not read."""
    return "float64 is left to the reference" if x.dtype == torch.float64 else None


def unsupported_float64_or_empty(
    properties: DeviceProperties, x: Tensor, *others: object, **named: object
) -> str | None:
    """Return why a backend without float64 and empty tensors does not support these arguments, or None."""
    is_empty = any(isinstance(other, Tensor) and other.numel() == 0 for other in (x, *others))
    return unsupported_float64(properties, x) or ("there is nothing to compute" if is_empty else None)


def unsupported_wide_products(properties: DeviceProperties, x: Tensor) -> str | None:
    """Return why a kernel dominated by matrix products does not support this input, or None.

    It does not support float64, nor float32 except on a CPU. Exact float32 products do not use the matrix units of a
    GPU, and without them cuBLAS is faster.
    """
    return first_reason(
        (x.dtype == torch.float32 and properties.kind != "cpu", "products in float32 are left to cuBLAS"),
        (x.dtype == torch.float64, f"{x.dtype} is left to the reference"),
    )
