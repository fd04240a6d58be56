"""Networks with random parameters, for tests and for trying the pipeline."""

import torch

from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import ModelConfig


def untrained_model(config: ModelConfig, seed: int) -> AlphaFold:
    """Return a network in evaluation mode with random weights, which depend only on the settings and the seed.

    Weights that are zero at the start of training are random too, because with zeros all residues stay at the origin.
    Parameters with one axis, such as biases, keep the values of a new network.
    """
    model = AlphaFold(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return model.eval()
