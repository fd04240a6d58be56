"""Confidence equals what is published of DeepMind's parameters, read from the published logits and probabilities."""

from importlib import resources

import numpy as np
import pytest
import torch

from helixfold.model import confidence
from tests.model.ptm import ptm_of
from tests.parity.cases import DATA, deviation

pytestmark = pytest.mark.parity
TOLERANCE = 1e-4


def published(name: str) -> dict[str, np.ndarray]:
    """Outputs for the ten residues of 5AWL, padded to 13 or not, with the mask of real residues."""
    if name == "padded":
        return dict(np.load(DATA / "published_5AWL_padded.npz"))
    with resources.as_file(resources.files("helixfold.apps.verify") / "data/5AWL.npz") as path:
        arrays = dict(np.load(path))
    found = {key.removeprefix("outputs/"): value for key, value in arrays.items() if key.startswith("outputs/")}
    return {**found, "seq_mask": arrays["features/seq_mask"][0], "max_predicted_aligned_error": np.float32(31.75)}


@pytest.mark.parametrize("name", ["whole", "padded"])
def test_confidence_is_the_published(name: str) -> None:
    arrays = published(name)
    mask = torch.from_numpy(arrays["seq_mask"])[None]
    plddt = confidence.plddt(torch.from_numpy(arrays["predicted_lddt/logits"])[None])
    # Probabilities are logits of themselves: only differences count, and each row of them sums to 1.
    logits = torch.from_numpy(arrays["aligned_confidence_probs"]).double().log()[None]
    pae, largest = confidence.predicted_aligned_error(logits.float())
    found = {
        "plddt": plddt[0].numpy(),
        "mean_plddt": confidence.ranking_confidence(plddt, mask)[0].numpy(),
        "predicted_aligned_error": pae[0].numpy(),
        "max_predicted_aligned_error": np.float32(largest),
        "ptm": ptm_of(logits.float(), mask)[0].numpy(),
    }
    for key, value in found.items():
        assert deviation(value, arrays[key]) < TOLERANCE, key


def test_the_published_means_are_those_that_are_known() -> None:
    arrays = published("whole")
    assert arrays["mean_plddt"] == pytest.approx(94.229, abs=1e-3)
    assert arrays["ptm"] == pytest.approx(0.05674, abs=1e-5)
