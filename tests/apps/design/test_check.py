"""A design counts only where another model is surer of it, and agrees with it better, than of sequences of chance."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from helixfold.apps.design import task
from helixfold.apps.design.check import CONTROLS, Agreement, Checked, control_designs, strictest
from helixfold.apps.design.designer import Designer
from helixfold.apps.design.options import DesignOptions
from tests.apps.design.test_designer import CHAIN, ready

OPTIONS = DesignOptions(logits_steps=1, soft_steps=0, hard_steps=0, excluded="C")


@pytest.mark.integration
def test_controls_keep_what_is_fixed_and_change_all_else() -> None:
    designer = Designer(task.fixed_backbone(CHAIN, name="x", fixed=[0, 1]), [ready()], OPTIONS)
    letters = CHAIN.sequence[:2] + ("MWYF" * 9)[: len(CHAIN.sequence) - 2]
    found = {kind: each.sequences["A"] for kind, each in control_designs(designer, {"A": letters}, 0).items()}
    for control in found.values():
        assert (len(control), control[:2]) == (len(letters), letters[:2])
        assert control != letters
        assert "C" not in control[2:]
    assert Counter(found["shuffled"]) == Counter(letters)
    assert set(found["random"][2:]) - set("MWYF")
    again, other = (control_designs(designer, {"A": letters}, number) for number in (0, 1))
    assert again["random"].sequences["A"] == found["random"] != other["random"].sequences["A"]
    # What they are compared with is the designing model's own prediction of them.
    assert np.abs(again["random"].protein.atom_positions - again["shuffled"].protein.atom_positions).max() > 1e-3


def checked(plddt: float, tm_score: float, controls: dict[str, Agreement]) -> Checked:
    return Checked(
        model="x",
        digest="d",
        agreement=Agreement(plddt=plddt, tm_score=tm_score),
        ptm=None,
        iptm=None,
        rmsd=1.0,
        known_tm_score=None,
        controls=controls,
    )


def test_of_several_models_the_strictest_counts() -> None:
    sure, unsure, fooled = (
        checked(80, 0.9, {}),
        checked(40, 0.5, {}),
        checked(90, 0.9, {"random": Agreement(plddt=95, tm_score=1.0)}),
    )
    assert strictest([sure, unsure]) is unsure
    assert strictest([sure, unsure, fooled]) is fooled


@pytest.mark.parametrize(
    ("plddt", "tm_score", "beats"), [(60, 0.6, True), (50, 0.6, False), (60, 0.5, False), (45, 0.9, False)]
)
def test_both_numbers_must_beat_both_controls(plddt: float, tm_score: float, beats: bool) -> None:
    controls = dict(zip(CONTROLS, (Agreement(plddt=50, tm_score=0.3), Agreement(plddt=40, tm_score=0.5)), strict=True))
    found = checked(plddt, tm_score, controls)
    assert found.beats_controls == beats
    assert replace(found, controls={}).beats_controls
