"""Every loss of a complex, and the gradient of their sum for every parameter, equals DeepMind's."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from helixfold.execution.whole import Whole
from helixfold.losses.config import complexes, finetuning
from helixfold.losses.labels import Labels
from helixfold.losses.total import Losses, total_loss
from helixfold.weights.alphafold import from_state_dict
from tests.parity.cases import DATA, Case, batch_from_deepmind
from tests.parity.test_losses import SAMPLED

pytestmark = pytest.mark.parity

FOLDER = DATA / "multimer_v3_loss"
# DeepMind's name of each term.
TERMS = {
    "backbone_fape": "intra_chain_fape",
    "interface_fape": "interface_fape",
    "sidechain_fape": "sidechain_fape",
    "torsion": "chi_loss",
    "angle_norm": "angle_norm_loss",
    "violation": "violation",
    "distogram": "distogram",
    "masked_msa": "masked_msa",
    "lddt": "predicted_lddt",
    "experimentally_resolved": "experimentally_resolved",
    "aligned_error": "predicted_aligned_error",
}


@pytest.fixture(scope="module")
def case() -> Case:
    features = {name: value[0] for name, value in np.load(FOLDER / "features.npz").items()}
    return Case(
        name=FOLDER.name,
        folder=FOLDER,
        meta=json.loads((FOLDER / "meta.json").read_text()),
        batches=[batch_from_deepmind(features)],
        recycled=[],
        outputs=dict(np.load(FOLDER / "losses.npz")),
    )


@pytest.fixture(scope="module")
def found(case: Case, tmp_path_factory: pytest.TempPathFactory) -> tuple[Losses, dict[str, np.ndarray]]:
    """Our losses, and the gradients of their sum under DeepMind's names."""
    (batch,) = case.batches
    arrays = np.load(FOLDER / "labels.npz")
    tensors = {
        name: torch.from_numpy(np.asarray(value, np.int64 if value.dtype.kind == "i" else np.float32))[None]
        for name, value in arrays.items()
    }
    labels = Labels(**tensors, aatype=batch.aatype, use_clamped_fape=torch.ones(1), is_distillation=torch.zeros(1))
    model = case.model(tmp_path_factory.mktemp(case.name))
    # The loss of chains' centres is not in DeepMind's program.
    losses = total_loss(model(Whole(), [batch]), batch, labels, replace(complexes(finetuning()), centre_of_mass=0.0))
    losses.weighted.sum().backward()
    # The extra alignment is read before its last update, which no loss depends on.
    gradients = {
        name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in model.named_parameters()
    }
    return losses, from_state_dict(gradients, model.config)


def test_the_weights_are_deepminds(case: Case) -> None:
    heads, ours = case.meta["config"]["heads"], complexes(finetuning())
    structure = heads["structure_module"]
    for name in ("distogram", "masked_msa", "experimentally_resolved"):
        assert getattr(ours, name) == heads[name]["weight"]
    assert ours.lddt == heads["predicted_lddt"]["weight"]
    assert ours.aligned_error == heads["predicted_aligned_error"]["weight"]
    assert ours.fape_clamp == structure["intra_chain_fape"]["atom_clamp_distance"]
    assert ours.interface_clamp == structure["interface_fape"]["atom_clamp_distance"]
    assert ours.interface_unit == structure["interface_fape"]["loss_unit_distance"]
    assert ours.violation == structure["structural_violation_loss_weight"]


def test_every_term_equals_deepminds(case: Case, found: tuple[Losses, dict[str, np.ndarray]]) -> None:
    losses, _ = found
    assert losses.unweighted.keys() == TERMS.keys()
    for ours, theirs in TERMS.items():
        np.testing.assert_allclose(losses.unweighted[ours][0], case.outputs[theirs], rtol=1e-5, err_msg=ours)
    np.testing.assert_allclose(losses.weighted[0].detach(), case.outputs["total"], rtol=1e-5)


def test_the_gradient_for_every_parameter_equals_deepminds(
    case: Case, found: tuple[Losses, dict[str, np.ndarray]]
) -> None:
    expected = dict(np.load(FOLDER / "gradients.npz"))
    assert found[1].keys() == expected.keys()
    failures = []
    for name, gradient in found[1].items():
        values = gradient.reshape(-1)[:: -(-gradient.size // SAMPLED) | 1]
        largest = max(case.meta["float32_noise"][f"grad/{name}"]["max"], 1e-12)
        error = float(np.abs(values - expected[name]).max() / largest)
        if not error <= case.tolerance(f"grad/{name}"):
            failures.append(f"  {name}: {error:.1e}")
    assert not failures, "\n".join([f"{len(failures)} of {len(expected)} gradients deviate", *failures])
