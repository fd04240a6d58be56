"""Every loss, and the gradient of their sum for every parameter, equals DeepMind's."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helixfold.execution.whole import Whole
from helixfold.losses.ambiguity import alternative_is_better, renamed_truth
from helixfold.losses.config import LossConfig
from helixfold.losses.fape import FramesAndPoints, backbone_fape, frame_aligned_point_error
from helixfold.losses.heads import lddt_ca
from helixfold.losses.labels import Labels
from helixfold.losses.total import total_loss
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.geometry.rigid_groups import rigid_groups_from_atom37
from helixfold.model.outputs import Outputs
from helixfold.weights.alphafold import from_state_dict
from tests.parity.cases import DATA, Case, batch_from_deepmind
from tests.parity.test_functions import Function

pytestmark = pytest.mark.parity

NAME = "monomer_ptm_loss"
# DeepMind's name of each term that it hands out by itself.
TERMS = {
    "sidechain_fape": "structure_module/sidechain_fape",
    "torsion": "structure_module/chi_loss",
    "angle_norm": "structure_module/angle_norm_loss",
    "distogram": "distogram/loss",
    "masked_msa": "masked_msa/loss",
    "lddt": "predicted_lddt/loss",
    "experimentally_resolved": "experimentally_resolved/loss",
    "aligned_error": "predicted_aligned_error/loss",
}
# The repository keeps about so many numbers of each gradient, evenly spaced in its flat array; the reference has all.
SAMPLED = 128


def rigid(flat: Tensor) -> Rigid:
    return Rigid(rotation=flat[..., :9].unflatten(-1, (3, 3)), translation=flat[..., 9:])


@pytest.mark.parametrize(("name", "clamp"), [("clamp10.0", 10.0), ("clampNone", np.inf)])
def test_frame_aligned_point_error(name: str, clamp: float) -> None:
    function = Function(f"frame_aligned_point_error_{name}")
    given = function.given
    found = frame_aligned_point_error(
        FramesAndPoints(frames=rigid(given["pred_frames"]), points=given["pred_positions"]),
        FramesAndPoints(frames=rigid(given["target_frames"]), points=given["target_positions"]),
        given["frames_mask"],
        given["positions_mask"],
        torch.tensor([clamp]),
    )
    np.testing.assert_allclose(found[0], function.returned["result"], rtol=1e-6)


def test_rigid_groups_of_atoms() -> None:
    function = Function("atom37_to_frames")
    given, expected = function.given, function.returned
    found = rigid_groups_from_atom37(given["aatype"], given["all_atom_positions"], given["all_atom_mask"])
    np.testing.assert_array_equal(found.mask[0], expected["rigidgroups_gt_exists"])
    there = found.mask[0].bool().numpy()
    assert 0.3 < there.mean() < 0.9
    for ours, theirs in ((found.frames, "gt_frames"), (found.alternative, "alt_gt_frames")):
        flat = torch.cat([ours.rotation.flatten(-2), ours.translation], -1)[0].numpy()
        assert np.abs(flat - expected[f"rigidgroups_{theirs}"])[there].max() < 1e-4


def test_ambiguous_atoms_are_named_alike() -> None:
    function = Function("compute_renamed_ground_truth")
    found = alternative_is_better(
        *(
            function.given[f"atom14_{name}"]
            for name in ("pred_positions", "gt_positions", "gt_exists", "alt_gt_positions", "atom_is_ambiguous")
        )
    )
    expected = function.returned["alt_naming_is_better"]
    np.testing.assert_array_equal(found[0], expected)
    assert 0 < expected.sum() < len(expected)


def test_lddt_of_every_residue() -> None:
    function = Function("lddt_per_residueTrue")
    given = {name: value[0] for name, value in function.given.items()}
    found = lddt_ca(given["predicted_points"], given["true_points"], given["true_points_mask"][..., 0])
    np.testing.assert_allclose(found, function.returned["result"], atol=1e-6)


@dataclass(frozen=True, kw_only=True)
class LossCase:
    """A run of DeepMind's program with labels: what ours computes from the same, and what it must be."""

    case: Case
    labels: Labels
    outputs: Outputs
    found_gradients: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]


def loss_config(heads: dict[str, Any]) -> LossConfig:
    """DeepMind's settings as ours."""
    structure = heads["structure_module"]
    sidechain = structure["sidechain"]["weight_frac"]
    resolution = heads["predicted_lddt"]
    return LossConfig(
        backbone_fape=structure["weight"] * (1 - sidechain),
        sidechain_fape=structure["weight"] * sidechain,
        torsion=structure["chi_weight"],
        angle_norm=structure["angle_norm_weight"],
        violation=structure["structural_violation_loss_weight"],
        distogram=heads["distogram"]["weight"],
        masked_msa=heads["masked_msa"]["weight"],
        lddt=heads["predicted_lddt"]["weight"],
        experimentally_resolved=heads["experimentally_resolved"]["weight"],
        aligned_error=heads["predicted_aligned_error"]["weight"],
        fape_clamp=structure["fape"]["clamp_distance"],
        min_resolution=resolution["min_resolution"],
        max_resolution=resolution["max_resolution"],
        violation_tolerance_factor=structure["violation_tolerance_factor"],
        clash_overlap_tolerance=structure["clash_overlap_tolerance"],
    )


@pytest.fixture(scope="module", params=["sampled", "full"])
def loss_case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LossCase:
    sampled = request.param == "sampled"
    folder: Path = DATA / NAME if sampled else request.getfixturevalue("reference") / "cases" / NAME
    features = {name: value[0] for name, value in np.load(folder / "features.npz").items()}
    batch = batch_from_deepmind(features)
    case = Case(
        name=NAME,
        folder=folder,
        meta=json.loads((folder / "meta.json").read_text()),
        batches=[batch],
        recycled=[],
        outputs=dict(np.load(folder / ("losses.npz" if sampled else "outputs.npz"))),
    )
    tensors = {
        name: torch.from_numpy(np.asarray(value, np.int64 if value.dtype.kind == "i" else np.float32))[None]
        for name, value in features.items()
        if name in Labels.__dataclass_fields__
    }
    labels = Labels(**tensors, use_clamped_fape=torch.ones(1))
    model = case.model(tmp_path_factory.mktemp(NAME))
    outputs = model(Whole(), [batch])
    total_loss(outputs, batch, labels, loss_config(case.meta["config"]["heads"])).weighted.sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return LossCase(
        case=case,
        labels=labels,
        outputs=outputs,
        found_gradients=from_state_dict(
            {name: each for name, each in gradients.items() if each is not None}, model.config
        ),
        gradients=dict(np.load(folder / "gradients.npz")),
    )


def test_every_term_equals_deepminds(loss_case: LossCase) -> None:
    case, expected = loss_case.case, loss_case.case.outputs
    config = loss_config(case.meta["config"]["heads"])
    with torch.no_grad():
        found = total_loss(loss_case.outputs, case.batches[0], loss_case.labels, config)
    for ours, theirs in TERMS.items():
        np.testing.assert_allclose(found.unweighted[ours][0], expected[theirs], rtol=1e-5, err_msg=ours)
    np.testing.assert_allclose(found.weighted[0], expected["total_loss"], rtol=1e-5)
    np.testing.assert_allclose(found.total[0], expected["total_loss"] * np.sqrt(29), rtol=1e-5)
    # DeepMind hands out no violation loss: it is what the structure module's loss has beside its other terms.
    terms = found.unweighted
    rest = (terms["backbone_fape"] + terms["sidechain_fape"] + terms["torsion"]) / 2 + terms["angle_norm"] / 100
    np.testing.assert_allclose((terms["violation"] + rest)[0], expected["structure_module/loss"], rtol=1e-5)


def test_backbone_error_of_the_last_iteration_equals_deepminds(loss_case: LossCase) -> None:
    labels, frames = loss_case.labels, loss_case.outputs.structure.frames
    groups = rigid_groups_from_atom37(labels.aatype, labels.all_atom_positions, labels.all_atom_mask)
    with torch.no_grad():
        found = backbone_fape(frames[-1:], groups.frames[..., 0], groups.mask[..., 0], torch.tensor([10.0]))
    np.testing.assert_allclose(found[0], loss_case.case.outputs["structure_module/fape"], rtol=1e-5)


def test_the_truth_is_renamed_as_deepminds(loss_case: LossCase) -> None:
    labels, expected = loss_case.labels, loss_case.case.outputs
    groups = rigid_groups_from_atom37(labels.aatype, labels.all_atom_positions, labels.all_atom_mask)
    found = renamed_truth(loss_case.outputs.structure.atom14[-1].detach(), labels, groups)
    assert expected["structure_module/alt_naming_is_better"].sum() > 0
    np.testing.assert_array_equal(found.atom14[0], expected["structure_module/renamed_atom14_gt_positions"])
    np.testing.assert_array_equal(found.atom14_mask[0], expected["structure_module/renamed_atom14_gt_exists"])


def test_the_gradient_for_every_parameter_equals_deepminds(loss_case: LossCase) -> None:
    case, expected = loss_case.case, loss_case.gradients
    assert loss_case.found_gradients.keys() == expected.keys()
    failures = []
    for name, found in loss_case.found_gradients.items():
        values = found.reshape(-1)
        if expected[name].size < values.size:
            values = values[:: -(-values.size // SAMPLED) | 1]
        largest = max(case.meta["float32_noise"][f"grad/{name}"]["max"], 1e-12)
        error = float(np.abs(values - expected[name].reshape(-1)).max() / largest)
        if not error <= case.tolerance(f"grad/{name}"):
            failures.append(f"  {name}: {error:.1e}")
    assert not failures, "\n".join([f"{len(failures)} of {len(expected)} gradients deviate", *failures])
