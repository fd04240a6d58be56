"""Write a structure as a PDB file.

gemmi's writer would give different files: no MODEL record for a single model, NUMMDL for several, 0.000 instead of
-0.000, B-factors rounded from float32, and other lengths in SEQRES from 10,000 residues on.
"""

import textwrap
from collections.abc import Iterator, Sequence

import numpy as np

from data_pipeline import residues
from data_pipeline.features.complexes.chain_ids import require_pdb_chain_ids
from data_pipeline.protein import Hydrogens, Protein
from helixfold.results.chains import ChainRange, RingBond, iterate_atoms, ring_bonds, split_chains

_SEQRES_PER_LINE = 13
# Remarks 6 to 99 are free text in the PDB format, in columns 12 to 79.
_REMARK_PREFIX, _REMARK_WIDTH = "REMARK   6", 68


def to_pdb(
    protein: Protein,
    remarks: Sequence[str] = (),
    hydrogens: Hydrogens | None = None,
    chain_ids: Sequence[str] = (),
) -> str:
    """Return the text of a PDB file of one structure; see `models_to_pdb`."""
    return models_to_pdb([protein], remarks, hydrogens, chain_ids)


def models_to_pdb(
    proteins: Sequence[Protein],
    remarks: Sequence[str] = (),
    hydrogens: Hydrogens | None = None,
    chain_ids: Sequence[str] = (),
) -> str:
    """Return the text of a PDB file: remarks, the full sequence (SEQRES), and atoms with a mask above 0.5.

    `proteins` are structures of the same chains; each becomes a model of the file, with the same `hydrogens`. The bond
    between the ends of a cyclic chain is written as LINK and CONECT records. Chains are named by `chain_ids`, in the
    order of `protein.chain_index`, or A, B, ... by default.

    Serial numbers above 99,999 and residue numbers above 9,999 are in hybrid-36 (A0000, A000, ...), which gemmi,
    cctbx/Phenix, Coot and ChimeraX read. Bio.PDB does not read hybrid-36; use the mmCIF file there.

    Raise `ValueError` for structures that the format cannot hold: more than 62 chains, chain names of more than one
    letter, coordinates that do not fit their columns, or residue numbers that do not increase within a chain (insertion
    codes are not supported).
    """
    chains = split_chains(proteins[0], chain_ids)
    require_pdb_chain_ids([chain.name for chain in chains])
    for protein in proteins:
        _check_columns(protein)
    lines = [_REMARK_PREFIX] if remarks else []
    for remark in remarks:
        lines += [f"{_REMARK_PREFIX} {part}" for part in textwrap.wrap(plain_text(remark), _REMARK_WIDTH)]
    for chain in chains:
        lines += _seqres(proteins[0], chain)
    rings = ring_bonds(proteins[0], chains)
    lines += [_link(proteins[0], bond) for bond in rings]
    for model, protein in enumerate(proteins, start=1):
        lines += [f"MODEL     {hybrid36(model, 4)}", *_model_lines(protein, chains, hydrogens), "ENDMDL"]
    lines += _conect(proteins[0], chains, hydrogens, rings)
    lines.append("END")
    return "".join(f"{line:<80}\n" for line in lines)


def _model_lines(protein: Protein, chains: Sequence[ChainRange], hydrogens: Hydrogens | None) -> Iterator[str]:
    serial = 1
    for chain in chains:
        atoms = list(_atom_lines(protein, chain, serial, hydrogens))
        yield from atoms
        serial += len(atoms)
        if atoms:
            # TER repeats columns 18 to 26 of the last atom: the residue's type, chain and number.
            yield f"TER   {hybrid36(serial, 5)}      {atoms[-1][17:26]}"
            serial += 1


def _link(protein: Protein, bond: RingBond) -> str:
    """Return the LINK record (PDB format 3.3) of the bond between a chain's ends."""
    carbon, nitrogen = (
        f" {atom:<3} {residues.THREE_LETTER[protein.aatype[residue]]} {bond.chain}"
        f"{hybrid36(int(protein.residue_index[residue]), 4)}"
        for atom, residue in (("C", bond.last), ("N", bond.first))
    )
    return f"LINK        {carbon}{'':16}{nitrogen}{'':5}1555   1555 {bond.length:5.2f}"


def _conect(
    protein: Protein, chains: Sequence[ChainRange], hydrogens: Hydrogens | None, rings: Sequence[RingBond]
) -> Iterator[str]:
    """Yield the CONECT records of these bonds, each in both directions."""
    if not rings:
        return
    serials: dict[tuple[int, str], int] = {}
    serial = 1
    for chain in chains:
        atoms = list(iterate_atoms(protein, chain, hydrogens))
        serials |= {(atom.residue, atom.name): atom_serial for atom_serial, atom in enumerate(atoms, serial)}
        serial += len(atoms) + bool(atoms)  # TER has a serial number, too.
    for bond in rings:
        carbon, nitrogen = serials[bond.last, "C"], serials[bond.first, "N"]
        yield from (f"CONECT{hybrid36(a, 5)}{hybrid36(b, 5)}" for a, b in ((carbon, nitrogen), (nitrogen, carbon)))


def plain_text(text: str) -> str:
    """Return text as one line of printable ASCII, with other characters escaped, which is safe in any file format."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line.encode("ascii", "backslashreplace").decode("ascii")


def hybrid36(number: int, width: int) -> str:
    """Format a number in `width` columns: as a decimal, or if it is too large in cctbx's hybrid-36 notation.

    Raise `ValueError` if it is too large for that, too.
    """
    if -(10 ** (width - 1)) < number < 10**width:
        return f"{number:>{width}}"
    first, letters = 10 * 36 ** (width - 1), 26 * 36 ** (width - 1)
    rest = number - 10**width
    if not 0 <= rest < 2 * letters:
        raise ValueError(f"{number} does not fit {width} columns of a PDB file; write mmCIF instead")
    text = np.base_repr(first + rest % letters, 36)
    return text if rest < letters else text.lower()


def _check_columns(protein: Protein) -> None:
    present = protein.atom_mask > 0.5
    for what, values, low, high in (
        ("coordinates", protein.atom_positions[present], -999.9994, 9999.9994),
        ("B-factors", protein.b_factors[present], -99.994, 999.994),
    ):
        if values.size and not (low < values.min() and values.max() < high):
            raise ValueError(
                f"{what} in a PDB file must lie between {low:.0f} and {high:.0f}, got {values.min():.0f} to "
                f"{values.max():.0f}; write mmCIF instead"
            )


def _seqres(protein: Protein, chain: ChainRange) -> Iterator[str]:
    names = [residues.THREE_LETTER[aatype] for aatype in protein.aatype[chain.start : chain.stop]]
    count = hybrid36(len(names), 4)
    for line, start in enumerate(range(0, len(names), _SEQRES_PER_LINE), 1):
        yield f"SEQRES {hybrid36(line, 3)} {chain.name} {count}  {' '.join(names[start : start + _SEQRES_PER_LINE])}"


def _atom_lines(protein: Protein, chain: ChainRange, serial: int, hydrogens: Hydrogens | None) -> Iterator[str]:
    for atom_serial, atom in enumerate(iterate_atoms(protein, chain, hydrogens), serial):
        where = f"{residues.THREE_LETTER[protein.aatype[atom.residue]]} {chain.name}"
        where += hybrid36(int(protein.residue_index[atom.residue]), 4)
        # A one-letter element starts in the second of the name's four columns, if the name has at most three letters.
        name = atom.name if len(atom.name) > 3 else f" {atom.name:<3}"
        x, y, z = atom.position
        yield (
            f"ATOM  {hybrid36(atom_serial, 5)} {name} {where}    {x:8.3f}{y:8.3f}{z:8.3f}  1.00"
            f"{atom.b_factor:6.2f}          {atom.element:>2}  "
        )
