"""Forward pass and losses of one micro-batch: recycling without gradients, then the iteration that is trained.

In a training step they are launched kernel by kernel, or replayed as recorded before.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from data_pipeline.training_sets.chain_sampling import StreamUse, random_stream
from helixfold.execution.device import dtype_on
from helixfold.execution.graphs import GraphRecorder, Recordings
from helixfold.execution.iteration_runner import graphs_unsupported_reason
from helixfold.losses.config import LossConfig
from helixfold.losses.labels import Labels
from helixfold.losses.total import Losses, total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.outputs import Outputs, Recycled, nothing_recycled
from helixfold.model.update import Executor
from helixfold.ops.device_properties import DeviceProperties, properties_of
from helixfold.ops.dispatch import first_reason
from helixfold.parallel.gradients import GradientReducer
from helixfold.parallel.mesh import Mesh
from helixfold.training.config import TrainingConfig
from helixfold.training.loader import TrainingBatch


def forward(model: AlphaFold, batch: TrainingBatch, run: Executor, dtype: torch.dtype) -> Outputs:
    """Return the outputs of the last recycling iteration; the earlier ones have no gradients.

    AlphaFold 2, Suppl. Alg. 31.
    """
    *earlier, last = batch.recycling_inputs
    return model(run, [last], model.recycle(run, ([sample] for sample in earlier), dtype), dtype)


def forward_losses(model: AlphaFold, batch: TrainingBatch, config: TrainingConfig, run: Executor) -> Losses:
    """Return the losses of one micro-batch, with gradients through its last recycling iteration only.

    Dropout is seeded by `seed_dropout`.
    """
    seed_dropout(config, batch)
    last = batch.recycling_inputs[-1]
    outputs = forward(model, batch, run, dtype_on(config.dtype, properties_of(last.aatype.device)))
    return total_loss(outputs, last, batch.labels, config.loss)


def seed_dropout(config: TrainingConfig, batch: TrainingBatch) -> None:
    """Seed the random numbers of dropout by the run's seed, the step and the micro-batch's index.

    So they are the same on whatever rank, and checkpoints need no random state.
    """
    torch.manual_seed(int(random_stream(config.seed, StreamUse.DROPOUT, batch.step, batch.micro_batch).integers(2**63)))


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
        dtype = dtype_on(self._config.dtype, properties_of(batch.labels.aatype.device))
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


def refusal_of_recording(config: TrainingConfig, properties: DeviceProperties, wanted: str, ranks: int) -> str | None:
    """Return why training steps are not recorded, on a card and with so many ranks that share a sample."""
    return graphs_unsupported_reason(properties, wanted, ranks) or first_reason(
        # A recording would permute the chains of every complex as it did those of the one that was recorded.
        (config.model.method == "multimer", "equal chains of complexes are assigned by the processor"),
        (not config.example.fixed_shapes, "examples have shapes of their own (example.fixed_shapes=false)"),
    )


def step_recordings(
    config: TrainingConfig, mesh: Mesh, wanted: str, say: Callable[[str], object]
) -> tuple[Recordings | None, list[str]]:
    """Return new recordings for a run, or None if it launches its steps, and what is to be said of that on a GPU."""
    properties = properties_of(mesh.device)
    refusal = refusal_of_recording(config, properties, wanted, mesh.sample.size)
    told = "recorded as CUDA graphs, and replayed" if refusal is None else f"launched: {refusal}"
    notes = [f"training steps are {told}"] if properties.kind == "cuda" and wanted != "off" else []
    return (None, notes) if refusal else (Recordings(GraphRecorder(mesh.device), say=say), notes)
