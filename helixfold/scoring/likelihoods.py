"""Read from the masked-residue head which amino acids a network expects at the positions of a target."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from data_pipeline.residues import RESTYPES
from helixfold.model.alphafold import AlphaFold
from helixfold.prediction import Prediction
from helixfold.scoring.mutations import Mutant


@torch.no_grad()
def residue_log_likelihoods(model: AlphaFold, prediction: Prediction) -> Float[np.ndarray, "r 20"]:
    """Return the natural logarithms of the probabilities of the 20 amino acids at each position of a target.

    They are those of the head that is trained to restore masked residues, for the target's own row of the alignment,
    given that the residue is an amino acid. The prediction has the representation `msa_first_row`.
    """
    assert prediction.representations is not None
    head = model.heads.masked_msa
    row = torch.from_numpy(prediction.representations["msa_first_row"]).to(head.linear.weight.device)
    logits = head(row)[:, : len(RESTYPES)].float()
    found: np.ndarray = torch.log_softmax(logits, -1).cpu().numpy().astype(np.float64)
    return found


def marginal(mutant: Mutant, log_likelihoods: Sequence[Float[np.ndarray, " 20"]]) -> float | None:
    """Return how much more likely the substituted residues are than the target's own, as a difference of logarithms.

    `log_likelihoods` are those of the position of each substitution; of several, the differences are added up (Meier
    et al. 2021). None where the target's own residue is unknown.
    """
    total = 0.0
    for each, likelihoods in zip(mutant.substitutions, log_likelihoods, strict=True):
        own = RESTYPES.find(each.position.letter)
        if own < 0:
            return None
        total += float(likelihoods[RESTYPES.index(each.letter)] - likelihoods[own])
    return total
