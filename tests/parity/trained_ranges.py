"""Parameters of parity cases whose activations have the ranges of trained networks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.config import ModelConfig
from helixfold.model.presets import preset
from helixfold.weights.alphafold import from_state_dict, to_state_dict
from helixfold.weights.demonstration import NAME, WEIGHTS
from helixfold.weights.load import load_weights
from tests.parity.range_factors import RangeFactors, find_range_factors, with_trained_ranges

Arrays = dict[str, np.ndarray]


def demonstration_config() -> ModelConfig:
    """Return the demonstration model's network with its structure module starting at the origin.

    Starting from a template, as it does otherwise, is nothing that DeepMind's program can do.
    """
    model = preset(NAME).model
    assert model.template is not None
    return replace(model, template=replace(model.template, initial_frames=False, update_factor=1.0, plddt_slope=0.0))


def demonstration_parameters() -> Arrays:
    """Return the parameters of the demonstration model under DeepMind's names."""
    return from_state_dict(load_weights(WEIGHTS, preset(NAME).model), demonstration_config())


def find_factors(
    parameters: Mapping[str, np.ndarray], config: ModelConfig, batches: Sequence[Batch], times: float
) -> Arrays:
    """Return the factors that give these parameters `times` the published ranges on these features.

    The demonstration model, which is trained, gets no other extremes.
    """
    extremes = config != demonstration_config()
    return find_range_factors(_network(parameters, config), batches, times, extremes=extremes).to_arrays()


def scaled(
    parameters: Mapping[str, np.ndarray], config: ModelConfig, factors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the parameters times the factors that `find_factors` found."""
    network = with_trained_ranges(_network(parameters, config), RangeFactors.from_arrays(factors))
    return from_state_dict(network.state_dict(), config)


def _network(parameters: Mapping[str, np.ndarray], config: ModelConfig) -> AlphaFold:
    network = AlphaFold(config).eval()
    network.load_state_dict(to_state_dict(parameters, config))
    return network
