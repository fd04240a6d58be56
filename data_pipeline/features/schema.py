"""The two containers of the feature pipeline: everything known about a target, and one random draw of it."""

from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Self

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.arrays import read_npz
from data_pipeline.errors import InputError
from data_pipeline.residues import GAP, UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Features:
    """Raw features of one target, nothing sampled yet; `features.npz` holds exactly these.

    Names are AlphaFold's; residue types are ours (0..19, 20 unknown, in MSAs and templates also 21 gap).
    """

    domain_name: str  # the target's name
    sequence: str
    aatype: Int[np.ndarray, "r"]
    residue_index: Int[np.ndarray, "r"]  # from 0
    msa: Int[np.ndarray, "n r"]  # int8, without duplicate rows; row 0 is the target
    deletion_matrix: Int[np.ndarray, "n r"]  # residues a row has just before each column that the target lacks
    template_domain_names: tuple[str, ...]
    template_aatype: Int[np.ndarray, "t r"]
    template_all_atom_positions: Float[np.ndarray, "t r 37 3"]  # Angstrom
    template_all_atom_masks: Float[np.ndarray, "t r 37"]
    template_sum_probs: Float[np.ndarray, "t 1"]

    def __post_init__(self) -> None:
        r, n, t = len(self.sequence), len(self.msa), len(self.template_domain_names)
        if r < 1 or n < 1:
            raise ValueError(f"features of {self.domain_name}: need a residue and an MSA row, got {r} and {n}")
        for name, kind, shape in (
            ("aatype", "i", (r,)),
            ("residue_index", "i", (r,)),
            ("msa", "i", (n, r)),
            ("deletion_matrix", "i", (n, r)),
            ("template_aatype", "i", (t, r)),
            ("template_all_atom_positions", "f", (t, r, 37, 3)),
            ("template_all_atom_masks", "f", (t, r, 37)),
            ("template_sum_probs", "f", (t, 1)),
        ):
            array: np.ndarray = getattr(self, name)
            if array.shape != shape or array.dtype.kind != kind:
                wanted = "integers" if kind == "i" else "floats"
                raise ValueError(
                    f"features of {self.domain_name}: {name} must be {wanted} of shape {shape}, "
                    f"got {array.dtype} {array.shape}"
                )
        for name, highest in (("aatype", UNKNOWN), ("msa", GAP), ("template_aatype", GAP)):
            array = getattr(self, name)
            if array.size and (array.min() < 0 or array.max() > highest):
                raise ValueError(f"features of {self.domain_name}: {name} must be within 0..{highest}")

    def save(self, path: str | PathLike[str]) -> None:
        """Write a compressed `.npz`, strings as unicode arrays; the same features give the same bytes."""
        arrays = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        arrays["template_domain_names"] = np.asarray(self.template_domain_names, dtype=np.str_)
        with Path(path).open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` wrote; `InputError` says what is wrong with any other file."""
        arrays = read_npz(path)
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in arrays]
        if missing:
            raise InputError.at(path, f"features {', '.join(missing)} are missing; make the features again")
        texts = {name: arrays[name] for name in ("domain_name", "sequence", "template_domain_names")}
        for name, text in texts.items():
            if text.dtype.kind != "U" or text.ndim != (name == "template_domain_names"):
                raise InputError.at(path, f"{name} must be text, got {text.dtype} {text.shape}")
        try:
            return cls(
                domain_name=str(texts["domain_name"]),
                sequence=str(texts["sequence"]),
                template_domain_names=tuple(map(str, texts["template_domain_names"])),
                **{name: arrays[name] for name in names if name not in texts},
            )
        except ValueError as error:
            raise InputError.at(path, str(error)) from error


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What the model reads in one recycling pass, without batch dimension; AlphaFold's names (Suppl. Table 1).

    Residue types in `true_msa` and `extra_msa` are 0..20, 21 gap, 22 masked. `t` may be 0.
    """

    aatype: Int[np.ndarray, "r"]
    residue_index: Int[np.ndarray, "r"]
    seq_mask: Float[np.ndarray, "r"]
    target_feat: Float[np.ndarray, "r 22"]
    msa_feat: Float[np.ndarray, "s r 49"]
    msa_mask: Float[np.ndarray, "s r"]
    true_msa: Int[np.ndarray, "s r"]  # before BERT masking
    bert_mask: Float[np.ndarray, "s r"]  # 1 where the masked-MSA head is asked
    extra_msa: Int[np.ndarray, "e r"]
    extra_has_deletion: Float[np.ndarray, "e r"]
    extra_deletion_value: Float[np.ndarray, "e r"]
    extra_msa_mask: Float[np.ndarray, "e r"]
    template_aatype: Int[np.ndarray, "t r"]
    template_all_atom_positions: Float[np.ndarray, "t r 37 3"]  # Angstrom
    template_all_atom_masks: Float[np.ndarray, "t r 37"]
    template_mask: Float[np.ndarray, "t"]
    template_pseudo_beta: Float[np.ndarray, "t r 3"]  # C-beta, C-alpha of glycine
    template_pseudo_beta_mask: Float[np.ndarray, "t r"]
