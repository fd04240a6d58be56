"""Forward pass and losses of one micro-batch: recycling without gradients, then the iteration that is trained."""

import torch

from data_pipeline.datasets.chain_sampling import StreamUse, random_stream
from helixfold.execution.device import dtype_on
from helixfold.losses.total import Losses, total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Outputs, Recycled
from helixfold.model.update import Executor
from helixfold.ops.card import card_of
from helixfold.training.config import TrainingConfig
from helixfold.training.loader import TrainingBatch


def forward(model: AlphaFold, batch: TrainingBatch, run: Executor, dtype: torch.dtype) -> Outputs:
    """Return the outputs of the last recycling iteration; the earlier ones have no gradients.

    AlphaFold 2, Suppl. Alg. 31.
    """
    previous: Recycled | None = None
    with torch.no_grad():
        for sample in batch.recycling_inputs[:-1]:
            previous = model.fold(run, [sample], previous, dtype).recycled()
    return model(run, [batch.recycling_inputs[-1]], previous, dtype)


def forward_losses(model: AlphaFold, batch: TrainingBatch, config: TrainingConfig, run: Executor) -> Losses:
    """Return the losses of one micro-batch, with gradients through its last recycling iteration only.

    Dropout is seeded by `seed_dropout`.
    """
    seed_dropout(config, batch)
    last = batch.recycling_inputs[-1]
    outputs = forward(model, batch, run, dtype_on(config.dtype, card_of(last.aatype.device)))
    return total_loss(outputs, last, batch.labels, config.loss)


def seed_dropout(config: TrainingConfig, batch: TrainingBatch) -> None:
    """Seed the random numbers of dropout by the run's seed, the step and the micro-batch's index.

    So they are the same on whatever rank, and checkpoints need no random state.
    """
    torch.manual_seed(int(random_stream(config.seed, StreamUse.DROPOUT, batch.step, batch.micro_batch).integers(2**63)))
