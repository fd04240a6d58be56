"""Geometry equals DeepMind's functions on the same numbers."""

import numpy as np
import pytest
import torch
from torch import Tensor

from helixfold.model.embedders import RECYCLED_BINS
from helixfold.model.geometry.atoms import (
    DistanceBins,
    atom14_from_rigid_groups,
    atom14_to_atom37,
    distogram,
    pseudo_beta,
    rigid_groups_from_torsions,
)
from helixfold.model.geometry.frames import BackboneFrames
from helixfold.model.geometry.rigid import Rigid, rigid_from_three_points
from helixfold.model.geometry.tables import per_residue
from helixfold.model.geometry.torsions import torsions_from_atom37
from helixfold.model.templates import TEMPLATE_BINS
from helixfold.ops.structure.quaternions import quaternion_to_rotation
from tests.parity.cases import DATA, deviation

pytestmark = pytest.mark.parity

ANGSTROM = 1e-4  # largest deviation of positions


class Function:
    """Arguments and results of one function, each with a leading batch dimension."""

    def __init__(self, name: str) -> None:
        with np.load(DATA / "modules" / "functions.npz") as arrays:
            stored = {key.removeprefix(f"{name}|"): arrays[key] for key in arrays.files if key.startswith(f"{name}|")}
        self.given = {key.removeprefix("in:"): _tensor(value) for key, value in stored.items() if key.startswith("in:")}
        self.returned = {key.removeprefix("out:"): value for key, value in stored.items() if key.startswith("out:")}


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind == "i" else array)[None]


def affine_frames(affine: Tensor) -> BackboneFrames:
    quaternion, translation = affine.split([4, 3], -1)
    return BackboneFrames.of(quaternion, translation)


def test_torsions_of_atoms_where_they_are_defined() -> None:
    function = Function("atom37_to_torsion_angles_placeholder")
    given = (function.given[name][0] for name in ("aatype", "all_atom_pos", "all_atom_mask"))
    found, expected = torsions_from_atom37(*given), function.returned
    np.testing.assert_array_equal(found.mask, expected["torsion_angles_mask"])
    defined = found.mask.bool().numpy()
    assert 0.3 < defined.mean() < 1
    for ours, theirs in (
        (found.sin_cos, expected["torsion_angles_sin_cos"]),
        (found.alternative_sin_cos, expected["alt_torsion_angles_sin_cos"]),
    ):
        assert np.abs(ours.numpy()[defined] - theirs[defined]).max() < 1e-5


def test_frames_of_torsions() -> None:
    function = Function("torsion_angles_to_frames")
    aatype, affine, sin_cos = (function.given[name] for name in ("aatype", "affine", "torsion_angles_sin_cos"))
    found = rigid_groups_from_torsions(aatype, affine_frames(affine).rigid(), sin_cos)
    flat = torch.cat([found.rotation.flatten(-2), found.translation], -1)[0]
    assert np.abs(flat.numpy() - function.returned["result"]).max() < ANGSTROM


def test_atoms_of_frames() -> None:
    groups = torch.from_numpy(Function("torsion_angles_to_frames").returned["result"])[None]
    function = Function("frames_and_literature_positions_to_atom14_pos")
    frames = Rigid(rotation=groups[..., :9].unflatten(-1, (3, 3)), translation=groups[..., 9:])
    found = atom14_from_rigid_groups(function.given["aatype"], frames)[0]
    assert np.abs(found.numpy() - function.returned["result"]).max() < ANGSTROM


def test_atom14_to_atom37() -> None:
    function = Function("atom14_to_atom37")
    aatype = Function("frames_and_literature_positions_to_atom14_pos").given["aatype"]
    given = function.given
    np.testing.assert_array_equal(per_residue("ATOM37_TO_ATOM14", aatype), given["residx_atom37_to_atom14"])
    found = atom14_to_atom37(given["atom14"], aatype, given["atom37_atom_exists"])
    np.testing.assert_array_equal(found[0], function.returned["result"])


@pytest.mark.parametrize(("name", "bins"), [("prev", RECYCLED_BINS), ("template", TEMPLATE_BINS)])
def test_one_hot_distances(name: str, bins: DistanceBins) -> None:
    function = Function(f"dgram_from_positions_{name}")
    found = distogram(function.given["positions"], function.given["positions"], bins)[0]
    np.testing.assert_array_equal(found, function.returned["result"])
    assert found.sum() > 0


def test_pseudo_beta() -> None:
    function = Function("pseudo_beta_fn")
    found = pseudo_beta(function.given["aatype"], function.given["all_atom_positions"])
    np.testing.assert_array_equal(found[0], function.returned["pseudo_beta"])


def test_backbone_update() -> None:
    function = Function("quat_affine_pre_compose")
    found = affine_frames(function.given["affine"]).updated(function.given["update"]).to_tensor()
    assert deviation(found[0].numpy(), function.returned["result"]) < 1e-6


def test_rotations_of_quaternions() -> None:
    function = Function("quat_to_rot")
    expected = np.stack([function.returned[f"/{row}/{column}"] for row in range(3) for column in range(3)], -1)
    found = quaternion_to_rotation(function.given["q"])[0].flatten(-2)
    assert deviation(found.numpy(), expected) < 1e-6


def test_frames_of_three_atoms() -> None:
    """DeepMind's template frames have C on the positive x axis; mirrored about CA it is on the negative one."""
    function = Function("make_transform_from_reference")
    n, ca, c = (function.given[name] for name in ("n", "ca", "c"))
    found = rigid_from_three_points(2 * ca - c, ca, n)
    assert np.abs(found.rotation[0].numpy() - function.returned["rot"]).max() < 1e-5
    np.testing.assert_array_equal(found.translation[0], function.returned["trans"])
