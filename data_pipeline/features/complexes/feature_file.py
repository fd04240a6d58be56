"""Write and read `features.npz`, the features of a single chain or of a complex.

The file of a complex has `domain_name`, `sequence` (with colons between chains), the arrays of `ComplexFeatures`, and
with the prefix `residue_gap_` the other arrays of `Features` for monomer models.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from os import PathLike

import numpy as np

from data_pipeline.features import schema
from data_pipeline.features.assembly import MAX_TEMPLATES, ChainNumbers, ComplexFeatures
from data_pipeline.features.complexes.chain_ids import check_chain_ids
from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures
from data_pipeline.features.schema import Features, advised, array_shape, write_arrays
from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.npz import read_npz
from data_pipeline.residues import GAP, UNKNOWN

_RESIDUE_GAP_PREFIX = "residue_gap_"
_SHARED_ARRAYS = ("domain_name", "sequence")  # in both kinds of features
# Kind and axes of each array: residues r, MSA rows n, chains c.
_COMPLEX_ARRAYS: dict[str, tuple[str, tuple[str | int, ...]]] = {
    "chain_names": ("U", ("c",)),
    **dict.fromkeys(("aatype", "residue_index", "asym_id", "entity_id", "sym_id"), ("i", ("r",))),
    **dict.fromkeys(("msa", "deletion_matrix"), ("i", ("n", "r"))),
    "bert_mask": ("b", ("n", "r")),
    "paired_rows": ("i", ()),
    "template_aatype": ("i", (MAX_TEMPLATES, "r")),
    "template_all_atom_positions": ("f", (MAX_TEMPLATES, "r", 37, 3)),
    "template_all_atom_masks": ("f", (MAX_TEMPLATES, "r", 37)),
}
# Files of earlier versions lack template names, and most files templates that span chains.
_TEMPLATE_NAMES, _SPANS_CHAINS = "template_names", "template_spans_chains"
_ALL_COMPLEX_ARRAYS = {
    **_COMPLEX_ARRAYS,
    _TEMPLATE_NAMES: ("U", ("c", MAX_TEMPLATES)),
    _SPANS_CHAINS: ("b", (MAX_TEMPLATES,)),
}


def save_features(path: str | PathLike[str], features: TargetFeatures) -> None:
    """Write the features of a single chain or a complex as a compressed `.npz`; equal features give equal bytes."""
    if isinstance(features, Features):
        features.save(path)
        return
    gap = features.residue_gap.arrays()
    arrays = {"domain_name": gap["domain_name"], "sequence": np.asarray(features.sequence)}
    arrays |= {
        field.name: np.asarray(getattr(features.multimer, field.name))
        for field in fields(ComplexFeatures)
        if field.name not in (_TEMPLATE_NAMES, _SPANS_CHAINS)
    }
    if features.multimer.template_names:
        arrays[_TEMPLATE_NAMES] = np.asarray(features.multimer.template_names, dtype=np.str_)
    if features.multimer.template_spans_chains:
        arrays[_SPANS_CHAINS] = np.asarray(features.multimer.template_spans_chains)
    arrays |= {f"{_RESIDUE_GAP_PREFIX}{name}": array for name, array in gap.items() if name not in _SHARED_ARRAYS}
    write_arrays(path, arrays)


def load_features(path: str | PathLike[str]) -> TargetFeatures:
    """Read a file of `save_features`: `Features` of a single chain, or the `ComplexFeatureSet` of a complex.

    Raise `InputError` for invalid files.
    """
    arrays = read_npz(path, problem=lambda outlines: advised(_shape_problem(outlines)))
    if not _is_complex(arrays):
        return Features.from_arrays(arrays, path)
    if (problem := advised(_shape_problem(arrays) or _value_problem(arrays))) is not None:
        raise InputError.at(path, problem)
    values = {name: arrays[name] for name in _COMPLEX_ARRAYS if name not in ("chain_names", "paired_rows")}
    return ComplexFeatureSet(
        multimer=ComplexFeatures(
            chain_names=tuple(map(str, arrays["chain_names"])),
            paired_rows=int(arrays["paired_rows"]),
            template_names=tuple(tuple(map(str, names)) for names in arrays.get(_TEMPLATE_NAMES, ())),
            template_spans_chains=tuple(map(bool, arrays.get(_SPANS_CHAINS, ()))),
            **values,
        ),
        residue_gap=Features.from_arrays(_residue_gap(arrays), path),
    )


def _is_complex(arrays: Mapping[str, np.ndarray]) -> bool:
    return "asym_id" in arrays


def _residue_gap(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of the features for monomer models, with the names of `Features`."""
    own = {
        name.removeprefix(_RESIDUE_GAP_PREFIX): array
        for name, array in arrays.items()
        if name.startswith(_RESIDUE_GAP_PREFIX)
    }
    names = {name: arrays[name] for name in _SHARED_ARRAYS if name in arrays}
    if "sequence" in names and not names["sequence"].ndim and names["sequence"].dtype.kind == "U":
        names["sequence"] = np.asarray(str(names["sequence"]).replace(CHAIN_SEPARATOR, ""))
    return own | names


def _shape_problem(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return a message if the types and shapes of arrays are not valid for features, else None."""
    if not _is_complex(arrays):
        return schema.shape_problem(arrays)
    if (problem := _name_problem(arrays)) is not None:
        return problem
    present = {name: form for name, form in _ALL_COMPLEX_ARRAYS.items() if name in arrays}
    for name, (kind, axes) in present.items():
        if arrays[name].dtype.kind != kind or arrays[name].ndim != len(axes):
            return f"{name} is {arrays[name].dtype} {arrays[name].shape}"
    sizes = {"r": len(arrays["aatype"]), "n": len(arrays["msa"]), "c": len(arrays["chain_names"])}
    if not all(sizes.values()):
        return f"there are {sizes['r']} residues, {sizes['n']} MSA rows and {sizes['c']} chains; expected at least 1"
    for name, (_, axes) in present.items():
        if arrays[name].shape != (shape := array_shape(axes, sizes)):
            return f"{name} is {arrays[name].dtype} {arrays[name].shape}, expected {shape}"
    return _of_residue_gap(schema.shape_problem(_residue_gap(arrays)))


def _name_problem(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return what is wrong with the names of the arrays, missing or unknown, or None; shapes are not checked."""
    if missing := [name for name in _COMPLEX_ARRAYS if name not in arrays]:
        return f"{', '.join(missing)} missing"
    valid_names = {*_ALL_COMPLEX_ARRAYS, *_SHARED_ARRAYS}
    if unknown := [name for name in arrays if name not in valid_names and not name.startswith(_RESIDUE_GAP_PREFIX)]:
        return f"'{printable(unknown[0])}' is not a feature"
    return None


def _value_problem(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return a message if the values of arrays with valid shapes are not valid for features, else None."""
    if (problem := _of_residue_gap(schema.value_problem(_residue_gap(arrays)))) is not None:
        return problem
    for name, highest in (("msa", GAP), ("template_aatype", GAP)):
        if arrays[name].min() < 0 or arrays[name].max() > highest:
            return f"{name} has values outside 0..{highest}"
    for name in ("template_all_atom_positions", "template_all_atom_masks"):
        if not np.isfinite(arrays[name]).all():
            return f"{name} has values that are not finite"
    if arrays["deletion_matrix"].min() < 0:
        return "deletion_matrix has negative values"
    if not 0 <= int(arrays["paired_rows"]) <= len(arrays["msa"]):
        return f"paired_rows is {int(arrays['paired_rows'])} of {len(arrays['msa'])} MSA rows"
    return _disagreement(arrays)


def _disagreement(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return a message if arrays are inconsistent with each other, else None."""
    sequences = str(arrays["sequence"]).split(CHAIN_SEPARATOR)
    aatype, first = arrays["aatype"], arrays["msa"][0]
    if not np.array_equal(aatype, aatype_from_sequence("".join(sequences))):
        return "aatype does not match the sequence"
    if not np.array_equal(first[aatype != UNKNOWN], aatype[aatype != UNKNOWN]):
        return "the first row of msa is not the sequence"
    return _chain_problem(arrays, sequences)


def _chain_problem(arrays: Mapping[str, np.ndarray], sequences: list[str]) -> str | None:
    """Return a message if the names and numbers of chains do not match their sequences, else None."""
    try:
        check_chain_ids(list(map(str, arrays["chain_names"])), len(sequences))
    except InputError as error:
        return f"chain_names: {error}"
    if not all(sequences):
        return "the sequence has an empty chain"
    if not _are_neighbours(sequences):
        return "chains of the same sequence are not neighbours"
    for name, numbers in vars(ChainNumbers.of(sequences)).items():
        if not np.array_equal(arrays[name], numbers):
            return f"{name} does not match the chains of the sequence"
    edges = np.cumsum([0, *map(len, sequences)])
    for start, stop in pairwise(edges):
        numbers = arrays["residue_index"][start:stop]
        if numbers[0] < 0 or (np.diff(numbers) < 1).any():
            return "residue_index does not count up from 0 or more in each chain"
    return None


def _are_neighbours(sequences: list[str]) -> bool:
    """Return whether equal sequences directly follow each other."""
    blocks = [sequence for previous, sequence in pairwise(["", *sequences]) if sequence != previous]
    return len(blocks) == len(set(blocks))


def _of_residue_gap(problem: str | None) -> str | None:
    """Return a message of a problem with the arrays for monomer models; None stays None."""
    return problem and f"for monomer models, {problem}"


def features_digest(features: TargetFeatures) -> str:
    """Return the SHA-256 digest of the values of all fields of features, names included, in hexadecimal."""
    digest = hashlib.sha256()
    for part in (features.multimer, features.residue_gap) if isinstance(features, ComplexFeatureSet) else (features,):
        for each in fields(part):
            digest.update(np.asarray(getattr(part, each.name)).tobytes())
    return digest.hexdigest()
