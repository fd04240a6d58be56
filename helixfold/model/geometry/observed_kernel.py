"""Triton kernel for the geometry of observed structures, with its tables of residue types."""

from torch import Tensor

from helixfold.model.geometry.rigid_groups import group_tables
from helixfold.model.geometry.tables import table
from helixfold.ops.triton.structure.observed_geometry import observed


def observed_geometry_triton(aatype: Tensor, positions: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Compute `observed_geometry` on a CUDA device."""
    chi_tables = (table(name, aatype.device) for name in ("CHI_ATOM_INDICES", "CHI_ANGLES_MASK", "CHI_PI_PERIODIC"))
    return observed(aatype, positions, mask, (*group_tables(aatype.device), *chi_tables))
