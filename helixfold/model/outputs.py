"""What the model hands out: typed results of the trunk, the structure module and the heads."""

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float
from torch import Tensor

from helixfold.model.stream import Stream


@dataclass(frozen=True, kw_only=True)
class Recycled:
    """What one pass leaves to the next: query row, pair stream and atoms (Angstrom).

    The pair stream is given away to the next pass, which may make its own in that memory.
    """

    msa_first_row: Float[Tensor, "b r c_m"]
    pair: Float[Stream, "b r r c_z"]
    positions: Float[Tensor, "b r 37 3"]


@dataclass(frozen=True, kw_only=True)
class Representations:
    """The trunk's result. `msa` has the sampled sequences only, without template rows."""

    msa: Float[Stream, "b s r c_m"]
    msa_first_row: Float[Tensor, "b r c_m"]
    pair: Float[Stream, "b r r c_z"]
    single: Float[Tensor, "b r c_s"]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The structure module's result; the first axis of each trajectory is its iterations. Lengths in Angstrom."""

    single: Float[Tensor, "b r c"]
    frames: Float[Tensor, "l b r 7"]
    rigid_groups: Float[Tensor, "l b r 8 3 4"]
    atom14: Float[Tensor, "l b r 14 3"]
    torsions: Float[Tensor, "l b r 7 2"]
    unnormalized_torsions: Float[Tensor, "l b r 7 2"]
    atom14_mask: Float[Tensor, "b r 14"]
    positions: Float[Tensor, "b r 37 3"]
    mask: Float[Tensor, "b r 37"]


@dataclass(frozen=True, kw_only=True)
class Logits:
    """The heads' results, float32. `aligned_error` is None for models without that head."""

    distogram: Float[Tensor, "b r r v"]
    masked_msa: Float[Tensor, "b s r 23"]
    lddt: Float[Tensor, "b r v_lddt"]
    experimentally_resolved: Float[Tensor, "b r 37"]
    aligned_error: Float[Tensor, "b r r v_error"] | None

    def arrays(self) -> dict[str, np.ndarray]:
        """Those of the first sample, by head."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value[0].cpu().numpy() for name, value in found.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Folded:
    """What a pass computes but for the heads."""

    representations: Representations
    structure: Structure

    def recycled(self) -> Recycled:
        """What the next pass starts from; no gradient crosses. Both share the pair stream's memory."""
        return Recycled(
            msa_first_row=self.representations.msa_first_row.detach(),
            pair=self.representations.pair.detach(),
            positions=self.structure.positions.detach(),
        )


@dataclass(frozen=True, kw_only=True)
class Outputs(Folded):
    """Everything one pass computes."""

    logits: Logits
