"""Operators: a plain reference that defines each of them, and ordered backends that carry it out where they can."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def _never(*_: object, **__: object) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Backend(Generic[P, R]):
    """A way to carry out an operator.

    `devices` are the kinds of device that it is for, all if empty; `refusal` says why it cannot take such arguments,
    None if it can. Neither may look at the values of tensors.
    """

    name: str
    run: Callable[P, R]
    devices: tuple[str, ...] = ()
    refusal: Callable[P, str | None] = _never


class Op(Generic[P, R]):
    """An operator with its backends in the order of preference; the last one is the reference and takes everything.

    Its first argument is a tensor, or knows its `device`, on which everything else is too.
    """

    def __init__(self, name: str, *backends: Backend[P, R]) -> None:
        self.name, self.backends = name, backends

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.choice(*args, **kwargs).run(*args, **kwargs)

    def choice(self, *args: P.args, **kwargs: P.kwargs) -> Backend[P, R]:
        """The backend that will be used: the first that can, or the forced one; the reference where that cannot."""
        if _forced is not None:
            for backend in self.backends:
                if backend.name == _forced.name and backend.refusal(*args, **kwargs) is None:
                    _forced.used[self.name] += 1
                    return backend
            return self.backends[-1]
        device = args[0].device.type  # type: ignore[attr-defined]
        for backend in self.backends:
            if (not backend.devices or device in backend.devices) and backend.refusal(*args, **kwargs) is None:
                return backend
        raise AssertionError(f"{self.name}: the reference refused")

    def refusals(self, device: str, *args: P.args, **kwargs: P.kwargs) -> dict[str, str | None]:
        """Why each backend, in the order of preference, is not for such arguments on such a device; None if it is.

        The tensors may be on the meta device.
        """
        reasons: dict[str, str | None] = {}
        for backend in self.backends:
            if backend.devices and device not in backend.devices:
                reasons[backend.name] = f"for {' and '.join(backend.devices)}, not {device}"
            else:
                reasons[backend.name] = backend.refusal(*args, **kwargs)
        return reasons


@dataclass(frozen=True, kw_only=True)
class Forced:
    """A backend that is used before all others, and how often each operator has used it."""

    name: str
    used: Counter[str]


# Seen by all threads: gradients may be computed, and blocks recomputed, in another one.
_forced: Forced | None = None


@contextmanager
def forced(name: str) -> Iterator[Counter[str]]:
    """Use the backend of that name on whatever device, in every operator that has it and where it can, and references
    everywhere else, since they are made of other operators; for tests and benchmarks. Gives how often each used it.
    """
    global _forced  # noqa: PLW0603 (one choice for the process)
    earlier, _forced = _forced, Forced(name=name, used=Counter())
    try:
        yield _forced.used
    finally:
        _forced = earlier


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether what is computed from these must be able to give gradients."""
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)


@cache
def _triton_is_there() -> bool:
    return find_spec("triton") is not None


def refusal_of_wide_products(x: Tensor) -> str | None:
    """Why a kernel whose time goes into matrix products is not for such an input on a GPU.

    Exact products in float32 use none of a GPU's matrix units; without those, cuBLAS is hard to reach.
    """
    if x.dtype == torch.float32 and x.device.type != "cpu":
        return "products in float32 are left to cuBLAS"
    return f"{x.dtype} is left to the reference" if x.dtype == torch.float64 else None


def refusal_without_triton(*_: object, **__: object) -> str | None:
    """The first reason that every Triton backend may have."""
    return None if _triton_is_there() else "triton is not installed"
