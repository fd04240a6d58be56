"""Losses and gradients of micro-batches by passes that are recorded, and replayed from then on."""

from collections.abc import Sequence

import torch
from torch import Tensor

from helixfold.batch import Batch
from helixfold.execution.graphs import Recordings
from helixfold.losses.config import LossConfig
from helixfold.losses.labels import Labels
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Recycled, nothing_recycled
from helixfold.model.update import Executor
from helixfold.parallel.gradients import GradientReducer


class RecordedGradients:
    """Recordings of all passes of a micro-batch; the last one adds its gradient to those of the parameters.

    One recording serves all recycling iterations without gradients, another one the last iteration with its losses and
    gradients. They change nothing else, so that the sum over micro-batches, the exchange between ranks and the update
    stay outside. Random numbers of dropout follow the seed at every replay.
    """

    def __init__(
        self, model: AlphaFold, run: Executor, gradients: GradientReducer, loss: LossConfig, recordings: Recordings
    ) -> None:
        self._model, self._run_updates, self._gradients, self._loss = model, run, gradients, loss
        self.recordings = recordings

    def __call__(self, recycling_inputs: Sequence[Batch], labels: Labels, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the losses of each sample by name, without gradient. `GradientReducer.collect` must follow."""
        model, run = self._model, self._run_updates

        def recycle(inputs: tuple[Batch, Recycled]) -> Recycled:
            sample, previous = inputs
            return model.fold(run, [sample], previous, dtype).recycled()

        def learn(inputs: tuple[Batch, Recycled, Labels]) -> dict[str, Tensor]:
            sample, previous, truth = inputs
            losses = total_loss(model(run, [sample], previous, dtype), sample, truth, self._loss)
            self._gradients.add(losses.total.mean())
            return losses.terms()

        *earlier, trained = recycling_inputs
        # The first iteration recycles zeros, as the later ones recycle results.
        previous = nothing_recycled(run, model.config, trained.seq_mask, dtype)
        with torch.no_grad():
            for sample in earlier:
                previous = self.recordings.run(("recycling", dtype), recycle, (sample, previous))
        return self.recordings.run(("learning", dtype), learn, (trained, previous, labels))
