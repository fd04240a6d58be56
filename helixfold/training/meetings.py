"""Steps that ranks make together: their shares of one, joined so that all decide alike, and the meetings of islands.

Islands are ranks that train apart between meetings: this says when they meet, what they agree on then, and what is kept
of each.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from helixfold.optim.config import OuterConfig
from helixfold.optim.flat import FlatOptimizer, StepReport
from helixfold.optim.outer import OuterOptimizer
from helixfold.parallel.islands import make_islands
from helixfold.parallel.mesh import Mesh

# What islands have in common when they have met; the rest of the inner optimiser's state is each one's own.
_COMMON = ("master", "average")


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's share of a step, or, joined, that of some ranks or all."""

    losses: dict[str, float]  # sums over the examples
    names: list[str]  # of their chains
    refused: list[str]  # chains that were drawn and cannot be used, with the reason
    data_seconds: float  # waiting for data
    memory: int  # bytes
    stop: bool  # whether the process was asked to end

    def joined(self, mesh: Mesh) -> "Share":
        """Return all ranks' shares as one, on every rank; what ranks that share a sample all have counts once."""
        shares = [Share(**share) for share in mesh.all_gather(asdict(self))]
        return together(shares[:: mesh.sample.size], shares)


def together(parts: Sequence[Share], shares: Sequence[Share]) -> Share:
    """Join shares of one step, with each part of its batch once."""
    return Share(
        losses={name: sum(part.losses[name] for part in parts) for name in parts[0].losses},
        names=[name for part in parts for name in part.names],
        refused=[text for part in parts for text in part.refused],
        data_seconds=max(share.data_seconds for share in shares),
        memory=max(share.memory for share in shares),
        stop=any(share.stop for share in shares),
    )


@dataclass(frozen=True, kw_only=True)
class MadeStep:
    """A step that an island made, or, together, all islands; there the norm of the gradient is a mean over islands."""

    step: int
    share: Share
    report: StepReport
    seconds: float

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "MadeStep":
        return cls(**{**values, "share": Share(**values["share"]), "report": StepReport(**values["report"])})


def one_step(made: Sequence[MadeStep]) -> MadeStep:
    """Join what all islands made of the same step."""
    if len(made) == 1:
        return made[0]
    shares = [each.share for each in made]
    return MadeStep(
        step=made[0].step,
        share=together(shares, shares),
        report=StepReport(
            gradient_norm=sum(each.report.gradient_norm for each in made) / len(made),
            clipped=sum(each.report.clipped for each in made) / len(made),
            skipped=any(each.report.skipped for each in made),
        ),
        seconds=max(each.seconds for each in made),
    )


class Meetings:
    """The islands of a run. A single one meets after every step, where it has nothing to do and nobody to tell.

    Between meetings nothing goes from island to island, so whatever needs all of them waits for the next: records of
    steps, requests to stop, checkpoints and evaluations. All ranks call the same methods.
    """

    def __init__(self, config: OuterConfig, optimizer: FlatOptimizer, mesh: Mesh) -> None:
        self.islands = make_islands(mesh, config.islands)
        self._config, self._optimizer = config, optimizer
        self._is_first = mesh.is_first
        self._outer = OuterOptimizer(optimizer, config, self.islands.index) if config.islands > 1 else None
        self._steps = 0  # since this was made

    def is_due(self, step: int) -> bool:
        """Return whether islands meet when they have made so many steps."""
        return self._outer is None or step % self._config.every == 0

    def meet(self, made: Sequence[MadeStep]) -> tuple[list[MadeStep], list[str]]:
        """Agree on parameters; return the steps since the last meeting as all made them, and what one should know.

        Every rank gets the same.
        """
        if self._outer is None:
            return list(made), []
        report = self._outer.step(self.islands.all_reduce)
        self._steps += len(made)
        islands = self.islands.all_gather([asdict(each) for each in made])
        merged = [one_step([MadeStep.from_dict(each) for each in steps]) for steps in zip(*islands, strict=True)]
        note = (
            f"islands met: of what they moved, {report.left_out} parts were anomalous and left out; "
            f"{report.rolled_back} modules of the network are where they were"
        )
        return merged, [note] if report.left_out else []

    def gathered(self) -> dict[str, Tensor]:
        """Return the state of all islands, to be saved by the first rank after a meeting; on others it is of no use."""
        return self._state(self.islands.gather)

    def blank(self) -> dict[str, Tensor]:
        """Return tensors for a checkpoint to fill, as `gathered` gives them; then `fill`."""
        return self._state(lambda tensor: torch.empty(self.islands.count, *tensor.shape, dtype=tensor.dtype))

    def _state(self, of_islands: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        state = self._optimizer.tensors()
        if self._outer is None:
            return state
        own = {name: of_islands(tensor) for name, tensor in state.items() if name not in _COMMON}
        return {name: state[name] for name in _COMMON} | own | self._outer.tensors()

    def fill(self, state: dict[str, Tensor]) -> None:
        """Go on from the state that a checkpoint has filled in."""
        if self._outer is not None:
            for name, tensor in self._optimizer.tensors().items():
                if name not in _COMMON:
                    tensor.copy_(state[name][self.islands.index])
            self._outer.restored()
        self._optimizer.restored()

    def told(self) -> Iterator[str]:
        """Say what went between islands, in a sentence, on the first rank."""
        if self._outer is None or not self._is_first or not self._steps:
            return
        sent, collected = self.islands.sent, self.islands.gathered
        every_step = self._steps * self.islands.sent_by_sum(self._optimizer.gradient_sum.nbytes)
        yield (
            f"each of {self.islands.count} islands sent {_mib(sent)} in {self._steps} steps to train, and to the first "
            f"{_mib(collected)} for checkpoints; to sum gradients in every step would have been "
            f"{_mib(every_step)}, {every_step / (sent + collected):.1f} times that"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
