"""Conversion of gemmi structures to chains, for PDB files and for mmCIF files without a sequence by residue."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import gemmi
import numpy as np
from jaxtyping import Int

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.atom_table import (
    AtomTable,
    atom_type,
    chain_from_atoms,
    check_residues,
    residue_letter,
    selenium_as_sulphur,
)
from data_pipeline.structure import Chain

SAME_NAME = "another chain has the same name; the one with more residues is read"
BLANK_CHAIN = "_"  # name given to a chain without a name
# Residues of the sequence times observed residues (10,000 of both); aligning more takes too much memory.
MAX_ALIGNMENT_CELLS = 10**8

_MAX_OFFSET = 100  # largest shift of residue numbers against SEQRES, in either direction
_LEAST_EQUAL = 0.8  # fraction of observed residues that must equal SEQRES; below, SEQRES is ignored
_PEPTIDES = (gemmi.PolymerType.PeptideL, gemmi.PolymerType.PeptideD)
_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_EXTENDED = "pdb_0000"  # "pdb_00001abc" is "1abc"
_NO_ENTRY = "xxxx"  # used before the PDB assigns an id
_SUFFIXES = (".gz", ".cif", ".mmcif", ".pdb", ".ent")


def entry_name(entry_id: str, path: str | PathLike[str]) -> str:
    """Return the entry id in lower case if it is set and usable in file names, else the file's name without suffix."""
    name = entry_id.strip().lower().removeprefix(_EXTENDED)
    if name != _NO_ENTRY and _SAFE_NAME.fullmatch(name):
        return name
    stem = Path(path).name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return stem


def chains_from_gemmi(model: gemmi.Structure, path: str | PathLike[str]) -> tuple[list[Chain], dict[str, str]]:
    """Return the protein chains of the first model, and the reasons for leaving out the other chains, by name.

    A chain's sequence is SEQRES if the file has it and the atoms fit it, else that of the observed residues. `model` is
    modified: its other models are removed. Raise `InputError`, which names `path`, if names or chains are too long.
    """
    while len(model) > 1:
        del model[len(model) - 1]
    model.setup_entities()
    try:
        flat = _Flat(model)
    except RuntimeError as error:  # a name of an atom, residue or chain has eight or more characters
        raise InputError.at(path, f"its names are too long ({printable(str(error))}); use shorter ones") from error
    chains: dict[str, Chain] = {}
    skipped: dict[str, str] = {}
    residues = 0
    for part in model[0] if len(model) else ():
        name = part.name.strip() or BLANK_CHAIN
        polymer = part.get_polymer()
        if not len(polymer):
            flat.skip(part)
            skipped.setdefault(name, "no polymer, only ligands or water")
        elif polymer.check_polymer_type() not in _PEPTIDES:
            flat.skip(part)
            skipped[name] = "a polymer, but no protein"
        else:
            entity = model.get_entity_of(polymer)
            stated = [gemmi.Entity.first_mon(item) for item in entity.full_sequence] if entity else []
            residues += max(len(stated), len(polymer))
            check_residues(residues, path)
            observed = flat.take(part, polymer.subchain_id())
            place = _place(stated, observed, polymer) if stated else None
            if place is None:
                chain = chain_from_atoms(name, observed.names, observed.atoms, observed.residue)
            else:
                chain = chain_from_atoms(name, stated, observed.atoms, place[observed.residue])
            if name in chains:
                skipped[f"{name} (again)"] = SAME_NAME
            if name not in chains or chain.observed.sum() > chains[name].observed.sum():
                chains[name] = chain
    return list(chains.values()), {name: reason for name, reason in skipped.items() if name not in chains}


@dataclass(frozen=True, kw_only=True)
class _Observed:
    """Atoms of one polymer by observed residue; alternatives of a residue (microheterogeneity) count as one residue."""

    atoms: AtomTable
    residue: Int[np.ndarray, "n"]  # residue index of each atom
    names: list[str]  # name of each residue's first alternative
    numbers: Int[np.ndarray, "k"]  # author's number of each residue


class _Flat:
    """Columns of the atoms of a model, read chain by chain in the model's order with `take` or `skip`."""

    def __init__(self, model: gemmi.Structure) -> None:
        flat = gemmi.FlatStructure(model)
        names = np.ascontiguousarray(flat.atom_names).view("S8").reshape(-1)
        distinct, index = np.unique(names, return_inverse=True)
        self._atom_type = np.array([atom_type(name.decode()) for name in distinct.tolist()], dtype=np.int64)[index]
        self._is_selenium = names == b"SE"
        self._position = np.asarray(flat.pos, dtype=np.float32)
        self._occupancy = np.asarray(flat.occ)
        self._b_factor = np.asarray(flat.b_iso)
        self._start = 0

    def skip(self, part: gemmi.Chain) -> None:
        self._start += sum(map(len, part))

    def take(self, part: gemmi.Chain, subchain: str) -> _Observed:
        components: dict[str, int] = {}
        names: list[str] = []
        counts: list[int] = []  # atoms of each residue of the chain, including ligands and water
        fields: list[tuple[int, int, int]] = []  # of each residue: position in the polymer, component, number
        codes: list[str] = []
        before = None
        for residue in part:
            seqid = residue.seqid
            number, code = seqid.num or 0, seqid.icode
            counts.append(len(residue))
            codes.append(code)
            if residue.subchain != subchain:
                fields.append((-1, 0, number))
                continue
            if (number, code) != before:
                names.append(residue.name)
                before = number, code
            fields.append((len(names) - 1, components.setdefault(residue.name, len(components)), number))
        of_atom = np.repeat(np.arange(len(counts)), counts)
        rows = self._start + np.arange(len(of_atom))
        self._start += len(of_atom)
        position, component, number_of = np.array(fields, dtype=np.int64).T
        ours = position[of_atom] >= 0
        of_atom, rows = of_atom[ours], rows[ours]
        is_mse = np.array([name == "MSE" for name in components], dtype=bool)[component[of_atom]]
        atoms = AtomTable(
            component_names=tuple(components),
            component=component[of_atom],
            atom_type=selenium_as_sulphur(self._atom_type[rows], self._is_selenium[rows], is_mse),
            number=number_of[of_atom],
            insertion_code=np.array(codes, dtype="U1")[of_atom],
            position=self._position[rows],
            occupancy=self._occupancy[rows],
            b_factor=self._b_factor[rows],
        )
        numbers = np.zeros(len(names), dtype=np.int64)
        numbers[position[position >= 0]] = number_of[position >= 0]
        return _Observed(atoms=atoms, residue=position[of_atom], names=names, numbers=numbers)


def _place(stated: Sequence[str], observed: _Observed, polymer: gemmi.ResidueSpan) -> Int[np.ndarray, "k"] | None:
    """Return the index in the stated sequence (SEQRES) of each observed residue, or None if they do not fit."""
    place = _place_by_number(stated, observed, least_equal=1.0)
    if place is None:
        place = _place_by_alignment(stated, observed, polymer)
    if place is None:
        place = _place_by_number(stated, observed, least_equal=_LEAST_EQUAL)
    return place


def _place_by_number(stated: Sequence[str], observed: _Observed, *, least_equal: float) -> Int[np.ndarray, "k"] | None:
    """Return the index in the stated sequence of each observed residue by its residue number plus a constant offset.

    Use the offset with the largest fraction of equal names, and among equally good ones that closest to numbering the
    sequence from 1. Return None if the fraction is below `least_equal` or the numbers do not increase.
    """
    numbers = observed.numbers
    steps = numbers - numbers[0]
    offsets = len(stated) - int(steps[-1])
    if (np.diff(numbers) <= 0).any() or offsets < 1:
        return None
    sequence, wanted = np.array(stated), np.array(observed.names)
    by_numbers = min(max(int(numbers[0]) - 1, 0), offsets - 1)
    first = max(by_numbers - _MAX_OFFSET, 0)
    starts = np.arange(first, min(by_numbers + _MAX_OFFSET + 1, offsets))
    starts = starts[np.argsort(np.abs(starts - by_numbers), kind="stable")]
    best, best_start = 0.0, 0
    for start in starts.tolist():
        equal = float((sequence[start + steps] == wanted).mean())
        if equal > best:
            best, best_start = equal, start
        if equal == 1:
            break
    return np.asarray(best_start + steps) if best >= least_equal else None


def _place_by_alignment(
    stated: Sequence[str], observed: _Observed, polymer: gemmi.ResidueSpan
) -> Int[np.ndarray, "k"] | None:
    """Return the index in the stated sequence of each observed residue by alignment, with gaps at chain breaks.

    Return None if a residue cannot be aligned or too few are equal.
    """
    if len(stated) * len(observed.names) > MAX_ALIGNMENT_CELLS:
        return None
    aligned = gemmi.align_sequence_to_polymer(stated, polymer, polymer.check_polymer_type())
    place: list[int] = []
    at = 0
    for count, step in re.findall(r"(\d+)([MID])", aligned.cigar_str()):
        if step == "M":
            place.extend(range(at, at + int(count)))
        at += int(count)
    if len(place) != len(observed.names):
        return None
    pairs = zip(place, observed.names, strict=True)
    equal = sum(residue_letter(stated[k]) == residue_letter(name) for k, name in pairs)
    return np.array(place) if equal >= _LEAST_EQUAL * len(observed.names) else None
