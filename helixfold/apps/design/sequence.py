"""Compute the sequence of a design from the optimised numbers: logits, probabilities, one amino acid per residue.

`LOGIT_SCALE` is the factor from the optimised numbers to logits.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from helixfold.apps.design.options import SequenceMixture

# Factor by which the optimised numbers are multiplied to give logits (ColabDesign's `alpha`).
LOGIT_SCALE = 2.0


@dataclass(frozen=True, kw_only=True)
class DesignedSequence:
    """The sequence of a step in four forms, with values for the 20 amino acids of each residue.

    `logits` include the bias. `soft` are probabilities at the step's temperature. `hard` is one-hot, for the most
    probable amino acids, with the gradient of `soft`. `mixed` is the mixture that the network reads.
    """

    logits: Float[Tensor, "b r 20"]
    soft: Float[Tensor, "b r 20"]
    hard: Float[Tensor, "b r 20"]
    mixed: Float[Tensor, "b r 20"]


def designed_sequence(
    numbers: Float[Tensor, "b r 20"], bias: Float[Tensor, "b r 20"], mixture: SequenceMixture
) -> DesignedSequence:
    """Return the sequence for the optimised numbers of a design (ColabDesign's `soft_seq`).

    `bias` is added to the logits, such as to exclude amino acids. `mixture` has the temperature and the shares of the
    numbers themselves, the probabilities and the one-hot sequence in what the network reads.
    """
    logits = LOGIT_SCALE * numbers + bias
    soft = (logits / mixture.temperature).softmax(-1)
    certain = one_hot(soft.argmax(-1), soft.shape[-1]).to(soft.dtype)
    hard = (certain - soft).detach() + soft
    mixed = torch.lerp(numbers, soft, mixture.soft)
    return DesignedSequence(logits=logits, soft=soft, hard=hard, mixed=torch.lerp(mixed, hard, mixture.hard))
