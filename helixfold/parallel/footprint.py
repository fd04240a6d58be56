"""What memory each rank of a layout takes: the training memory model, with streams cut into parts."""

from dataclasses import dataclass, field, fields

from helixfold.config import ModelConfig, StackConfig
from helixfold.execution.block_memory import BlockMemory
from helixfold.execution.memory import Estimate, PassSize
from helixfold.execution.recompute import Choice, RecomputeConfig
from helixfold.execution.recompute_policy import TrainingNeeds
from helixfold.execution.training_memory import evoformer_memory, extra_msa_memory
from helixfold.parallel.layout import Layout


@dataclass(frozen=True, kw_only=True)
class SharedNeeds(TrainingNeeds):
    """What each rank takes where a sample is shared by several, as the layout says.

    Parameters and what the optimizer has are on every rank. What the stacks keep and need is divided, but for the
    contexts that each rank gathers whole; all else is taken to be as on a rank that has a sample for itself.
    """

    layout: Layout = field(default_factory=Layout)

    def estimate(self, keep: RecomputeConfig) -> Estimate:
        stages = dict(super().estimate(keep).stages)
        saved = 0.0  # of what the stages so far keep
        for name, peak in stages.items():
            working = 0.0
            if (stack := _stack(name, self.model, self.size, keep)) is not None:
                kept, working = stack.saved(self.model.c_z, self.size, self.layout)
                saved += stack.config.blocks * kept
            stages[name] = int(peak - saved - working)
        return Estimate(stages=stages, peak=max(stages.values()))


def shared(needs: TrainingNeeds, layout: Layout) -> SharedNeeds:
    """What a rank of that layout takes of what a rank alone would."""
    return SharedNeeds(**{each.name: getattr(needs, each.name) for each in fields(TrainingNeeds)}, layout=layout)


@dataclass(frozen=True, kw_only=True)
class _Stack:
    """A stack with its memory on one rank."""

    config: StackConfig
    rows: int
    keep: Choice
    block: BlockMemory

    def saved(self, c_z: int, size: PassSize, layout: Layout) -> tuple[float, float]:
        """Bytes of each block that a rank need not keep, and of those that it need not have beside."""
        stack, rows, n, w = self.config, self.rows, size.residues, size.dtype.itemsize
        operand = n * n * stack.c_triangle * w
        contexts = 2 * operand + n * n * (stack.msa_heads + 2 * stack.pair_heads) * w + rows * n * stack.c_outer * w
        kept = self.block.kept - (contexts if self.keep == "none" else 0)
        # The branch that has less to keep leaves the rest to the other; both have the pair stream of the beginning.
        away = min(3 * rows * n * stack.c_m * w, 5 * n * n * c_z * w) if layout.bp > 1 and self.keep != "block" else 0
        # All contexts where a block is made anew, else the largest and its gradient.
        gathered = contexts if self.keep == "block" else 2 * operand
        others = 1 - 1 / layout.dap
        return away / layout.dap + kept * others, max(0, self.block.working - gathered) * others


def _stack(stage: str, model: ModelConfig, size: PassSize, keep: RecomputeConfig) -> _Stack | None:
    """The stack that a stage of the memory model stands for, if it is one."""
    if stage == "extra MSA":
        block = extra_msa_memory(model, size, keep.extra_msa)
        return _Stack(config=model.extra_msa, rows=size.extra_rows, keep=keep.extra_msa, block=block)
    if stage == "Evoformer":
        rows = size.msa_rows + (size.templates if model.template else 0)
        block = evoformer_memory(model, size, keep.evoformer)
        return _Stack(config=model.evoformer, rows=rows, keep=keep.evoformer, block=block)
    return None
