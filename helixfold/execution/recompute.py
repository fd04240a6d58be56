"""Activation checkpointing: choose what each part of a model recomputes in the backward pass.

A checkpointed part saves only its inputs and dropout masks, and the backward pass runs it a second time. The autograd
graph is the same, so losses and gradients are equal bit for bit. The model's code is not changed.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import Config, ConfigError
from helixfold.model.update import ContextInput, Executor, Stream, Update
from helixfold.ops.recomputed import Intermediates, intermediates

# Choices of what a part of the network recomputes in the backward pass, without and with "auto"; see
# `RecomputeConfig`.
Keep = Literal["none", "operators", "inputs", "block"]
Choice = Literal["auto", "none", "operators", "inputs", "block"]


@dataclass(kw_only=True)
class _Run:
    """The first or second run of a checkpointed part; the second one uses the dropout masks of the first."""

    masks: list[Tensor | None]
    is_second: bool = False


_run: ContextVar[_Run | None] = ContextVar("_run", default=None)


class MethodReplacement:
    """Base of callables that replace a method of a module; `method` is the original one."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method


def replace_method(module: nn.Module, name: str, make: Callable[[Callable[..., Any]], MethodReplacement]) -> None:
    """Replace a method of this module only, not of its class, by `make(method)`."""
    # Python looks up attributes of the module before attributes of its class.
    setattr(module, name, make(getattr(module, name)))


def restore_methods(model: nn.Module) -> None:
    """Restore all replaced methods in the modules of a model."""
    for module in model.modules():
        for name in [name for name, value in vars(module).items() if isinstance(value, MethodReplacement)]:
            delattr(module, name)


@dataclass(frozen=True, kw_only=True)
class RecomputeConfig(Config):
    """Checkpoint policy: what each part of the network recomputes in the backward pass.

    "none" recomputes nothing that takes long. With "operators", operators on a CPU also recompute their intermediate
    results (`ops.recomputed`); on a GPU both are the same. "inputs" saves only the inputs of each update, and "block"
    only the inputs of each block. "auto" means the fastest of these that fits into memory, which is chosen before a run
    begins (`planning.estimate`).

    A block is a block of the Evoformer, of the extra-MSA stack or of the template pair stack, or an iteration of the
    structure module, whose updates are its attention and transition. "block" saves the MSA and pair streams once per
    block, "inputs" one stream per update, which is about five times the memory. While the gradients of a block are
    computed, "block" needs the memory of "operators" for this block, "inputs" the memory of "none" for one update.

    Training runs have "auto". The defaults of this class are "block" for the stacks, as in AlphaFold 2 (Suppl. Sec.
    1.11.8), and "inputs" for the structure module: nearly all of an iteration's memory is inside its attention, so
    running the small steps around it twice is not worth it.
    """

    evoformer: Choice = "block"  # Evoformer stack
    extra_msa: Choice = "block"  # extra-MSA stack
    template: Choice = "block"  # template pair stack
    structure: Choice = "inputs"  # structure module

    @classmethod
    def everywhere(cls, keep: Choice) -> "RecomputeConfig":
        """Return settings with the same choice for all parts of the network."""
        return cls(evoformer=keep, extra_msa=keep, template=keep, structure=keep)

    @property
    def is_settled(self) -> bool:
        """Whether no part has the choice "auto"."""
        return all(getattr(self, field.name) != "auto" for field in fields(self))

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {getattr(self, field.name)}" for field in fields(self))


def recompute(model: AlphaFold, config: RecomputeConfig) -> None:
    """Apply a checkpoint policy to the training of `model`.

    Inference, parameters and their names are not changed. Call this once; `parallelize` also replaces earlier settings.
    Raise `ConfigError` if a setting is "auto".
    """
    if not config.is_settled:
        choices = "none, operators, inputs or block"
        raise ConfigError(f"a checkpoint policy with auto cannot be applied: got {config}; choose {choices}")
    stacks = [(config.evoformer, model.evoformer.blocks), (config.extra_msa, model.extra_msa_stack.blocks)]
    if model.template_embedder is not None:
        stacks.append((config.template, model.template_embedder.pair.blocks))
    for keep, blocks in stacks:
        for block in blocks:
            if keep != "none":
                replace_method(block, "forward", _REPLACEMENTS[keep])
            if keep in ("inputs", "block"):
                for update in block.modules():
                    if isinstance(update, Update) and update.dropout_rate > 0:
                        replace_method(update, "dropout_mask", ReusedDropoutMask)

    structure = model.structure_module
    if config.structure == "block":
        replace_method(structure, "iteration", Recomputed)
        replace_method(structure.angles, "forward", Recomputed)
    elif config.structure == "inputs":
        for module in (structure.attention, structure.transition, structure.angles):
            replace_method(module, "forward", Recomputed)


class WithRecomputingOperators(MethodReplacement):
    """Replacement of a method whose operators save only their arguments."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with intermediates("recomputed"):
            return self.method(*arguments, **named)


class Recomputed(MethodReplacement):
    """Replacement of a method that saves only its arguments and dropout masks and runs again in the backward pass.

    Without gradients, the method runs as usual.
    """

    # How operators treat intermediate results in the first and in the second run.
    in_runs: tuple[Intermediates, Intermediates] = ("recomputed", "recomputed")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.method(*arguments, **named)
        return checkpoint(
            self.method,
            *arguments,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=self._both_runs,
            **named,
        )

    def _both_runs(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of the first and the second run."""
        masks: list[Tensor | None] = []
        first_mode, second_mode = self.in_runs
        return _running(_Run(masks=masks), first_mode), _running(_Run(masks=masks, is_second=True), second_mode)


class RecomputedUpdate(Recomputed):
    """Replacement of a method that runs one update: in the second run its operators save intermediate results."""

    in_runs = ("replaced", "kept")


class ReusedDropoutMask(MethodReplacement):
    """Replacement of an update's `dropout_mask` that returns the first run's mask in the second run.

    A mask is shared by all rows or columns of a stream, so it takes little memory. Restoring the state of the random
    generator would take none, but is not possible while a CUDA graph is captured.
    """

    def __call__(self, *arguments: Any, **named: Any) -> Tensor | None:
        run = _run.get()
        if run is not None and run.is_second:
            return run.masks.pop(0)
        mask: Tensor | None = self.method(*arguments, **named)
        if run is not None:
            run.masks.append(mask)
        return mask


class EachUpdate(MethodReplacement):
    """Replacement of a block's `forward` in which every update saves only its inputs for the backward pass."""

    def __call__(self, run: Executor, *streams: Any) -> Any:
        return self.method(_Recomputing(run), *streams)


_REPLACEMENTS = {"operators": WithRecomputingOperators, "inputs": EachUpdate, "block": Recomputed}


class _Recomputing(Executor):
    """Executor that runs updates with another executor, and runs them again in the backward pass."""

    def __init__(self, run: Executor) -> None:
        self.run = RecomputedUpdate(run)

    def __call__(
        self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None
    ) -> Stream:
        """Run an update with the other executor, so that the backward pass runs it again."""
        changed: Stream = self.run(update, stream, mask, context_from)
        return changed

    def map_rows(self, make: Callable[..., Tensor], *streams: Stream) -> Stream:
        raise NotImplementedError("blocks make no streams")


def is_recomputing() -> bool:
    """Return whether the calling code is being run a second time, in a backward pass.

    Such a run stops as soon as the backward pass has all the tensors that it needs.
    """
    run = _run.get()
    return run is not None and run.is_second


@contextmanager
def _running(run: _Run, operators: Intermediates) -> Iterator[None]:
    """Make `run` the current run, and let operators treat intermediate results as `operators` inside."""
    token = _run.set(run)
    try:
        with intermediates(operators):
            yield
    finally:
        _run.reset(token)
