"""Choice of what a training pass recomputes: the fastest policy that fits into memory.

In this module `asked` are the settings of the user, in which a choice may be "auto", and a `keep` is a recompute
policy, "none", "operators", "inputs" or "block" for each part (`RecomputeConfig`).
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

import torch

from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.model.config import ConfigError
from helixfold.planning.size import gib
from helixfold.planning.training import TrainingNeeds, part_costs

# Names of the parts of the network that have a policy, and the policies from the fastest to the one with least memory.
CHOICES = tuple(field.name for field in fields(RecomputeConfig))
CHECKPOINT_POLICIES: tuple[Keep, ...] = ("none", "operators", "inputs", "block")
# The share of the forward pass's products that each policy computes again, by estimate: on a CPU about half of them are
# of results that operators keep with "none", and in the one update whose gradients are computed with "inputs".
_AGAIN_ON_CPU: Mapping[Keep, float] = {"none": 0, "operators": 0.5, "inputs": 1, "block": 1.5}
_AGAIN: Mapping[Keep, float] = {"none": 0, "operators": 0, "inputs": 1, "block": 1}
# Floating-point operations in the time of launching an operator that computes next to nothing, taken for any device.
_OPERATIONS_OF_A_CALL = 10**6


def settled(asked: RecomputeConfig, needs: TrainingNeeds, memory: int) -> RecomputeConfig | None:
    """Return `asked` with every "auto" replaced so that the run fits into `memory` bytes; None if it cannot.

    Among policies that fit, the one that recomputes the least is chosen, and of equals the one that needs the least
    memory. Other settings than "auto" stay; without an "auto" they are returned even if they do not fit.
    """
    if asked.is_settled:
        return asked
    once = part_costs(needs.model, needs.size, "none", needs.card, plain=True)
    # Without a layout, these are the passes whose memory is looked at.
    calls = {keep: part_costs(needs.model, needs.size, keep, needs.card) for keep in CHECKPOINT_POLICIES}
    shares = _AGAIN_ON_CPU if needs.card.kind == "cpu" else _AGAIN

    def cost(keep: RecomputeConfig) -> tuple[float, int]:
        again = 0.0
        for part in CHOICES:
            chosen = getattr(keep, part)
            if chosen != "none":
                more = calls[chosen][part].backward.launches - calls["none"][part].backward.launches
                again += shares[chosen] * once[part].forward.products + _OPERATIONS_OF_A_CALL * more
        return again, needs.needed(keep)

    fitting = (keep for keep in _settlements(asked) if needs.needed(keep) <= memory)
    return min(fitting, key=cost, default=None)


def least_needed(asked: RecomputeConfig, needs: TrainingNeeds) -> int:
    """Return the bytes that the policy with the least memory needs, among those that `asked` allows."""
    return min(needs.needed(keep) for keep in _settlements(asked))


def no_room(asked: RecomputeConfig, needs: TrainingNeeds, memory: int) -> ConfigError:
    """Return the error for a run that does not fit into `memory` bytes; the text says what would fit."""
    size = needs.size
    least = least_needed(asked, needs)
    remedies = []
    short = replace(needs, size=replace(size, dtype=torch.bfloat16))
    if size.dtype != torch.bfloat16 and least_needed(asked, short) <= memory:
        remedies.append("dtype=bfloat16")
    if size.extra_rows > 1 and (rows := _most(asked, needs, memory, "extra_rows")):
        remedies.append(f"example.sampling.max_extra_msa={rows}")
    if size.residues > 1 and (residues := _most(asked, needs, memory, "residues")):
        remedies.append(f"example.crop_size={residues}")
    remedies.append(f"{gib(least)} of memory")
    return ConfigError(
        f"a training pass of {size.residues} residues needs {gib(least)} whatever is recomputed, and there are "
        f"{gib(memory)}; what would fit: {', or '.join(remedies)}"
    )


def _settlements(asked: RecomputeConfig) -> Iterator[RecomputeConfig]:
    choices = [CHECKPOINT_POLICIES if (given := getattr(asked, part)) == "auto" else (given,) for part in CHOICES]
    for chosen in itertools.product(*choices):
        yield RecomputeConfig(**dict(zip(CHOICES, chosen, strict=True)))


def _most(asked: RecomputeConfig, needs: TrainingNeeds, memory: int, name: str) -> int:
    """Return about the most that a field of `needs.size` may be to fit, all else being equal; 0 if nothing fits."""
    # The least for the whole size is nearly so for parts of it, and others take long to count.
    keep = min(_settlements(asked), key=needs.needed)
    fits, too_large = 0, getattr(needs.size, name)
    while too_large - fits > max(1, fits // 8):
        middle = (fits + too_large) // 2
        if replace(needs, size=replace(needs.size, **{name: middle})).needed(keep) <= memory:
            fits = middle
        else:
            too_large = middle
    return fits
