"""Gather the statistics of a step from all ranks, and synchronise islands with the outer optimizer (DiLoCo).

Islands are groups of ranks that train separately between synchronisations. Ranks of one island share every step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from helixfold.losses.chain_metrics import METRICS
from helixfold.optim.config import OuterConfig
from helixfold.optim.flat import FlatOptimizer, StepReport
from helixfold.optim.outer import OuterOptimizer
from helixfold.parallel.islands import make_islands
from helixfold.parallel.mesh import Mesh
from helixfold.report.page import counted

# A synchronisation makes this optimizer state equal on all islands. The remaining state differs between islands.
_EQUAL_STATE = ("master", "average")


@dataclass(frozen=True, kw_only=True)
class StepStats:
    """Statistics of one training step, on one rank or on several ranks together.

    `losses` are sums over the examples, by name. `metrics` has, by name, the sum over the examples that have the
    metric, and the number of these. `names` are the names of the examples' chains, and `refused` messages about chains
    that were drawn but cannot be used. `data_seconds` is the time spent waiting for data, and `memory` the peak memory
    of a rank in bytes. `stop` is true if a signal requested a process to stop.
    """

    losses: dict[str, float]
    names: list[str]
    refused: list[str]
    data_seconds: float
    memory: int
    stop: bool
    metrics: dict[str, tuple[float, int]] = field(default_factory=dict)

    def mean_metrics(self) -> dict[str, float]:
        """Return the mean of each metric over the examples that have it; metrics without examples are left out."""
        return {name: total / count for name, (total, count) in self.metrics.items() if count}

    def gathered(self, mesh: Mesh) -> "StepStats":
        """Gather the statistics of all ranks of a mesh and return them merged, on every rank.

        An example that several ranks share counts once. See `merged_stats`.
        """
        ranks = [StepStats(**values) for values in mesh.all_gather(asdict(self))]
        return merged_stats(ranks[:: mesh.sample.size], ranks)


def summed(values: Mapping[str, Sequence[Tensor]]) -> tuple[dict[str, float], dict[str, tuple[float, int]]]:
    """Return the sum of each loss over a rank's examples, and for each metric the sum and number of finite values.

    `values` has, by the names of losses and of `METRICS`, tensors with one number per example. The CPU waits for the
    device only once.
    """
    stacked = torch.stack([torch.cat(list(each)) for each in values.values()]).cpu().double()
    by_name = dict(zip(values, stacked, strict=True))
    return (
        {name: float(each.sum()) for name, each in by_name.items() if name not in METRICS},
        {name: (float(each.nansum()), int(each.isfinite().sum())) for name, each in by_name.items() if name in METRICS},
    )


def merged_stats(examples: Sequence[StepStats], ranks: Sequence[StepStats]) -> StepStats:
    """Merge statistics of one step: losses, metrics, names and messages from `examples`, the rest from `ranks`.

    Losses and metrics are summed. Waiting time and memory are the maximum over the ranks, and `stop` is true if it is
    on any rank.
    """
    return StepStats(
        losses={name: sum(stats.losses[name] for stats in examples) for name in examples[0].losses},
        names=[name for stats in examples for name in stats.names],
        refused=[text for stats in examples for text in stats.refused],
        data_seconds=max(stats.data_seconds for stats in ranks),
        memory=max(stats.memory for stats in ranks),
        stop=any(stats.stop for stats in ranks),
        metrics={
            name: (sum(stats.metrics[name][0] for stats in examples), sum(stats.metrics[name][1] for stats in examples))
            for name in examples[0].metrics
        },
    )


@dataclass(frozen=True, kw_only=True)
class CompletedStep:
    """Results of a step on one island, or on all islands with the mean of their gradient norms.

    `step` is its index, `report` is from the optimizer, and `seconds` is the duration of the step.
    """

    step: int
    stats: StepStats
    report: StepReport
    seconds: float

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "CompletedStep":
        """Create a completed step from the output of `dataclasses.asdict` for one."""
        return cls(**{**values, "stats": StepStats(**values["stats"]), "report": StepReport(**values["report"])})


def merged_steps(islands: Sequence[CompletedStep]) -> CompletedStep:
    """Merge the results of all islands for the same step.

    Gradient norms and clipped fractions are averaged. The step counts as skipped if one island skipped it, and its
    duration is the longest.
    """
    stats = [step.stats for step in islands]
    reports = [step.report for step in islands]
    return CompletedStep(
        step=islands[0].step,
        stats=merged_stats(stats, stats),
        report=StepReport(
            gradient_norm=sum(report.gradient_norm for report in reports) / len(reports),
            clipped=sum(report.clipped for report in reports) / len(reports),
            skipped=any(report.skipped for report in reports),
        ),
        seconds=max(step.seconds for step in islands),
    )


class OuterSync:
    """Synchronisation of a run's islands every few steps; with a single island it does nothing.

    Islands exchange nothing between synchronisations, so step records, stop requests, checkpoints and evaluations wait
    for the next one. All ranks call the same methods.
    """

    def __init__(self, config: OuterConfig, optimizer: FlatOptimizer, mesh: Mesh) -> None:
        self.islands = make_islands(mesh, config.islands)
        self._config, self._optimizer = config, optimizer
        self._is_first = mesh.is_first
        self._outer = OuterOptimizer(optimizer, config, self.islands.index) if config.islands > 1 else None
        self._steps = 0  # synchronised by this object

    def is_due(self, step: int) -> bool:
        """Return whether islands synchronise after this number of steps; always true for a single island."""
        return self._outer is None or step % self._config.every == 0

    def synchronise(self, completed: Sequence[CompletedStep]) -> tuple[list[CompletedStep], list[str]]:
        """Make the parameters of all islands equal, and merge the results of their steps.

        `completed` are this island's steps since the last synchronisation. Return these steps with the results of all
        islands, and messages for the log; both are the same on every rank. With a single island, return the steps
        unchanged.
        """
        if self._outer is None:
            return list(completed), []
        report = self._outer.step(self.islands.all_reduce)
        self._steps += len(completed)
        islands = self.islands.all_gather([asdict(step) for step in completed])
        merged = [merged_steps([*map(CompletedStep.from_dict, steps)]) for steps in zip(*islands, strict=True)]
        message = (
            f"islands synchronised: {report.left_out} anomalous updates of modules were left out; "
            f"{report.rolled_back} modules of the network were not changed"
        )
        return merged, [message] if report.left_out or report.rolled_back else []

    def gathered_state(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint, by name; only the first rank's return value is complete.

        With several islands, state that differs between islands is stacked on the CPU. With one, these are the
        optimizer's own tensors.
        """
        return self._state(self.islands.gather)

    def empty_state(self) -> dict[str, Tensor]:
        """Return tensors with the shapes of `gathered_state`, to restore a checkpoint into.

        State that differs between islands is uninitialised. All other tensors are the optimizers' own.
        """
        return self._state(lambda tensor: torch.empty(self.islands.count, *tensor.shape, dtype=tensor.dtype))

    def _state(self, of_islands: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint; `of_islands` collects a tensor from all islands."""
        state = self._optimizer.tensors()
        if self._outer is None:
            return state
        own = {name: of_islands(tensor) for name, tensor in state.items() if name not in _EQUAL_STATE}
        return {name: state[name] for name in _EQUAL_STATE} | own | self._outer.tensors()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from the tensors of `empty_state` after a checkpoint was restored into them."""
        if self._outer is not None:
            for name, tensor in self._optimizer.tensors().items():
                if name not in _EQUAL_STATE:
                    tensor.copy_(state[name][self.islands.index])
            self._outer.restored()
        self._optimizer.restored()

    def communication_summary(self) -> list[str]:
        """Return, on the first rank, a sentence about the bytes sent between islands; empty if nothing was sent."""
        if self._outer is None or not self._is_first or not self._steps:
            return []
        sent, collected = self.islands.sent, self.islands.gathered
        every_step = self._steps * self.islands.all_reduce_bytes(self._optimizer.gradient_sum.nbytes)
        return [
            f"each of {self.islands.count} islands sent {_mib(sent)} in {counted(self._steps, 'step')} for training, "
            f"and {_mib(collected)} to the first island for checkpoints; summing gradients in every step would have "
            f"sent {_mib(every_step)}, {every_step / (sent + collected):.1f} times that"
        ]


def _mib(size: int) -> str:
    """Return bytes as text in MiB."""
    return f"{size / 2**20:,.1f} MiB"
