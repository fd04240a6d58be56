"""Losses of binders, and their gradients, equal the published formulas in double precision."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from helixfold.apps.design.losses import (
    LOSSES,
    ContactLoss,
    DesignPass,
    InterfaceContactLoss,
    Loss,
    binder_helix_loss,
)
from helixfold.apps.design.sequence import DesignedSequence
from helixfold.apps.design.soft_sequence import fold_sequence
from helixfold.execution.whole import Whole
from tests.support.networks import random_batch, tiny_model

TARGET, BINDER = 9, 13
R = TARGET + BINDER
EDGES = np.linspace(2.3125, 21.6875, 63)
HOTSPOTS = [2, 5]


@pytest.fixture(scope="module")
def outputs() -> tuple[DesignPass, dict[str, Tensor]]:
    """A pass whose heads are random numbers in double precision, of which the losses have gradients."""
    batch = random_batch(residues=R, templates=0)
    with torch.no_grad():
        made = fold_sequence(tiny_model().eval(), Whole(), batch, num_recycles=0)
    random = np.random.default_rng(4)
    values = {
        "lddt": random.normal(size=(1, R, 50)),
        "distogram": 2 * random.normal(size=(1, R, R, 64)),
        "aligned_error": 2 * random.normal(size=(1, R, R, 64)),
        "positions": np.cumsum(2 * random.normal(size=(1, R, 37, 3)), 1),
    }
    heads = {name: torch.from_numpy(value).requires_grad_() for name, value in values.items()}
    logits = replace(made.logits, **{name: heads[name] for name in ("lddt", "distogram", "aligned_error")})
    binds = (torch.arange(R) >= TARGET)[None]
    nothing = torch.zeros(1, R, 20)
    numbers = torch.arange(R)[None] + 50 * binds
    return DesignPass(
        outputs=replace(made, logits=logits, structure=replace(made.structure, positions=heads["positions"])),
        batch=replace(batch, residue_index=numbers, seq_mask=torch.ones(1, R)),
        sequence=DesignedSequence(logits=nothing, soft=nothing, hard=nothing, mixed=nothing),
        designed=binds.double(),
        target=(~binds).double(),
        hotspots=torch.zeros(1, R),
        chain_index=binds.long(),
    ), heads


def contact(heads: dict[str, Tensor], cutoff: float, binary: bool) -> Tensor:
    probability = heads["distogram"][0].softmax(-1)
    close = torch.from_numpy(np.concatenate([[0.0], EDGES]) < cutoff).double()
    if binary:
        return -((close * probability).sum(-1) + 64e-8).log()
    part = probability * close
    return -(part / part.sum(-1, keepdim=True) * probability.log()).sum(-1)


def best(values: Tensor, count: int) -> Tensor:
    return values.sort(-1).values[..., :count].mean(-1)


def errors(heads: dict[str, Tensor]) -> Tensor:
    centers = torch.from_numpy(np.arange(64) * 0.5 + 0.25)
    error = (heads["aligned_error"][0].softmax(-1) * centers).sum(-1) / 31
    return (error + error.T) / 2


def con(heads: dict[str, Tensor]) -> Tensor:
    found = contact(heads, 14.0, binary=False)[TARGET:, TARGET:]
    far = torch.arange(BINDER)
    rows = [found[i, (far - i).abs() >= 9] for i in range(BINDER)]
    return torch.stack([best(row, 2) if len(row) else row.sum() for row in rows]).mean()


def i_con(heads: dict[str, Tensor]) -> Tensor:
    return best(contact(heads, 20.0, binary=False)[TARGET:, :TARGET], 2).mean()


def i_con_of_hotspots(heads: dict[str, Tensor]) -> Tensor:
    return best(contact(heads, 20.0, binary=False)[HOTSPOTS, TARGET:], 2).mean()


def plddt(heads: dict[str, Tensor]) -> Tensor:
    centers = torch.from_numpy((np.arange(50) + 0.5) / 50)
    return 1 - (heads["lddt"][0, TARGET:].softmax(-1) * centers).sum(-1).mean()


def i_ptm(heads: dict[str, Tensor]) -> Tensor:
    centers = torch.from_numpy(np.arange(64) * 0.5 + 0.25)
    scale = 1.24 * np.cbrt(R - 15) - 1.8
    term = (heads["aligned_error"][0].softmax(-1) / (1 + (centers / scale) ** 2)).sum(-1)
    rows = [term[i, TARGET:].mean() if i < TARGET else term[i, :TARGET].mean() for i in range(R)]
    return 1 - torch.stack(rows).max()


def rg(heads: dict[str, Tensor]) -> Tensor:
    alpha = heads["positions"][0, TARGET:, 1]
    radius = ((alpha - alpha.mean(0)).square().sum(-1).mean() + 1e-8).sqrt()
    excess = radius - 2.38 * BINDER**0.365
    return excess if float(excess.detach()) > 0 else excess.exp() - 1


def termini(heads: dict[str, Tensor]) -> Tensor:
    alpha = heads["positions"][0, TARGET:, 1]
    return (alpha[0] - alpha[-1]).square().sum().sqrt() - 7


def helix(heads: dict[str, Tensor]) -> Tensor:
    found = contact(heads, 6.0, binary=True)[TARGET:, TARGET:]
    return torch.stack([found[i + 3, i] for i in range(BINDER - 3)]).mean()


FORMULAS: dict[str, tuple[Loss, Callable[[dict[str, Tensor]], Tensor], bool]] = {
    "con": (ContactLoss(contacts=2, cutoff=14.0), con, False),
    "i_con": (InterfaceContactLoss(contacts=2, cutoff=20.0), i_con, False),
    "i_con of hotspots": (InterfaceContactLoss(contacts=2, cutoff=20.0), i_con_of_hotspots, True),
    "plddt": (LOSSES["plddt"], plddt, False),
    "pae": (LOSSES["pae"], lambda heads: errors(heads)[TARGET:].mean(), False),
    "i_pae": (LOSSES["i_pae"], lambda heads: errors(heads)[TARGET:, :TARGET].mean(), False),
    "i_pae of hotspots": (LOSSES["i_pae"], lambda heads: errors(heads)[TARGET:, HOTSPOTS].mean(), True),
    "i_ptm": (LOSSES["i_ptm"], i_ptm, False),
    "rg": (LOSSES["rg"], rg, False),
    "termini": (LOSSES["termini"], termini, False),
    "helix": (binder_helix_loss, helix, False),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_losses_and_gradients_are_those_of_the_formulas(
    name: str, outputs: tuple[DesignPass, dict[str, Tensor]]
) -> None:
    made, heads = outputs
    loss, formula, has_hotspots = FORMULAS[name]
    if has_hotspots:
        hotspots = torch.zeros(1, R)
        hotspots[0, HOTSPOTS] = 1
        made = replace(made, hotspots=hotspots)
    value, expected = loss(made).sum(), formula(heads)
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
    found, wanted = (
        torch.autograd.grad(each, list(heads.values()), allow_unused=True, materialize_grads=True)
        for each in (value, expected)
    )
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-3 * float(other.abs().max()) + 1e-12)
    assert any(float(each.abs().max()) > 0 for each in wanted)


def test_small_radii_and_close_ends_are_no_better_than_enough(outputs: tuple[DesignPass, dict[str, Tensor]]) -> None:
    made, heads = outputs
    structure = replace(made.outputs.structure, positions=heads["positions"] * 0.01)
    close = replace(made, outputs=replace(made.outputs, structure=structure))
    assert -1 < float(LOSSES["rg"](close).detach()) < -0.9
    assert float(LOSSES["termini"](close).detach()) == 0
