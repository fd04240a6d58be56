"""The sequence of a design while it is optimised: from any numbers over probabilities to one amino acid a residue."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from helixfold.apps.design.options import SequenceMixture

# Numbers are multiplied by this before they are logits (ColabDesign's `alpha`).
LOGIT_SCALE = 2.0


@dataclass(frozen=True, kw_only=True)
class DesignedSequence:
    """The sequence of a step: logits, probabilities, the most probable amino acids, and what the network reads.

    The most probable amino acids are one-hot and have the gradient of the probabilities.
    """

    logits: Float[Tensor, "b r 20"]
    soft: Float[Tensor, "b r 20"]
    hard: Float[Tensor, "b r 20"]
    mixed: Float[Tensor, "b r 20"]


def designed_sequence(
    numbers: Float[Tensor, "b r 20"], bias: Float[Tensor, "b r 20"], mixture: SequenceMixture
) -> DesignedSequence:
    """Return the sequence that numbers stand for, with a bias for amino acids (ColabDesign's `soft_seq`)."""
    logits = LOGIT_SCALE * numbers + bias
    soft = (logits / mixture.temperature).softmax(-1)
    certain = one_hot(soft.argmax(-1), soft.shape[-1]).to(soft.dtype)
    hard = (certain - soft).detach() + soft
    mixed = torch.lerp(numbers, soft, mixture.soft)
    return DesignedSequence(logits=logits, soft=soft, hard=hard, mixed=torch.lerp(mixed, hard, mixture.hard))
