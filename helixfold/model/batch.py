"""The model's input: sampled features as tensors with a leading batch dimension."""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from data_pipeline.features.sample import SAMPLE_AXES, Sample


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Features of one recycling iteration, under AlphaFold's names (Suppl. Table 1).

    Residue types are 0 to 20 (20 is unknown); MSAs also have 21 (gap) and 22 (masked). Positions are in Angstrom.
    Templates whose `template_mask` is 0 are ignored; `t` may be 0. Dims are b targets, r residues, s rows of the main
    MSA, e extra MSA rows and t templates. Masks are 1 for real elements and 0 for padding or missing atoms.

    `target_feat` is the one-hot residue type of the target after a channel of zeros. `msa_feat` has the one-hot letter
    of each cluster centre, its deletions, and the profile and mean deletions of its cluster. `extra_has_deletion` is 1
    where residues were deleted before a column, and `extra_deletion_value` is their number d as 2 / pi * arctan(d / 3).
    """

    aatype: Int[Tensor, "b r"]
    residue_index: Int[Tensor, "b r"]
    seq_mask: Float[Tensor, "b r"]
    target_feat: Float[Tensor, "b r 22"]
    msa_feat: Float[Tensor, "b s r 49"]
    msa_mask: Float[Tensor, "b s r"]
    extra_msa: Int[Tensor, "b e r"]
    extra_has_deletion: Float[Tensor, "b e r"]
    extra_deletion_value: Float[Tensor, "b e r"]
    extra_msa_mask: Float[Tensor, "b e r"]
    template_aatype: Int[Tensor, "b t r"]
    template_all_atom_positions: Float[Tensor, "b t r 37 3"]
    template_all_atom_masks: Float[Tensor, "b t r 37"]
    template_mask: Float[Tensor, "b t"]
    template_pseudo_beta: Float[Tensor, "b t r 3"]
    template_pseudo_beta_mask: Float[Tensor, "b t r"]
    # Offsets i - j along the chain if they are not the differences of `residue_index`, such as in cyclic peptides.
    offsets: Int[Tensor, "b r r"] | None = None
    # Probabilities of the residue types of templates, instead of `template_aatype`.
    template_types: Float[Tensor, "b t r 22"] | None = None
    # Distance restraints of a batch of one target: residue indices, and for each pair the numbers that describe it.
    restrained_pairs: Int[Tensor, "n 2"] | None = None
    restraint_values: Float[Tensor, "n v"] | None = None

    @classmethod
    def from_samples(
        cls,
        samples: Sequence[Sample],
        residues: int | None = None,
        device: torch.device | str = "cpu",
        *,
        round_rows: Callable[[int], int] = lambda rows: rows,
    ) -> "Batch":
        """Return a batch of samples, padded with zeros at the end.

        Samples are padded to `residues` residues (by default the largest sample's), to the largest number of rows of
        each MSA, rounded up by `round_rows`, and to the largest number of templates. Masks are 0 in the padding. Fields
        with a default, such as `offsets`, keep it.
        """
        stacked = {}
        for name in sampled_fields(cls):
            arrays = [getattr(sample, name) for sample in samples]
            shape = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
            axes = SAMPLE_AXES.get(name, "r")  # the fields of chain numbers have one axis
            if residues is not None and "r" in axes:
                shape[axes.index("r")] = residues
            if axes[0] in "se":
                shape[0] = round_rows(shape[0])
            joined = np.zeros((len(arrays), *shape), arrays[0].dtype)
            for place, array in zip(joined, arrays, strict=True):
                place[tuple(map(slice, array.shape))] = array
            stacked[name] = batch_of_one(joined, device)[0]
        return cls(**stacked)


@dataclass(frozen=True, kw_only=True)
class MultimerBatch(Batch):
    """Features of one recycling iteration of a complex for AlphaFold-Multimer, including the chain of each residue.

    Residues are numbered within each chain. `asym_id` is the index of a residue's chain in the complex, `entity_id` of
    its sequence and `sym_id` of the chain among chains of the same sequence, all from 1; padding has 0. `target_feat`
    lacks the channel of zeros. `t` is the number of template slots. All slots are averaged, with or without a template
    (`template_mask`); AlphaFold-Multimer always has four.
    """

    target_feat: Float[Tensor, "b r 21"]
    asym_id: Int[Tensor, "b r"]  # index of the chain in the complex, from 1
    entity_id: Int[Tensor, "b r"]  # index of the sequence, shared by equal chains
    sym_id: Int[Tensor, "b r"]  # index of the chain among chains of the same sequence
    # Number of equal slots that each slot stands for in the average, where empty slots were merged.
    template_slots: Float[Tensor, "b t"] | None = None
    # Slots whose template shows how chains are arranged; None: each template is for one chain.
    template_spans_chains: Bool[Tensor, "b t"] | None = None


def sampled_fields(kind: type[Batch]) -> list[str]:
    """Return the names of the required fields of a batch class, which samples have, too."""
    return [field.name for field in fields(kind) if field.default is MISSING]


def with_chains(batch: Batch) -> MultimerBatch:
    """Return the batch if it has the chain of each residue; raise TypeError for a batch of monomers."""
    if not isinstance(batch, MultimerBatch):
        raise TypeError(f"AlphaFold-Multimer needs a MultimerBatch, got a {type(batch).__name__}")
    return batch


def batch_of_one(array: np.ndarray, device: torch.device | str) -> Tensor:
    """Return a copy as a tensor with a leading batch dimension of 1: int64 for an integer array, else float32."""
    dtype = torch.int64 if np.issubdtype(array.dtype, np.integer) else torch.float32
    return torch.tensor(np.ascontiguousarray(array), dtype=dtype, device=device)[None]
