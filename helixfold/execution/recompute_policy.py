"""Which recompute a training pass gets: what costs the least time of all that there is memory for."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from helixfold.config import ConfigError, ModelConfig
from helixfold.execution.memory import Estimate, PassSize
from helixfold.execution.policy import RESERVE, gib
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.training_memory import predicted_training
from helixfold.execution.whole import Whole
from helixfold.model.evoformer import EvoformerBlock
from helixfold.model.templates import TemplatePairBlock
from helixfold.ops.dispatch import forced

_PARTS = tuple(field.name for field in fields(RecomputeConfig))
_KEEPS: tuple[Keep, ...] = ("none", "inputs", "block")
# How much of a forward pass is made a second time. An iteration of the structure module has many small steps beside
# its updates; in the other blocks there is next to nothing.
_AGAIN = {"none": 0.0, "inputs": 1.0, "block": 1.0}
_STRUCTURE_AGAIN = _AGAIN | {"block": 2.0}


@dataclass(frozen=True, kw_only=True)
class TrainingNeeds:
    """What a training run takes, beside what is recomputed: `state` are bytes of parameters and optimizer, and
    `samples` go through the network at once.
    """

    model: ModelConfig
    size: PassSize
    samples: int = 1
    state: int = 0

    def peak(self, keep: RecomputeConfig) -> int:
        """Bytes of the whole run, as predicted."""
        return self.state + self.samples * self.estimate(keep).peak

    def needed(self, keep: RecomputeConfig) -> int:
        """The same with a reserve for what predictions are wrong by."""
        return self.state + int(RESERVE * self.samples * self.estimate(keep).peak)

    def estimate(self, keep: RecomputeConfig) -> Estimate:
        return predicted_training(self.model, self.size, keep)


def settled(asked: RecomputeConfig, needs: TrainingNeeds, memory: int) -> RecomputeConfig | None:
    """`asked` with every "auto" replaced, so that all fits into `memory` bytes; None if nothing does.

    Of what fits, that which computes the least a second time is chosen, and of equals what takes the least memory.
    What was asked for by name stays, and is not judged if there is no "auto".
    """
    if asked.is_settled:
        return asked
    work = forward_work(needs.model, needs.size)

    def cost(keep: RecomputeConfig) -> tuple[float, int]:
        again = (
            work[part] * (_STRUCTURE_AGAIN if part == "structure" else _AGAIN)[getattr(keep, part)] for part in _PARTS
        )
        return sum(again), needs.needed(keep)

    fitting = (keep for keep in _settlements(asked) if needs.needed(keep) <= memory)
    return min(fitting, key=cost, default=None)


def least_needed(asked: RecomputeConfig, needs: TrainingNeeds) -> int:
    """Bytes without which nothing that was asked for fits."""
    return min(needs.needed(keep) for keep in _settlements(asked))


def no_room(asked: RecomputeConfig, needs: TrainingNeeds, memory: int) -> ConfigError:
    """Why nothing fits, and what would."""
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


@cache
def forward_work(model: ModelConfig, size: PassSize) -> Mapping[str, int]:
    """Floating-point operations of each part's forward pass; nothing is computed."""
    n, rows = size.residues, size.msa_rows + (size.templates if model.template else 0)

    def stack(blocks: int, block: nn.Module, *shapes: tuple[int, int, int]) -> int:
        streams = [torch.empty(1, *shape) for shape in shapes]
        masks = [torch.empty(each.shape[:3]) for each in streams]
        with FlopCounterMode(display=False) as counter:
            block(Whole(), *streams, *masks)
        return blocks * int(counter.get_total_flops())

    pair, structure = (n, n, model.c_z), model.structure
    with torch.device("meta"), torch.no_grad(), forced("reference"):
        work = {
            name: stack(
                config.blocks,
                EvoformerBlock(config, model.c_z, global_columns=name == "extra_msa").eval(),
                (count, n, config.c_m),
                pair,
            )
            for name, config, count in (
                ("evoformer", model.evoformer, rows),
                ("extra_msa", model.extra_msa, size.extra_rows),
            )
        }
        template = model.template
        work["template"] = (
            stack(size.templates * template.blocks, TemplatePairBlock(template).eval(), (n, n, template.c_t))
            if template is not None
            else 0
        )
    # Logits and what their weights gather; all else is done for each residue and not for each pair.
    points = 3 * (structure.query_points + structure.value_points)
    work["structure"] = 2 * structure.layers * structure.heads * n**2 * (2 * structure.c_scalar + points + model.c_z)
    return work


def _settlements(asked: RecomputeConfig) -> Iterator[RecomputeConfig]:
    choices = [_KEEPS if (given := getattr(asked, part)) == "auto" else (given,) for part in _PARTS]
    for chosen in itertools.product(*choices):
        yield RecomputeConfig(**dict(zip(_PARTS, chosen, strict=True)))


def _most(asked: RecomputeConfig, needs: TrainingNeeds, memory: int, name: str) -> int:
    """The most of a size that would fit, all else being equal; 0 if nothing does."""
    least, most = 0, getattr(needs.size, name) - 1
    while least < most:
        middle = (least + most + 1) // 2
        fits = least_needed(asked, replace(needs, size=replace(needs.size, **{name: middle}))) <= memory
        least, most = (middle, most) if fits else (least, middle - 1)
    return least
