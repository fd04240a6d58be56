"""Heads that predict a value of a whole target from what the network makes of it, and the fit of them."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from data_pipeline.errors import InputError
from helixfold.finetune.task_table import TaskKind
from helixfold.model.alphafold import AlphaFold
from helixfold.model.confidence import predicted_aligned_error
from helixfold.model.outputs import Folded
from helixfold.model.update import as_tensor

# What of the network a head reads: the error between chains, the residues' representations, or those of pairs.
HeadInput = Literal["pae", "single", "pair"]
# Units of 10 Angstrom, in which Motmaen et al. 2023 give the slope and the midpoint of their logistic function of the
# error between chains (peptide and MHC of class I).
_ERROR_UNIT, SLOPE, MIDPOINT = 10.0, -7.9, 0.804
# Strengths of the penalty that are tried, per row; the held-out parts of the rows to learn from decide.
_PENALTIES = (1.0, 0.1, 0.01, 0.001)
_FOLDS, _ITERATIONS = 5, 200


def summary(model: AlphaFold, folded: Folded, chains: Int[Tensor, " r"], reads: HeadInput) -> Float[Tensor, " f"]:
    """Return the numbers of one target from which a head predicts; `chains` numbers the chain of each residue.

    "pae" is the mean predicted error between residues of different chains, in units of 10 Angstrom. "single" and "pair"
    are mean and standard deviation of each channel, of pairs between chains where there are several.
    """
    if reads == "single":
        return _moments(folded.representations.single[0].float())
    different = chains[:, None] != chains[None]
    pairs = different if bool(different.any()) else torch.ones_like(different)
    pair = as_tensor(folded.representations.pair)
    if reads == "pair":
        return _moments(pair[0].float()[pairs])
    if model.heads.aligned_error is None:
        raise InputError("this model does not predict aligned errors; take one with _ptm, or --head single or pair")
    error, _ = predicted_aligned_error(model.heads.aligned_error(pair))
    return error[0][pairs].mean()[None] / _ERROR_UNIT


def _moments(values: Float[Tensor, "n c"]) -> Float[Tensor, " f"]:
    return torch.cat([values.mean(0), values.std(0, correction=0)])


class LinearHead(nn.Module):
    """Linear map of standardised numbers to a value, or to the logit of a class."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("deviation", torch.ones(inputs))
        self.weight = nn.Parameter(torch.zeros(inputs))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, numbers: Float[Tensor, "*n f"]) -> Float[Tensor, "*n"]:
        """Return the value or the logit of each target."""
        return (((numbers - self.mean) / self.deviation) * self.weight).sum(-1) + self.bias[0]


def published_binder_head() -> LinearHead:
    """Return Motmaen et al.'s logistic function of the error between chains, with which fine-tuning begins."""
    head = LinearHead(1)
    with torch.no_grad():
        head.weight.fill_(SLOPE)
        head.bias.fill_(-SLOPE * MIDPOINT)
    return head


def fit(numbers: Float[Tensor, "n f"], values: Float[Tensor, " n"], kind: TaskKind, seed: int = 0) -> LinearHead:
    """Fit a linear (regression) or logistic head with a penalty on the squares of its weights.

    The penalty is that with the least loss on the fifths of the targets that a fit has not seen.
    """
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    parts = [part for part in order.tensor_split(min(_FOLDS, len(values))) if len(part)]

    def unseen_loss(penalty: float) -> float:
        total = 0.0
        for part in parts:
            others = torch.ones(len(values), dtype=torch.bool)
            others[part] = False
            head = _fitted(numbers[others], values[others], kind, penalty)
            with torch.no_grad():
                total += float(loss_of(head(numbers[part]), values[part], kind)) * len(part)
        return total

    best = min(_PENALTIES, key=unseen_loss)
    return _fitted(numbers, values, kind, best)


def loss_of(predicted: Float[Tensor, " n"], values: Float[Tensor, " n"], kind: TaskKind) -> Float[Tensor, ""]:
    """Return the mean loss: the cross entropy of a class, or half the square of an error."""
    if kind == "regression":
        return 0.5 * (predicted - values).square().mean()
    return nn.functional.binary_cross_entropy_with_logits(predicted, values)


def _fitted(numbers: Float[Tensor, "n f"], values: Float[Tensor, " n"], kind: TaskKind, penalty: float) -> LinearHead:
    head = LinearHead(numbers.shape[1]).double()
    numbers, values = numbers.double(), values.double()
    scale = values.std(correction=0).clamp(min=1e-12) if kind == "regression" else values.new_ones(())
    centre = values.mean() if kind == "regression" else values.new_zeros(())
    head.mean.copy_(numbers.mean(0))
    head.deviation.copy_(numbers.std(0, correction=0).clamp(min=1e-6))
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(head(numbers), (values - centre) / scale, kind) + penalty * head.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        head.weight.mul_(scale)
        head.bias.mul_(scale).add_(centre)
    return head.float()


def stacked(numbers: Sequence[Tensor]) -> Float[Tensor, "n f"]:
    """Return the numbers of several targets as the rows of one tensor."""
    return torch.stack([each.detach().cpu().float() for each in numbers])
