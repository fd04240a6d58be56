"""Forward pass, losses and gradients of one micro-batch: recycling without gradients, then one iteration with them.

A training step runs eagerly, or is captured as CUDA graphs and replayed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from data_pipeline.training_sets.chain_sampling import StreamUse, random_stream
from helixfold.execution.device import dtype_on
from helixfold.execution.graphs import GraphCache, GraphCapturer
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
    """Return the outputs of the last recycling iteration; the earlier ones are computed without gradients.

    `run` is the executor, and `dtype` the trunk's precision. AlphaFold 2, Suppl. Alg. 31.
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
    """Seed PyTorch's random numbers, for dropout, with the run's seed, the step and the micro-batch's index.

    They are the same on every rank, and checkpoints need no random state.
    """
    torch.manual_seed(int(random_stream(config.seed, StreamUse.DROPOUT, batch.step, batch.micro_batch).integers(2**63)))


class CapturedGradients:
    """The recycling iterations of a micro-batch as two CUDA graphs: for iterations without gradients, and for the last.

    The graph of the last iteration also computes the losses and the gradients of this micro-batch. Gradients are summed
    over micro-batches and ranks, and parameters updated, outside the graphs. Dropout differs at every replay and
    depends on the seed.
    """

    def __init__(
        self, model: AlphaFold, run: Executor, gradients: GradientReducer, loss: LossConfig, graphs: GraphCache
    ) -> None:
        self._model, self._run_updates, self._gradients, self._loss = model, run, gradients, loss
        self.graphs = graphs

    def __call__(self, recycling_inputs: Sequence[Batch], labels: Labels, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the losses of each sample by name, without gradients, and compute the gradients of the parameters.

        Call `GradientReducer.collect` afterwards.
        """
        model, run = self._model, self._run_updates

        def recycle(inputs: tuple[Batch, Recycled]) -> Recycled:
            sample, previous = inputs
            return model.fold(run, [sample], previous, dtype).recycled()

        def learn(inputs: tuple[Batch, Recycled, Labels]) -> dict[str, Tensor]:
            sample, previous, truth = inputs
            losses = total_loss(model(run, [sample], previous, dtype), sample, truth, self._loss)
            self._gradients.add(losses.total.mean())
            return losses.terms()

        *earlier, last_input = recycling_inputs
        # The first iteration recycles zeros, so that one graph serves it and the later ones.
        previous = nothing_recycled(run, model.config, last_input.seq_mask, dtype)
        with torch.no_grad():
            for sample in earlier:
                previous = self.graphs.run(("recycling", dtype), recycle, (sample, previous))
        return self.graphs.run(("learning", dtype), learn, (last_input, previous, labels))


class MicroBatchStep:
    """Computes the losses of a micro-batch and adds their gradients to the sum over the step.

    With `graphs` all iterations are captured and replayed. If a capture fails, for example because memory is too
    small, the rest of the run is eager.
    """

    def __init__(
        self,
        model: AlphaFold,
        config: TrainingConfig,
        run: Executor,
        gradients: GradientReducer,
        graphs: GraphCache | None = None,
    ) -> None:
        self._model, self._config, self._run_updates, self._gradients = model, config, run, gradients
        self._captured: CapturedGradients | None = None
        if graphs is not None:
            self._captured = CapturedGradients(model, run, gradients, config.loss, graphs)

    def __call__(self, batch: TrainingBatch, *, last: bool) -> dict[str, Tensor]:
        """Return losses of each sample by name, without gradients; eager steps also return metrics.

        With `last`, for the last micro-batch of this rank in the step, gradients are also summed over ranks.
        """
        if self._captured is None:
            losses = forward_losses(self._model, batch, self._config, self._run_updates)
            self._gradients.backward(losses.total.mean(), last=last)
            return losses.terms() | losses.metrics
        seed_dropout(self._config, batch)
        dtype = dtype_on(self._config.dtype, properties_of(batch.labels.aatype.device))
        terms = self._captured(batch.recycling_inputs, batch.labels, dtype)
        self._gradients.collect(last=last)
        if self._captured.graphs.has_failed:
            self.clear()
            self._captured = None
        return terms

    def clear(self) -> None:
        """Free the memory of all graphs."""
        if self._captured is not None:
            self._captured.graphs.clear()


def capture_unsupported_reason(
    config: TrainingConfig, properties: DeviceProperties, option: str, ranks: int
) -> str | None:
    """Return why training steps are not captured as CUDA graphs; None if they are.

    `option` is the value of `--cuda-graphs`, and `ranks` the number of ranks that share a sample.
    """
    return graphs_unsupported_reason(properties, option, ranks) or first_reason(
        # A graph would permute the chains of every complex as it did in the complex of the capture.
        (config.model.method == "multimer", "equal chains of complexes are assigned by the processor"),
        (not config.example.fixed_shapes, "examples have shapes of their own (example.fixed_shapes=false)"),
    )


def step_graph_cache(
    config: TrainingConfig, mesh: Mesh, option: str, say: Callable[[str], object]
) -> tuple[GraphCache | None, list[str]]:
    """Return a cache of CUDA graphs for a run's steps, or None if they are eager, and notes for the log.

    The only note is whether steps are captured, on a GPU unless `option` is "off". `option` is the value of
    `--cuda-graphs`; `say` is called with the reason if a capture fails.
    """
    properties = properties_of(mesh.device)
    reason = capture_unsupported_reason(config, properties, option, mesh.sample.size)
    outcome = "captured as CUDA graphs, and replayed" if reason is None else f"not captured as CUDA graphs: {reason}"
    notes = [f"training steps are {outcome}"] if properties.kind == "cuda" and option != "off" else []
    return (None, notes) if reason else (GraphCache(GraphCapturer(mesh.device), say=say), notes)
