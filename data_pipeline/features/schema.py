"""Features of a target, from which the model's inputs are sampled, and their `.npz` file.

`FEATURE_AXES` has the axes of each numeric array: `r` residues, `n` MSA rows, `t` templates, or a size. `REAL_NUMBERS`
names the arrays of floating-point numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write
from data_pipeline.io.npz import read_npz
from data_pipeline.parse.fasta import find_invalid_letter
from data_pipeline.residues import GAP, UNKNOWN

# Axes of all numeric arrays: residues r, MSA rows n and templates t. Stored training examples have this order.
FEATURE_AXES: dict[str, tuple[str | int, ...]] = {
    "aatype": ("r",),
    "residue_index": ("r",),
    "template_aatype": ("t", "r"),
    "template_all_atom_masks": ("t", "r", 37),
    "template_all_atom_positions": ("t", "r", 37, 3),
    "template_sum_probs": ("t", 1),
    "deletion_matrix": ("n", "r"),
    "msa": ("n", "r"),
}
_STRING_AXES: dict[str, tuple[str | int, ...]] = {"domain_name": (), "sequence": (), "template_domain_names": ("t",)}
REAL_NUMBERS = ("template_all_atom_positions", "template_all_atom_masks", "template_sum_probs")  # others are integers


@dataclass(frozen=True, kw_only=True)
class Features:
    """Features of one target, from which the model's inputs are sampled: sequence, MSA and templates.

    Names are AlphaFold's; `features.npz` contains these arrays. Axes: `r` residues, `n` MSA rows, `t` templates.
    Residue types are 0 to 19, 20 for unknown, and in the MSA and templates 21 for a gap. `residue_index` counts from 0.
    `deletion_matrix` has the number of residues of a row before each column that the target lacks. Template positions
    are in Å. `template_domain_names` are names such as 1abc_A, and `template_sum_probs` is hhsearch's sum of
    probabilities, or 0 for other searches.
    """

    domain_name: str  # name of the target
    sequence: str  # one-letter codes
    aatype: Int[np.ndarray, "r"]  # residue types of the sequence
    residue_index: Int[np.ndarray, "r"]  # from 0
    msa: Int[np.ndarray, "n r"]  # int8, without duplicate rows; row 0 is the target
    deletion_matrix: Int[np.ndarray, "n r"]  # residues before each column that the target lacks
    template_domain_names: tuple[str, ...]  # entry and chain, "1abc_A"
    template_aatype: Int[np.ndarray, "t r"]
    template_all_atom_positions: Float[np.ndarray, "t r 37 3"]  # Å, 0 where the mask is 0
    template_all_atom_masks: Float[np.ndarray, "t r 37"]  # 1 where the template has the atom
    template_sum_probs: Float[np.ndarray, "t 1"]  # hhsearch's sum of probabilities, 0 for other searches

    def save(self, path: str | PathLike[str]) -> None:
        """Write a compressed `.npz`, with strings as unicode arrays; equal features give equal bytes."""
        write_arrays(path, self.arrays())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of `features.npz`, with strings as unicode arrays."""
        arrays = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        arrays["template_domain_names"] = np.asarray(self.template_domain_names, dtype=np.str_)
        return arrays

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Features":
        """Read a file of `save`; raise `InputError` for invalid files."""
        arrays = read_npz(path, problem=lambda outlines: advised(shape_problem(outlines)))
        return cls.from_arrays(arrays, path)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], path: str | PathLike[str]) -> "Features":
        """Return the features from the arrays of a file; raise `InputError` if they are invalid."""
        if (problem := advised(shape_problem(arrays) or value_problem(arrays))) is not None:
            raise InputError.at(path, problem)
        return cls(
            domain_name=str(arrays["domain_name"]),
            sequence=str(arrays["sequence"]),
            template_domain_names=tuple(map(str, arrays["template_domain_names"])),
            **{name: arrays[name] for name in FEATURE_AXES},
        )


def array_shape(axes: tuple[str | int, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an array from its axes, as in `FEATURE_AXES`, and the sizes of the named ones."""
    return tuple(axis if isinstance(axis, int) else sizes[axis] for axis in axes)


def write_arrays(path: str | PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a compressed `.npz`; equal arrays give equal bytes."""
    with atomic_write(Path(path)) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # NumPy's stub mistakes them for the option


def advised(problem: str | None) -> str | None:
    """Return a message about a feature file with advice to create it again, or None if `problem` is None."""
    return problem and f"{problem}; create the features again"


def shape_problem(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return a message if the types and shapes of arrays are not valid for features, else None.

    An array that is missing, or that is not a feature, is a problem too.
    """
    axes_of = _STRING_AXES | FEATURE_AXES
    if missing := [name for name in axes_of if name not in arrays]:
        return f"{', '.join(missing)} missing"
    if unknown := [name for name in arrays if name not in axes_of]:
        return f"'{printable(unknown[0])}' is not a feature"
    for name, axes in axes_of.items():
        array = arrays[name]
        kind = "U" if name in _STRING_AXES else "f" if name in REAL_NUMBERS else "i"
        if array.ndim != len(axes) or array.dtype.kind != kind:
            return f"{name} is {array.dtype} {array.shape}"
    sizes = {"r": len(arrays["aatype"]), "n": len(arrays["msa"]), "t": len(arrays["template_domain_names"])}
    if sizes["r"] < 1 or sizes["n"] < 1:
        return f"there are {sizes['r']} residues and {sizes['n']} MSA rows; both must be at least 1"
    for name, axes in axes_of.items():
        if arrays[name].shape != (shape := array_shape(axes, sizes)):
            return f"{name} is {arrays[name].dtype} {arrays[name].shape}, expected {shape}"
    return None


def value_problem(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return a message if the values of arrays with valid shapes are not valid for features, else None.

    They must be in range and finite, and consistent with the sequence; `residue_index` must increase.
    """
    for name, highest in (("aatype", UNKNOWN), ("msa", GAP), ("template_aatype", GAP)):
        array = arrays[name]
        if array.size and (array.min() < 0 or array.max() > highest):
            return f"{name} has values outside 0..{highest}"
    for name in REAL_NUMBERS:
        if not np.isfinite(arrays[name]).all():
            return f"{name} has values that are not finite"
    return _disagreement(arrays)


def _disagreement(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return a message if arrays are inconsistent with each other, else None."""
    sequence = str(arrays["sequence"])
    if (letter := find_invalid_letter(sequence)) is not None:
        return f"residue {letter[0] + 1} of the sequence: {letter[1]}"
    aatype, first = arrays["aatype"], arrays["msa"][0]
    if not np.array_equal(aatype, aatype_from_sequence(sequence)):
        return "aatype does not match the sequence"
    if not np.array_equal(first[aatype != UNKNOWN], aatype[aatype != UNKNOWN]):
        return "the first row of msa is not the sequence"
    if arrays["deletion_matrix"].min() < 0:
        return "deletion_matrix has negative values"
    numbers = arrays["residue_index"]
    if numbers[0] < 0 or (np.diff(numbers) < 1).any():
        return "residue_index does not count up from 0 or more"
    return None
