"""The kernel of rigid groups and chi angles gives what the reference gives; Triton's interpreter runs it here."""

import pytest
import torch

from data_pipeline.residues import RESTYPES_WITH_X
from helixfold.model.geometry.observed import observed_geometry
from helixfold.ops.device_properties import DEVICE_MODELS
from tests.ops.comparing import by_triton

pytest.importorskip("triton")


def test_groups_and_chis_of_all_residue_types_equal_the_references() -> None:
    """Some atoms are missing, and one residue's are all at one place, as those of padding are."""
    aatype = torch.arange(2 * len(RESTYPES_WITH_X)).remainder(len(RESTYPES_WITH_X)).view(2, -1)
    positions = 5 * torch.randn(*aatype.shape, 37, 3)
    mask = (torch.rand(*aatype.shape, 37) > 0.1).float()
    positions[0, 3] = 0
    found = by_triton(observed_geometry)(aatype, positions, mask)
    expected = observed_geometry.reference(aatype, positions.double(), mask.double())
    for ours, right in zip(found, expected, strict=True):
        assert ours.shape == right.shape
        torch.testing.assert_close(ours.cpu().double(), right, rtol=1e-5, atol=2e-5)
    assert found[3].sum() > 0
    assert found[6].sum() > 0


def test_it_refuses_what_it_cannot_compute() -> None:
    aatype, positions, mask = torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, 37, 3), torch.ones(1, 2, 37)

    def unsupported_reason(*given: torch.Tensor) -> str | None:
        return observed_geometry.unsupported_reasons(DEVICE_MODELS["h100"], *given)["triton"]

    assert unsupported_reason(aatype, positions, mask) is None
    assert unsupported_reason(aatype, positions.double(), mask.double()) == "it computes in float32 only"
    assert unsupported_reason(aatype, positions.requires_grad_(), mask) == "it computes no gradients"
    assert unsupported_reason(aatype[:, :0], positions[:, :0].detach(), mask[:, :0]) == "there is nothing to compute"
