"""Operators: a plain reference that defines each of them, and ordered backends that carry it out where they can."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from pkgutil import resolve_name
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from helixfold.ops.card import Card, card_of, is_described

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A way to carry out an operator.

    `run` is a function with the operator's signature, or where one is found ("module:function"), imported at its first
    use. `kinds` are the kinds of card that it is for, all if empty; `refusal` takes a card and the operator's arguments
    and returns why the backend cannot take them there, None if it can. It must not look at the values of tensors.
    """

    name: str
    run: Callable[..., Any] | str
    kinds: tuple[str, ...] = ()
    refusal: Callable[..., str | None] = lambda *_, **__: None

    def is_for(self, card: Card) -> bool:
        """Return whether the card is of a kind that the backend is for."""
        return not self.kinds or card.kind in self.kinds

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The function that carries the operator out."""
        return resolve_name(self.run) if isinstance(self.run, str) else self.run


class Op(Generic[P, R]):
    """A reference and its backends in the order of preference; the reference is the last one and takes everything.

    Its first argument is given by position and is a tensor, or knows its `device`, on which everything else is too.
    """

    def __init__(self, reference: Callable[P, R], *backends: Backend) -> None:
        update_wrapper(self, reference)
        self.reference, self.name = reference, reference.__name__
        self.backends = (*backends, Backend(name="reference", run=reference))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if _calls is not None:
            _calls.append((self, inspect.signature(self.reference).bind(*args, **kwargs).args))
        return self.choice(*args, **kwargs).function(*args, **kwargs)

    def choice(self, *args: P.args, **kwargs: P.kwargs) -> Backend:
        """Return the backend to use: the first that can, or the forced one; the reference where that cannot."""
        device = args[0].device  # type: ignore[attr-defined]
        card = card_of(device)
        if is_described() and device.type != "meta":
            raise ValueError(
                f"{self.name} was given a tensor on {device} where {card.name} is described and nothing is computed; "
                "give it tensors on meta"
            )
        for backend in self.backends:
            wanted = backend.is_for(card) if _forced is None else backend.name == _forced.name
            if wanted and backend.refusal(card, *args, **kwargs) is None:
                if _forced is not None:
                    _forced.used[self.name] += 1
                return backend
        return self.backends[-1]

    def refusals(self, card: Card, *args: P.args, **kwargs: P.kwargs) -> dict[str, str | None]:
        """Return why each backend, in the order of preference, is not for such arguments on a card; None if it is.

        The tensors may be on the meta device.
        """
        return {
            backend.name: backend.refusal(card, *args, **kwargs)
            if backend.is_for(card)
            else f"for {' and '.join(backend.kinds)}, not {card.kind}"
            for backend in self.backends
        }


def operator(*backends: Backend) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Make a plain function the reference of an operator with these backends, in the order of preference."""
    return lambda reference: Op(reference, *backends)


@dataclass(frozen=True, kw_only=True)
class Forced:
    """A backend that is used before all others, and how often each operator has used it."""

    name: str
    used: Counter[str]


# Seen by all threads: gradients may be computed, and blocks recomputed, in another one.
_forced: Forced | None = None
_calls: list[tuple[Op[..., Any], tuple[Any, ...]]] | None = None


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


@contextmanager
def recorded() -> Iterator[list[tuple[Op[..., Any], tuple[Any, ...]]]]:
    """Give the list of all calls of operators inside, each with its arguments by position."""
    global _calls  # noqa: PLW0603 (one list for the process)
    _calls = []
    try:
        yield _calls
    finally:
        _calls = None


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether what is computed from these must be able to give gradients."""
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)


def first_reason(*checks: tuple[bool, str]) -> str | None:
    """Return the reason of the first check that holds, None where none does."""
    return next((reason for holds, reason in checks if holds), None)


def refusal_of_float64(card: Card, x: Tensor, *_: object, **__: object) -> str | None:
    """Return why a backend without double precision is not for these arguments."""
    return "float64 is left to the reference" if x.dtype == torch.float64 else None


def refusal_of_float64_or_nothing(card: Card, x: Tensor, *others: object, **named: object) -> str | None:
    """The same for a backend that takes no tensors without elements."""
    empty = any(isinstance(each, Tensor) and each.numel() == 0 for each in (x, *others))
    return refusal_of_float64(card, x) or ("there is nothing to compute" if empty else None)


def refusal_of_wide_products(card: Card, x: Tensor) -> str | None:
    """Return why a kernel whose time goes into matrix products is not for such an input on a GPU.

    Exact products in float32 use none of a GPU's matrix units; without those, cuBLAS is hard to reach.
    """
    return first_reason(
        (x.dtype == torch.float32 and card.kind != "cpu", "products in float32 are left to cuBLAS"),
        (x.dtype == torch.float64, f"{x.dtype} is left to the reference"),
    )
