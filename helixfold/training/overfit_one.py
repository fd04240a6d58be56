"""Train a small network on a single chain in this process until it overfits, and predict the chain every few steps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from data_pipeline.parse.structures import read_structure
from data_pipeline.pipeline import Target, prepare
from data_pipeline.protein import Protein
from data_pipeline.sampling.training import training_example
from data_pipeline.training_sets.chain_sampling import StreamUse, num_passes, random_stream
from data_pipeline.training_sets.chains import chain_labels
from data_pipeline.training_sets.examples import StepExamples
from helixfold.analysis import metrics
from helixfold.execution.device import in_threads
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget, fold
from helixfold.model import presets
from helixfold.model.alphafold import AlphaFold
from helixfold.model.update import Executor
from helixfold.optim.flat import FlatOptimizer
from helixfold.results.prediction import structure_distances
from helixfold.runtime.screen import hides_bars
from helixfold.training.config import TrainingConfig
from helixfold.training.loader import pack
from helixfold.training.presets import tiny
from helixfold.training.step import forward_losses

# Note in all predictions of the network.
NOTE = "overfitted: this network was trained on one chain and cannot predict others"
# In Å, and assigned to every structure: the confidence heads learn only from structures with a resolution in a range
# that includes this value.
_RESOLUTION = 1.0


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A prediction of the chain after `step` training steps, superposed on the true structure.

    `loss` is the weighted total loss of the last step, and NaN before the first. `lddt` is lDDT-CA, 0 to 1.
    """

    step: int
    loss: float
    lddt: float
    prediction: Prediction


def settings() -> TrainingConfig:
    """Return the `tiny` training settings without everything that hinders overfitting.

    Dropout, masking, recycling, clamping, smooth lDDT and the violation loss are off.
    """
    dropouts = [f"model.{stack}.{kind}_dropout=0" for stack in ("evoformer", "extra_msa") for kind in ("msa", "pair")]
    return tiny().with_settings(
        [
            *dropouts,
            "model.structure.dropout=0",
            "model.evoformer.blocks=1",
            "example.sampling.masked_msa_fraction=0",
            "example.unclamped_fraction=1",
            "example.max_passes=1",
            "loss.masked_msa=0",
            "loss.violation=0",
            "loss.smooth_lddt=0",
            "optimizer.learning_rate=2e-3",
            "optimizer.warmup_steps=20",
            "optimizer.beta2=0.99",
            "batch_size=1",
        ]
    )


class OverfitRun:
    """A small network with random initial parameters, and the single chain that it is trained to overfit.

    `features` are the chain's input features, without an alignment, and `truth` is its structure.
    """

    def __init__(self, structure: Path | str, config: TrainingConfig | None = None) -> None:
        """Read the first chain of a structure file and create the network.

        `config` is `settings()` by default.
        """
        self.config = settings() if config is None else config
        parsed_structure = read_structure(structure)
        chain = parsed_structure.chains[0]
        self._labels = replace(chain_labels(parsed_structure, chain), resolution=_RESOLUTION)
        self.features = prepare(Target(name=parsed_structure.name, sequence=chain.sequence)).features
        self.truth = Protein(
            aatype=chain.aatype,
            atom_positions=chain.atom_positions,
            atom_mask=chain.atom_mask,
            residue_index=np.arange(1, len(chain.sequence) + 1),
            chain_index=np.zeros(len(chain.sequence), np.int64),
            b_factors=chain.b_factors,
        )
        # Distances in Å between pseudo-beta atoms, which a distogram predicts.
        self.truth_distances = structure_distances(self.truth)
        torch.manual_seed(self.config.seed)
        self.network = AlphaFold(self.config.model)
        self.network.notes = (NOTE,)
        self._preset = replace(
            presets.tiny(), name="overfit_one", model=self.config.model, sampling=self.config.example.sampling
        )
        self._optimizer = FlatOptimizer(self.network, self.config.optimizer)
        self._step = 0

    def train(self, steps: int, every: int) -> Iterator[Frame]:
        """Train for `steps` more steps; yield a prediction before the first, and then every `every` steps.

        The steps of earlier calls count, too.
        """
        yield self._frame(float("nan"))
        for _ in tqdm(range(steps), desc="steps", leave=False, delay=2.0, disable=hides_bars(None)):
            loss = self._make_step()
            if self._step % every == 0:
                yield self._frame(loss)

    def fold(self, num_recycles: int = 0, run: Executor | None = None) -> Prediction:
        """Predict the chain with the current parameters, superposed on the true structure by C-alpha atoms.

        `run` is the executor, `Whole()` by default.
        """
        self.network.eval()
        target, options = FoldingTarget(features=self.features), FoldingOptions(num_recycles=num_recycles)
        (prediction,) = fold(self.network, self._preset, [target], options, run or Whole(), stages=Stages())
        superposition = metrics.superposition(*self._observed(prediction.protein))
        positions = superposition.apply(prediction.protein.atom_positions)
        return replace(prediction, structure=replace(prediction.protein, atom_positions=positions))

    def _make_step(self) -> float:
        """Train for one step and return the weighted total loss."""
        config, step = self.config, self._step
        iterations = num_passes(config.seed, step, config.example.max_passes)
        example = training_example(
            self.features,
            self._labels,
            config.example,
            random_stream(config.seed, StreamUse.TRANSFORM, step, 0),
            iterations,
        )
        packed = pack(StepExamples(step=step, micro_batch=0, examples=(example,), refused=()), None)
        self.network.train()
        # The network is so small that several threads would wait for each other longer than they compute.
        with in_threads(1):
            losses = forward_losses(self.network, packed.on(torch.device("cpu")), config, Whole())
            losses.total.mean().backward()
            self._optimizer.collect(last=True)
            self._optimizer.step(config.optimizer.rate(step), micro_batches=1)
        self._step += 1
        return float(losses.terms()["weighted"])

    def _frame(self, loss: float) -> Frame:
        """Return a prediction with its score; `loss` is the loss of the last step."""
        prediction = self.fold()
        predicted, true = self._observed(prediction.protein)
        lddt = metrics.lddt(predicted, true, np.arange(len(true)))
        return Frame(step=self._step, loss=loss, lddt=lddt, prediction=prediction)

    def _observed(self, protein: Protein) -> tuple[np.ndarray, np.ndarray]:
        """Return the C-alpha positions of a protein and of the true structure, for the observed residues."""
        true = self.truth.positions_of("CA")
        is_observed = np.isfinite(true).all(1)
        return protein.positions_of("CA")[is_observed], true[is_observed]
