"""One part of a training step: recycling, the pass that learns, its losses and their gradients."""

import torch

from data_pipeline.datasets.sampling import Use, stream
from helixfold.inference import DTYPES
from helixfold.losses.total import Losses, total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Outputs, Recycled
from helixfold.model.update import Executor
from helixfold.training.config import TrainingConfig
from helixfold.training.loader import TrainingBatch


def forward(model: AlphaFold, batch: TrainingBatch, run: Executor, dtype: torch.dtype) -> Outputs:
    """Make all passes of one part, and return the outputs of the last: the others leave no gradients.

    AlphaFold 2, Suppl. Alg. 31.
    """
    previous: Recycled | None = None
    with torch.no_grad():
        for sample in batch.passes[:-1]:
            previous = model.fold(run, [sample], previous, dtype).recycled()
    return model(run, [batch.passes[-1]], previous, dtype)


def forward_losses(model: AlphaFold, batch: TrainingBatch, config: TrainingConfig, run: Executor) -> Losses:
    """Return the losses of one part, with gradients through its last pass alone.

    Dropout is a function of the run's seed, the step and the part: it is the same wherever the part is computed, and
    nothing random has to be kept with a checkpoint.
    """
    torch.manual_seed(int(stream(config.seed, Use.DROPOUT, batch.step, batch.part).integers(2**63)))
    outputs = forward(model, batch, run, DTYPES[config.dtype])
    return total_loss(outputs, batch.passes[-1], batch.labels, config.loss)
