"""The raw features of a target, from which samples are drawn, and the file that holds them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.errors import InputError, printable
from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.files import atomic_write
from data_pipeline.npz import read_npz
from data_pipeline.parse.fasta import find_invalid_letter
from data_pipeline.residues import GAP, UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Features:
    """Raw features of one target before any sampling; `features.npz` holds exactly these.

    Names are AlphaFold's. Residue types are 0..19, 20 unknown, in MSAs and templates also 21 gap.
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

    def save(self, path: str | PathLike[str]) -> None:
        """Write a compressed `.npz`, with strings as unicode arrays; equal features give equal bytes."""
        arrays = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        arrays["template_domain_names"] = np.asarray(self.template_domain_names, dtype=np.str_)
        with atomic_write(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # NumPy's stub takes them for the option

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Features":
        """Read the file that `save` wrote; raise an `InputError` that says what is wrong with any other file."""
        names = [field.name for field in fields(cls)]
        arrays = read_npz(path, problem=lambda outlines: _advised(_shape_problem(names, outlines)))
        if (problem := _advised(_problem(arrays))) is not None:
            raise InputError.at(path, problem)
        return cls(
            domain_name=str(arrays["domain_name"]),
            sequence=str(arrays["sequence"]),
            template_domain_names=tuple(map(str, arrays["template_domain_names"])),
            **{name: arrays[name] for name in names if arrays[name].dtype.kind != "U"},
        )


def _advised(problem: str | None) -> str | None:
    return problem and f"{problem}; make the features again"


def _shape_problem(names: Sequence[str], arrays: dict[str, np.ndarray]) -> str | None:
    """What makes arrays no features whatever they hold, or None."""
    if missing := [name for name in names if name not in arrays]:
        return f"{', '.join(missing)} missing"
    if unknown := [name for name in arrays if name not in names]:
        return f"'{printable(unknown[0])}' is no feature"
    strings, numbers = ("domain_name", "sequence", "template_domain_names"), ("aatype", "msa")
    for name, ndim in zip((*strings, *numbers), (0, 0, 1, 1, 2), strict=True):
        array = arrays[name]
        if array.ndim != ndim or (array.dtype.kind == "U") == (name in numbers):
            return f"{name} is {array.dtype} {array.shape}"
    n, r, t = (len(arrays[name]) for name in ("msa", "aatype", "template_domain_names"))
    if r < 1 or n < 1:
        return f"there are {r} residues and {n} MSA rows, and each must be at least 1"
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
        array = arrays[name]
        if array.shape != shape or array.dtype.kind != kind:
            return f"{name} is {array.dtype} {array.shape} and should be {'int' if kind == 'i' else 'float'} {shape}"
    return None


def _problem(arrays: dict[str, np.ndarray]) -> str | None:
    """Return why the values of arrays of the right shapes are not valid features, or None if they are."""
    if len(str(arrays["sequence"])) != len(arrays["aatype"]):
        return f"the sequence has {len(str(arrays['sequence']))} residues and aatype {len(arrays['aatype'])}"
    for name, highest in (("aatype", UNKNOWN), ("msa", GAP), ("template_aatype", GAP)):
        array = arrays[name]
        if array.size and (array.min() < 0 or array.max() > highest):
            return f"{name} has values outside 0..{highest}"
    for name in ("template_all_atom_positions", "template_all_atom_masks", "template_sum_probs"):
        if not np.isfinite(arrays[name]).all():
            return f"{name} has values that are not finite"
    return _disagreement(arrays)


def _disagreement(arrays: dict[str, np.ndarray]) -> str | None:
    """Return where arrays that are each valid contradict each other, or None."""
    sequence = str(arrays["sequence"])
    if (letter := find_invalid_letter(sequence)) is not None:
        return f"residue {letter[0] + 1} of the sequence: {letter[1]}"
    aatype, first = arrays["aatype"], arrays["msa"][0]
    if not np.array_equal(aatype, aatype_from_sequence(sequence)):
        return "aatype is not that of the sequence"
    if not np.array_equal(first[aatype != UNKNOWN], aatype[aatype != UNKNOWN]):
        return "the first row of msa is not the sequence"
    if arrays["deletion_matrix"].min() < 0:
        return "deletion_matrix has negative values"
    numbers = arrays["residue_index"]
    if numbers[0] < 0 or (np.diff(numbers) < 1).any():
        return "residue_index does not count up from 0 or more"
    return None
