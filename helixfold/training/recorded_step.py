"""Micro-batches of a training step, launched kernel by kernel or replayed as recorded before."""

from collections.abc import Callable

from torch import Tensor

from helixfold.execution.device import dtype_on
from helixfold.execution.graphs import GraphRecorder, Recordings
from helixfold.execution.recorded_passes import refusal_of_graphs
from helixfold.model.alphafold import AlphaFold
from helixfold.model.update import Executor
from helixfold.ops.card import Card, card_of
from helixfold.ops.dispatch import first_reason
from helixfold.parallel.gradients import GradientReducer
from helixfold.parallel.mesh import Mesh
from helixfold.training.config import TrainingConfig
from helixfold.training.loader import TrainingBatch
from helixfold.training.recorded_gradients import RecordedGradients
from helixfold.training.step import forward_losses, seed_dropout


class MicroBatchStep:
    """Compute the losses of a micro-batch, and add their gradient to the sum over the step.

    With `recordings` all passes are recorded and replayed. Whatever is in the way of that, such as too little memory,
    ends it, and the rest of the run is launched.
    """

    def __init__(
        self,
        model: AlphaFold,
        config: TrainingConfig,
        run: Executor,
        gradients: GradientReducer,
        recordings: Recordings | None = None,
    ) -> None:
        self._model, self._config, self._run_updates, self._gradients = model, config, run, gradients
        self._recorded: RecordedGradients | None = None
        if recordings is not None:
            self._recorded = RecordedGradients(model, run, gradients, config.loss, recordings)

    def __call__(self, batch: TrainingBatch, *, last: bool) -> dict[str, Tensor]:
        """Return losses and metrics of each sample by name, without gradient.

        `last` says that the rank's step ends with this micro-batch.
        """
        if self._recorded is None:
            losses = forward_losses(self._model, batch, self._config, self._run_updates)
            self._gradients.backward(losses.total.mean(), last=last)
            return losses.terms() | losses.metrics
        seed_dropout(self._config, batch)
        dtype = dtype_on(self._config.dtype, card_of(batch.labels.aatype.device))
        terms = self._recorded(batch.recycling_inputs, batch.labels, dtype)
        self._gradients.collect(last=last)
        if self._recorded.recordings.has_failed:
            self.clear()
            self._recorded = None
        return terms

    def clear(self) -> None:
        """Give the memory of all recordings back."""
        if self._recorded is not None:
            self._recorded.recordings.clear()


def refusal_of_recording(config: TrainingConfig, card: Card, wanted: str, ranks: int) -> str | None:
    """Return why training steps are not recorded, on a card and with so many ranks that share a sample."""
    return refusal_of_graphs(card, wanted, ranks) or first_reason(
        # A recording would permute the chains of every complex as it did those of the one that was recorded.
        (config.model.method == "multimer", "equal chains of complexes are assigned by the processor"),
        (not config.example.fixed_shapes, "examples have shapes of their own (example.fixed_shapes=false)"),
    )


def step_recordings(
    config: TrainingConfig, mesh: Mesh, wanted: str, say: Callable[[str], object]
) -> tuple[Recordings | None, list[str]]:
    """Return new recordings for a run, or None if it launches its steps, and what is to be said of that on a GPU."""
    card = card_of(mesh.device)
    refusal = refusal_of_recording(config, card, wanted, mesh.sample.size)
    told = "recorded as CUDA graphs, and replayed" if refusal is None else f"launched: {refusal}"
    notes = [f"training steps are {told}"] if card.kind == "cuda" and wanted != "off" else []
    return (None, notes) if refusal else (Recordings(GraphRecorder(mesh.device), say=say), notes)
