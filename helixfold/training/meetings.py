"""Islands of ranks that train apart: when they meet, what they agree on then, and what is kept of each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from helixfold.optim.config import OuterConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.optim.outer import OuterOptimizer
from helixfold.parallel.islands import divide
from helixfold.parallel.mesh import Mesh
from helixfold.training.share import MadeStep, one_step

# What islands have in common when they have met; the rest of the inner optimiser's state is each one's own.
_COMMON = ("master", "average")


class Meetings:
    """The islands of a run. A single one meets after every step, where it has nothing to do and nobody to tell.

    Between meetings nothing goes from island to island, so whatever needs all of them waits for the next: records of
    steps, requests to stop, checkpoints and evaluations. All ranks call the same methods.
    """

    def __init__(self, config: OuterConfig, optimizer: FlatOptimizer, mesh: Mesh) -> None:
        self.islands = divide(mesh, config.islands)
        self._config, self._optimizer = config, optimizer
        self._is_first = mesh.is_first
        self._outer = OuterOptimizer(optimizer, config, self.islands.index) if config.islands > 1 else None
        self._steps = 0  # since this was made

    def is_due(self, step: int) -> bool:
        """Whether islands meet when they have made so many steps."""
        return self._outer is None or step % self._config.every == 0

    def meet(self, made: Sequence[MadeStep]) -> tuple[list[MadeStep], list[str]]:
        """Agree on parameters; the steps since the last meeting as all islands made them, and what one should know.

        The same on every rank.
        """
        if self._outer is None:
            return list(made), []
        report = self._outer.step(self.islands.sum_)
        self._steps += len(made)
        islands = self.islands.gather([asdict(each) for each in made])
        merged = [one_step([MadeStep.from_dict(each) for each in steps]) for steps in zip(*islands, strict=True)]
        note = (
            f"islands met: of what they moved, {report.left_out} parts were anomalous and left out; "
            f"{report.rolled_back} modules of the network are where they were"
        )
        return merged, [note] if report.left_out else []

    def gathered(self) -> dict[str, Tensor]:
        """The state of all islands, to be saved by the first rank after a meeting; on others it is of no use."""
        return self._state(self.islands.stack)

    def blank(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint to fill, as `gathered` gives them; then `fill`."""
        return self._state(lambda tensor: torch.empty(self.islands.count, *tensor.shape, dtype=tensor.dtype))

    def _state(self, of_islands: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        state = self._optimizer.tensors()
        if self._outer is None:
            return state
        own = {name: of_islands(tensor) for name, tensor in state.items() if name not in _COMMON}
        return {name: state[name] for name in _COMMON} | own | self._outer.tensors()

    def fill(self, state: dict[str, Tensor]) -> None:
        """Go on from these."""
        if self._outer is not None:
            for name, tensor in self._optimizer.tensors().items():
                if name not in _COMMON:
                    tensor.copy_(state[name][self.islands.index])
            self._outer.restored()
        self._optimizer.restored()

    def told(self) -> Iterator[str]:
        """What went between islands, in a sentence, on the first rank."""
        if self._outer is None or not self._is_first or not self._steps:
            return
        sent, collected = self.islands.sent, self.islands.collected
        every_step = self._steps * self.islands.sent_by_sum(self._optimizer.gradient_sum.nbytes)
        yield (
            f"each of {self.islands.count} islands sent {_mib(sent)} in {self._steps} steps to train, and to the first "
            f"{_mib(collected)} for checkpoints; to sum gradients in every step would have been "
            f"{_mib(every_step)}, {every_step / (sent + collected):.1f} times that"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
