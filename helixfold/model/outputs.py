"""Results of the trunk, the structure module and the heads."""

from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.model.config import ModelConfig
from helixfold.model.stream import Stream
from helixfold.model.update import Executor


@dataclass(frozen=True, kw_only=True)
class Recycled:
    """Input from the previous recycling iteration: the MSA's first row, the pair stream and the atoms (atom37, Å).

    The next iteration may overwrite the pair stream.
    """

    msa_first_row: Float[Tensor, "b r c_m"]
    pair: Float[Stream, "b r r c_z"]
    positions: Float[Tensor, "b r 37 3"]


def nothing_recycled(run: Executor, config: ModelConfig, mask: Float[Tensor, "b r"], dtype: torch.dtype) -> Recycled:
    """Return zeros as the recycled input of the first iteration, with a pair stream of the executor `run`.

    `mask` determines the shape and the device only. Positions have the dtype of the mask, the others `dtype`.
    """

    def rows(_: slice, rows_of_mask: Tensor) -> Tensor:
        return rows_of_mask.new_zeros(*rows_of_mask.shape, mask.shape[1], config.c_z, dtype=dtype)

    return Recycled(
        msa_first_row=mask.new_zeros(*mask.shape, config.evoformer.c_m, dtype=dtype),
        pair=run.map_rows(rows, mask),
        positions=mask.new_zeros(*mask.shape, 37, 3),
    )


@dataclass(frozen=True, kw_only=True)
class Representations:
    """Representations after the trunk. `msa` has the rows of the sampled sequences, without template rows.

    `msa_first_row` is the MSA row of the target, before the linear map that makes `single` of it.
    """

    msa: Float[Stream, "b s r c_m"]
    msa_first_row: Float[Tensor, "b r c_m"]
    pair: Float[Stream, "b r r c_z"]
    single: Float[Tensor, "b r c_s"]


@dataclass(frozen=True, kw_only=True)
class PredictedStructure:
    """Result of the structure module. Lengths are in Angstrom; dim `l` is its iterations.

    `single` is its single representation after the last iteration. `frames` are backbone frames: unit quaternions (w,
    x, y, z), then translations. `rigid_groups` are rotation matrices with translations as the last column. Torsions are
    sine and cosine of pre-omega, phi, psi and chi1 to chi4. `from_template` is 1 for residues that started from a
    template's backbone. The masks are 1 for atoms of the residue's type in real residues. `positions` are 0 where
    `mask` is.
    """

    single: Float[Tensor, "b r c"]
    frames: Float[Tensor, "l b r 7"]  # backbone frames: unit quaternions (w, x, y, z), then translations
    rigid_groups: Float[Tensor, "l b r 8 3 4"]  # rotation matrices, with the translation as the last column
    atom14: Float[Tensor, "l b r 14 3"]
    torsions: Float[Tensor, "l b r 7 2"]  # sine and cosine
    unnormalized_torsions: Float[Tensor, "l b r 7 2"]
    atom14_mask: Float[Tensor, "b r 14"]
    positions: Float[Tensor, "b r 37 3"]  # the atoms of the last iteration
    mask: Float[Tensor, "b r 37"]
    from_template: Float[Tensor, "b r"]  # 1 for residues that started from a template's backbone


@dataclass(frozen=True, kw_only=True)
class Logits:
    """Logits of all heads, float32. `aligned_error` is None for models without that head."""

    distogram: Float[Tensor, "b r r v"]
    masked_msa: Float[Tensor, "b s r v_letters"]
    lddt: Float[Tensor, "b r v_lddt"]
    experimentally_resolved: Float[Tensor, "b r 37"]
    aligned_error: Float[Tensor, "b r r v_error"] | None

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the logits of the first sample as arrays, by head; heads that the model lacks are left out."""
        logits = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value[0].cpu().numpy() for name, value in logits.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Folded:
    """Result of one recycling iteration without the logits of the heads."""

    representations: Representations
    structure: PredictedStructure

    def recycled(self, *, with_gradients: bool = False) -> Recycled:
        """Return the input of the next recycling iteration, which shares this result's pair stream.

        By default no gradients pass to this iteration; with `with_gradients` they do. Atoms have no gradient, because
        only the bins of their distances are recycled.
        """
        row, pair = self.representations.msa_first_row, self.representations.pair
        return Recycled(
            msa_first_row=row if with_gradients else row.detach(),
            pair=pair if with_gradients else pair.detach(),
            positions=self.structure.positions.detach(),
        )


@dataclass(frozen=True, kw_only=True)
class Outputs(Folded):
    """Result of one recycling iteration with the logits of all heads."""

    logits: Logits
