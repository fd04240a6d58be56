"""Seeded random parameters: a network that has learnt nothing, for tests and for a look at the pipeline."""

import torch

from helixfold.config import ModelConfig
from helixfold.model.alphafold import AlphaFold


def untrained_model(config: ModelConfig, seed: int) -> AlphaFold:
    """The network with random parameters that are the same for the same seed on every machine.

    Matrices that start at zero for training are random too: with zeros every residue would stay at the origin.
    """
    model = AlphaFold(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return model.eval()
