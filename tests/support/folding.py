"""Fold one target with an executor."""

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.features.complexes.feature_set import TargetFeatures
from helixfold.execution.iteration_runner import EAGER, IterationRunner
from helixfold.execution.stages import Stages
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget, fold
from helixfold.model.alphafold import AlphaFold
from helixfold.model.presets import Preset
from helixfold.model.update import Executor


def fold_one(
    model: AlphaFold,
    run: Executor,
    features: TargetFeatures,
    preset: Preset,
    options: FoldingOptions,
    *,
    name: str | None = None,
    runner: IterationRunner = EAGER,
    initial_guess: Float[np.ndarray, "r 37 3"] | None = None,
    offsets: Int[np.ndarray, "r r"] | None = None,
) -> Prediction:
    """Return the prediction of `fold` for one target."""
    target = FoldingTarget(features=features, name=name, initial_guess=initial_guess, offsets=offsets)
    (prediction,) = fold(model, preset, [target], options, run, stages=Stages(), passes=runner)
    return prediction
