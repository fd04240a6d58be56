"""Recompute: what a training pass keeps for its backward, chosen from outside the model.

A stretch that is recomputed keeps nothing but its inputs and is run a second time, with the same dropout, when its
gradients are asked for. The autograd graph stays what it was, so loss and gradients do too, bit for bit.
"""

import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from helixfold.config import Config, ConfigError
from helixfold.execution.stand_in import StandIn, put_back, replace_method
from helixfold.model.alphafold import AlphaFold
from helixfold.model.update import ContextInput, Executor, Stream, Update

Keep = Literal["none", "inputs", "block"]
Choice = Literal["auto", "none", "inputs", "block"]


@dataclass(frozen=True, kw_only=True)
class RecomputeConfig(Config):
    """Choose what is recomputed in each part of the network: "none", or everything but the "inputs" of each update, or
    everything but what enters a "block". "auto" stands for the least of these that there is memory for, and is settled
    before a run begins (`planning.recompute_choice`).

    A block is a block of the Evoformer, of the extra-MSA stack or of the template pair stack, or an iteration of the
    structure module, whose attention and transition are its updates here. "block" keeps the two streams once per block
    and "inputs" one stream per update, about five times as much; while a block's gradients are computed "block" holds
    everything that the block computes, "inputs" only what one update does.

    The default is the stacks' blocks as in AlphaFold 2 (Suppl. Sec. 1.11.8), and the updates of the structure module:
    nearly all that an iteration would keep is inside its attention, and the small steps around it cost more time to
    run twice than they hold memory.
    """

    evoformer: Choice = "block"
    extra_msa: Choice = "block"
    template: Choice = "block"
    structure: Choice = "inputs"

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) not in typing.get_args(Choice):
                allowed, given = ", ".join(typing.get_args(Choice)), getattr(self, field.name)
                raise ConfigError(f"RecomputeConfig.{field.name} must be one of {allowed}; got {given!r}")

    @classmethod
    def everywhere(cls, keep: Choice) -> "RecomputeConfig":
        """Return the same choice for all parts."""
        return cls(evoformer=keep, extra_msa=keep, template=keep, structure=keep)

    @property
    def is_settled(self) -> bool:
        return all(getattr(self, field.name) != "auto" for field in fields(self))

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {getattr(self, field.name)}" for field in fields(self))


def recompute(model: AlphaFold, config: RecomputeConfig) -> None:
    """Make training passes of `model` recompute what `config` says, instead of whatever was chosen before.

    Passes without gradient are not changed, nor are parameters or their names.
    """
    if not config.is_settled:
        raise ConfigError(f"what is recomputed must be settled before it is applied; got {config}")
    put_back(model, Recomputed, EachUpdate)
    stacks = [(config.evoformer, model.evoformer.blocks), (config.extra_msa, model.extra_msa_stack.blocks)]
    if model.template_embedder is not None:
        stacks.append((config.template, model.template_embedder.pair.blocks))
    for keep, blocks in stacks:
        for block in blocks:
            if keep != "none":
                replace_method(block, "forward", _STAND_INS[keep])

    structure = model.structure_module
    if config.structure == "block":
        replace_method(structure, "iteration", Recomputed)
        replace_method(structure.angles, "forward", Recomputed)
    elif config.structure == "inputs":
        for module in (structure.attention, structure.transition, structure.angles):
            replace_method(module, "forward", Recomputed)


class Recomputed(StandIn):
    """A method that keeps its arguments only."""

    def __call__(self, *arguments: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.method(*arguments)
        return checkpoint(
            self.method,
            *arguments,
            use_reentrant=False,
            preserve_rng_state=True,
            context_fn=lambda: (nullcontext(), _running_again()),
        )


class EachUpdate(StandIn):
    """A block's forward whose updates each keep their inputs only."""

    def __call__(self, run: Executor, *streams: Any) -> Any:
        return self.method(_Recomputing(run), *streams)


_STAND_INS = {"inputs": EachUpdate, "block": Recomputed}


class _Recomputing(Executor):
    """An executor whose updates are carried out by another one, and again for the gradients; blocks make no streams."""

    def __init__(self, run: Executor) -> None:
        self.run = Recomputed(run)

    def __call__(
        self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None
    ) -> Stream:
        changed: Stream = self.run(update, stream, mask, context_from)
        return changed

    def map_rows(self, make: Callable[..., Tensor], *streams: Stream) -> Stream:
        raise NotImplementedError("blocks make no streams")


_second_run: ContextVar[bool] = ContextVar("_second_run", default=False)


def is_recomputing() -> bool:
    """Return whether what runs now is run a second time, for gradients, and ends once these have what they need."""
    return _second_run.get()


@contextmanager
def _running_again() -> Iterator[None]:
    token = _second_run.set(True)
    try:
        yield
    finally:
        _second_run.reset(token)
