"""Read PDB files, and build chains from atoms that gemmi reads: PDB, and mmCIF without a residue list.

This module parses the headers of PDB files and makes the checks that gemmi omits. It also detects cyclic chains of any
structure file from the records of bonds (LINK, _struct_conn). `SAME_NAME` is the reason for leaving out a chain, and
`BLANK_CHAIN` the name of chains without a name. `MAX_ALIGNMENT_CELLS` limits the residues of a chain's sequence times
its observed residues, for their alignment, and `MAX_PDB_BYTES` the size of a PDB file. `Bond` has two atoms, each as
chain name, residue number and atom name.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from os import PathLike
from pathlib import Path

import gemmi
import numpy as np
from jaxtyping import Bool, Int, UInt8

from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.atom_table import (
    MAX_RESIDUES,
    AtomTable,
    atom_type,
    chain_from_atoms,
    check_residues,
    residue_letter,
    selenium_as_sulphur,
)
from data_pipeline.structure import Chain, Structure

SAME_NAME = "another chain has the same name; the one with more residues is used"
BLANK_CHAIN = "_"  # name of chains without a name
# Residues of the sequence (about 10,000) times observed residues; larger alignments take too much memory.
MAX_ALIGNMENT_CELLS = 10**8

_MAX_OFFSET = 100  # between residue numbers and positions in SEQRES, in either direction
_MIN_EQUAL = 0.8  # fraction of observed residues that match SEQRES; below, SEQRES is another sequence
_PEPTIDES = (gemmi.PolymerType.PeptideL, gemmi.PolymerType.PeptideD)
_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LONG_ENTRY_PREFIX = "pdb_0000"  # "pdb_00001abc" is "1abc"
_PLACEHOLDER_ENTRY = "xxxx"  # placeholder until the archive assigns an id
_SUFFIXES = (".gz", ".cif", ".mmcif", ".pdb", ".ent")


def entry_name(entry_id: str, path: str | PathLike[str]) -> str:
    """Return the entry id in lower case if it is valid in a file name, else the file name without its suffixes.

    The long form pdb_00001abc becomes 1abc, and the placeholder XXXX is not an id.
    """
    name = entry_id.strip().lower().removeprefix(_LONG_ENTRY_PREFIX)
    if name != _PLACEHOLDER_ENTRY and _SAFE_NAME.fullmatch(name):
        return name
    return structure_title(path)


def structure_title(path: str | PathLike[str]) -> str:
    """Return the file name of a structure without suffixes of structure files, such as .cif.gz."""
    name = Path(path).name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def chains_from_gemmi(model: gemmi.Structure, path: str | PathLike[str]) -> tuple[list[Chain], dict[str, str]]:
    """Return the protein chains of the first model, and the reason for each chain that is left out.

    All other models are deleted from `model`. Reasons are by chain name. A chain's sequence is SEQRES if the file has
    it and the atoms match it, else the observed residues. Of two chains with one name, the one with more observed
    residues is used.
    """
    while len(model) > 1:
        del model[len(model) - 1]
    model.setup_entities()
    try:
        columns = _AtomColumns(model)
    except RuntimeError as error:  # names of atoms, residues or chains with at least eight characters
        raise InputError.at(path, f"its names are too long ({printable(str(error))}); use shorter ones") from error
    chains: dict[str, Chain] = {}
    skipped: dict[str, str] = {}
    residues = 0
    for part in model[0] if len(model) else ():
        name = part.name.strip() or BLANK_CHAIN
        polymer = part.get_polymer()
        if not len(polymer):
            columns.skip(part)
            skipped.setdefault(name, "not a polymer, only ligands or water")
        elif polymer.check_polymer_type() not in _PEPTIDES:
            columns.skip(part)
            skipped[name] = "a polymer, but not a protein"
        else:
            entity = model.get_entity_of(polymer)
            sequence = [gemmi.Entity.first_mon(item) for item in entity.full_sequence] if entity else []
            residues += max(len(sequence), len(polymer))
            check_residues(residues, path)
            observed = columns.take(part, polymer.subchain_id())
            positions = _positions(sequence, observed, polymer) if sequence else None
            if positions is None:
                chain = chain_from_atoms(name, observed.names, observed.atoms, observed.residue)
            else:
                chain = chain_from_atoms(name, sequence, observed.atoms, positions[observed.residue])
            if name in chains:
                skipped[f"{name} (again)"] = SAME_NAME
            if name not in chains or chain.observed.sum() > chains[name].observed.sum():
                chains[name] = chain
    return list(chains.values()), {name: reason for name, reason in skipped.items() if name not in chains}


@dataclass(frozen=True, kw_only=True)
class _Observed:
    """Observed atoms of one polymer by residue; alternative residues (microheterogeneity) count as one residue."""

    atoms: AtomTable
    residue: Int[np.ndarray, "n"]  # residue index of each atom
    names: list[str]  # name of each residue's first alternative
    numbers: Int[np.ndarray, "k"]  # author's number of each residue


class _AtomColumns:
    """The atoms of a model as columns, to be read chain by chain in the order of the model."""

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
        counts: list[int] = []  # atoms per residue of the chain, including ligands and water
        fields: list[tuple[int, int, int]] = []  # position in the polymer, component and number of each residue
        codes: list[str] = []
        previous_residue = None
        for residue in part:
            seqid = residue.seqid
            residue_number, code = seqid.num or 0, seqid.icode
            counts.append(len(residue))
            codes.append(code)
            if residue.subchain != subchain:
                fields.append((-1, 0, residue_number))
                continue
            if (residue_number, code) != previous_residue:
                names.append(residue.name)
                previous_residue = residue_number, code
            fields.append((len(names) - 1, components.setdefault(residue.name, len(components)), residue_number))
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
            residue_number=number_of[of_atom],
            insertion_code=np.array(codes, dtype="U1")[of_atom],
            position=self._position[rows],
            occupancy=self._occupancy[rows],
            b_factor=self._b_factor[rows],
        )
        numbers = np.zeros(len(names), dtype=np.int64)
        numbers[position[position >= 0]] = number_of[position >= 0]
        return _Observed(atoms=atoms, residue=position[of_atom], names=names, numbers=numbers)


def _positions(sequence: Sequence[str], observed: _Observed, polymer: gemmi.ResidueSpan) -> Int[np.ndarray, "k"] | None:
    """Return each observed residue's position in the sequence (SEQRES), or None if they do not match."""
    positions = _positions_by_number(sequence, observed, min_equal=1.0)
    if positions is None:
        positions = _positions_by_alignment(sequence, observed, polymer)
    if positions is None:
        positions = _positions_by_number(sequence, observed, min_equal=_MIN_EQUAL)
    return positions


def _positions_by_number(
    sequence: Sequence[str], observed: _Observed, *, min_equal: float
) -> Int[np.ndarray, "k"] | None:
    """Return each observed residue's position in the sequence from the residue numbers, or None if they do not match.

    At least the fraction `min_equal` of residue names must match. If several offsets fit, the best one is used; among
    equally good ones, the one that starts the sequence closest to 1.
    """
    numbers = observed.numbers
    steps = numbers - numbers[0]
    offsets = len(sequence) - int(steps[-1])
    if (np.diff(numbers) <= 0).any() or offsets < 1:
        return None
    expected, names = np.array(sequence), np.array(observed.names)
    by_numbers = min(max(int(numbers[0]) - 1, 0), offsets - 1)
    first = max(by_numbers - _MAX_OFFSET, 0)
    starts = np.arange(first, min(by_numbers + _MAX_OFFSET + 1, offsets))
    starts = starts[np.argsort(np.abs(starts - by_numbers), kind="stable")]
    best, best_start = 0.0, 0
    for start in starts.tolist():
        equal = float((expected[start + steps] == names).mean())
        if equal > best:
            best, best_start = equal, start
        if equal == 1:
            break
    return np.asarray(best_start + steps) if best >= min_equal else None


def _positions_by_alignment(
    sequence: Sequence[str], observed: _Observed, polymer: gemmi.ResidueSpan
) -> Int[np.ndarray, "k"] | None:
    """Return each observed residue's position in the sequence by alignment, with gaps at chain breaks.

    Return None if a residue is not aligned or too few residues match.
    """
    if len(sequence) * len(observed.names) > MAX_ALIGNMENT_CELLS:
        return None
    aligned = gemmi.align_sequence_to_polymer(sequence, polymer, polymer.check_polymer_type())
    positions: list[int] = []
    position = 0
    for count, step in re.findall(r"(\d+)([MID])", aligned.cigar_str()):
        if step == "M":
            positions.extend(range(position, position + int(count)))
        position += int(count)
    if len(positions) != len(observed.names):
        return None
    pairs = zip(positions, observed.names, strict=True)
    equal = sum(residue_letter(sequence[k]) == residue_letter(name) for k, name in pairs)
    return np.array(positions) if equal >= _MIN_EQUAL * len(observed.names) else None


_BOND_COLUMNS = [f"ptnr{end}_{item}" for end in (1, 2) for item in ("auth_asym_id", "auth_seq_id", "label_atom_id")]


# The two atoms of a bond, each as the author's chain name, the residue number, and the atom name.
Bond = frozenset[tuple[str, ...]]


def bonds_of_cif(block: gemmi.cif.Block) -> list[Bond]:
    """Return the bonds of a data block (_struct_conn), or an empty list if its columns are incomplete."""
    ends = [[gemmi.cif.as_string(value) for value in row] for row in block.find("_struct_conn.", _BOND_COLUMNS)]
    return [frozenset((tuple(row[:3]), tuple(row[3:]))) for row in ends]


def bonds_of_pdb(structure: gemmi.Structure) -> list[Bond]:
    """Return the bonds in the LINK records of a PDB file."""
    return [frozenset((_address(bond.partner1), _address(bond.partner2))) for bond in structure.connections]


def with_rings(chains: Sequence[Chain], bonds: Iterable[Bond]) -> tuple[Chain, ...]:
    """Return the chains, marked as cyclic if `bonds` has one from C of the last residue to N of the first residue."""
    bond_set = set(bonds)
    return tuple(replace(chain, is_cyclic=True) if _ring_bond(chain) in bond_set else chain for chain in chains)


def _ring_bond(chain: Chain) -> Bond:
    """Return the bond from the last residue's C to the first residue's N, which closes a ring."""
    first, last = (str(chain.residue_numbers[end]) for end in (0, -1))
    return frozenset(((chain.name, last, "C"), (chain.name, first, "N")))


def _address(atom: gemmi.AtomAddress) -> tuple[str, ...]:
    """Return chain, residue number and name of an atom."""
    return (atom.chain_name.strip(), str(atom.res_id.seqid.num), atom.atom_name)


MAX_PDB_BYTES = 2**26  # 800,000 atoms

_LONG_LINE = re.compile(rb"[^\n]{10000}")
_MAX_SEQRES = MAX_RESIDUES // 8  # records of up to 13 residues
_LAST_COORDINATE_COLUMN = 54  # last column of the coordinates
_MAX_COORDINATE = 1e8  # Å; the format has eight columns
_NON_ASCII_TO_QUESTION_MARK = b"?" + bytes(range(1, 128)) + b"?" * 128
_REVISION = re.compile(rb"^REVDAT .{6}(\d\d)-([A-Z]{3})-(\d\d)", re.MULTILINE | re.IGNORECASE)
_METHOD = re.compile(rb"^EXPDTA  ..(.*)$", re.MULTILINE)
_RESOLUTION = re.compile(rb"^REMARK   2 RESOLUTION\. +(\d+\.\d*) ", re.MULTILINE)
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_FIRST_YEAR_OF_1900S = 70  # two-digit years from 70 are 19xx; the archive began in 1971
_RESIDUE_NUMBER = re.compile(rb" *-?\d+ *|[A-Za-z][0-9A-Za-z]{3}")  # hybrid-36 continues with letters


def parse_pdb(content: bytes, *, path: str | PathLike[str] = "pdb") -> Structure:
    """Return the first model in the content of a PDB file; raise `InputError` with `path` for other content.

    A chain's sequence is its SEQRES if the file has it, else its observed residues. Chains without a name are named
    "_". The release date is the date of the earliest REVDAT record.
    """
    if (long := _LONG_LINE.search(content)) is not None:
        line = content.count(b"\n", 0, long.start()) + 1
        raise InputError.at(path, "the line is too long for a PDB file; is this a PDB file?", line=line)
    content = content.translate(_NON_ASCII_TO_QUESTION_MARK)
    if content.count(b"\nSEQRES") > _MAX_SEQRES:
        raise InputError.at(path, f"the file has more than the maximum of {_MAX_SEQRES:,} SEQRES records")
    header = content[: _check_atoms(content, path)]
    try:
        model = gemmi.read_pdb_string(content, split_chain_on_ter=True)
    except (ValueError, RuntimeError) as error:
        message = " ".join(str(error).split())
        raise InputError.at(path, f"not readable as PDB ({printable(message)}); was it edited?") from error
    chains, skipped = chains_from_gemmi(model, path)
    return Structure(
        name=entry_name(dict(model.info).get("_entry.id", ""), path),
        release_date=_release_date(header),
        resolution=_resolution(header),
        method=_method(header),
        chains=with_rings(chains, bonds_of_pdb(model)),
        skipped=skipped,
    )


def _check_atoms(content: bytes, path: str | PathLike[str]) -> int:
    """Return the offset of the first atom record; raise `InputError` for invalid numbers, which gemmi reads as 0."""
    letters = np.frombuffer(content + b"\n" * _LAST_COORDINATE_COLUMN, np.uint8)
    is_atom = (
        np.concatenate([[True], letters[: -_LAST_COORDINATE_COLUMN - 1] == ord("\n")]) if content else np.zeros(0, bool)
    )
    is_atom &= _begins(letters, b"ATOM  ") | _begins(letters, b"HETATM")
    starts = np.flatnonzero(is_atom)
    if not len(starts):
        raise InputError.at(path, "there are no atoms (ATOM records); is this a PDB file?")
    is_valid = len(starts) * _LAST_COORDINATE_COLUMN <= len(content)
    if is_valid:
        fields = np.stack([letters[starts + column] for column in range(22, _LAST_COORDINATE_COLUMN)], axis=1)
        try:
            np.ascontiguousarray(fields[:, :4]).view("S4").astype(np.int64)
            coordinates = np.ascontiguousarray(fields[:, 8:]).view("S8").astype(np.float64)
            is_valid = bool((np.abs(coordinates) < _MAX_COORDINATE).all()) and not (fields == ord("\n")).any()
        except ValueError:
            is_valid = False
    for start in starts.tolist() if not is_valid else ():
        record = content[start : start + 80].split(b"\n")[0]
        if (problem := _problem(record)) is not None:
            raise InputError.at(path, f"{problem}; was the file edited?", line=content.count(b"\n", 0, start) + 1)
    return int(starts[0])


def _begins(letters: UInt8[np.ndarray, "n"], record: bytes) -> Bool[np.ndarray, "m"]:
    """Return whether `record` begins at each position of the content."""
    size = len(letters) - _LAST_COORDINATE_COLUMN
    begins = letters[:size] == record[0]
    for offset, letter in enumerate(record[1:], start=1):
        begins &= letters[offset : offset + size] == letter
    return begins


def _problem(record: bytes) -> str | None:
    """Return the reason why a line is not a valid atom record, or None if it is valid."""
    try:
        largest = max(abs(float(record[start : start + 8])) for start in (30, 38, 46))
    except ValueError:
        largest = float("nan")
    if len(record) < _LAST_COORDINATE_COLUMN or not largest < _MAX_COORDINATE:
        return f"columns 31 to 54 are not coordinates: '{printable(record[30:54].decode())}'"
    if not _RESIDUE_NUMBER.fullmatch(record, 22, 26):
        return f"columns 23 to 26 are not a residue number: '{printable(record[22:26].decode())}'"
    return None


def _release_date(header: bytes) -> date | None:
    """Return the earliest date of the revisions in the header of a PDB file, or None."""
    dates = []
    for day, month, year in _REVISION.findall(header):
        name = month.decode().upper()
        if name in _MONTHS:
            century = 1900 if int(year) >= _FIRST_YEAR_OF_1900S else 2000
            try:
                dates.append(date(century + int(year), _MONTHS.index(name) + 1, int(day)))
            except ValueError:
                continue
    return min(dates, default=None)


def _resolution(header: bytes) -> float | None:
    """Return the resolution in Angstrom in the header of a PDB file; None if it has none or 0."""
    match = _RESOLUTION.search(header)
    return (float(match[1]) or None) if match else None


def _method(header: bytes) -> str:
    """Return the experimental methods in the header of a PDB file, in lower case and separated by commas."""
    text = b" ".join(_METHOD.findall(header)).decode()
    return ",".join(" ".join(method.lower().split()) for method in text.split(";") if method.strip())
