"""Find the chains of a structure file whose ends are bonded: records of bonds say so (LINK, _struct_conn)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import gemmi

from data_pipeline.structure import Chain

_COLUMNS = [f"ptnr{end}_{item}" for end in (1, 2) for item in ("auth_asym_id", "auth_seq_id", "label_atom_id")]


@dataclass(frozen=True, kw_only=True)
class BondEnd:
    """One of the two atoms of a bond, with the author's name of its chain and number of its residue."""

    chain: str
    residue: str
    atom: str


Bond = tuple[BondEnd, BondEnd]


def bonds_of_cif(block: gemmi.cif.Block) -> list[Bond]:
    """Return the bonds that a data block lists; none if it does not say which atoms they join."""
    ends = [[gemmi.cif.as_string(value) for value in row] for row in block.find("_struct_conn.", _COLUMNS)]
    return [(_end(*row[:3]), _end(*row[3:])) for row in ends]


def bonds_of_pdb(structure: gemmi.Structure) -> list[Bond]:
    """Return the bonds in the LINK records of a PDB file."""
    return [(_address(bond.partner1), _address(bond.partner2)) for bond in structure.connections]


def with_rings(chains: Sequence[Chain], bonds: Iterable[Bond]) -> tuple[Chain, ...]:
    """Return the chains, of which those are cyclic whose last C is bonded to their first N."""
    found = {frozenset(bond) for bond in bonds}
    return tuple(replace(chain, is_cyclic=True) if _ring_bond(chain) in found else chain for chain in chains)


def _ring_bond(chain: Chain) -> frozenset[BondEnd]:
    first, last = (str(chain.residue_numbers[end]) for end in (0, -1))
    return frozenset([_end(chain.name, last, "C"), _end(chain.name, first, "N")])


def _end(chain: str, residue: str, atom: str) -> BondEnd:
    return BondEnd(chain=chain, residue=residue, atom=atom)


def _address(atom: gemmi.AtomAddress) -> BondEnd:
    return _end(atom.chain_name.strip(), str(atom.res_id.seqid.num), atom.atom_name)
