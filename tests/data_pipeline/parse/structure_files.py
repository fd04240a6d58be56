"""Small structures as hypothesis draws them, and the text of their files as gemmi writes it."""

from dataclasses import dataclass

import gemmi
import numpy as np
from hypothesis import strategies as st

from data_pipeline.residues import ATOM_TYPES, THREE_LETTER

COMPONENTS = (*THREE_LETTER[:20], "MSE", "SEP", "UNK")


@dataclass(frozen=True, kw_only=True)
class Atom:
    name: str
    altloc: str  # "\0" for none
    position: tuple[float, float, float]
    occupancy: float
    b_factor: float


@dataclass(frozen=True, kw_only=True)
class Residue:
    name: str
    number: int
    insertion_code: str
    atoms: tuple[Atom, ...]  # none: not observed


_coordinate = st.integers(-99_000, 99_000).map(lambda thousandths: thousandths / 1000)
_hundredth = st.integers(0, 99).map(lambda hundredths: hundredths / 100)


@st.composite
def residues(draw: st.DrawFn) -> list[Residue]:
    """A chain whose first and last residues were observed; in between some were not."""
    length = draw(st.integers(1, 8))
    number = draw(st.integers(-5, 500))
    found = []
    for index in range(length):
        name = draw(st.sampled_from(COMPONENTS))
        selenium = ("SE",) if name == "MSE" else ()
        kinds = draw(st.lists(st.sampled_from((*ATOM_TYPES, *selenium)), unique=True, max_size=6))
        if "SE" in kinds and "SD" in kinds:
            kinds.remove("SD")
        observed = draw(st.booleans()) or index in {0, length - 1}
        kinds = list(dict.fromkeys(["N", "CA", "C", *kinds])) if observed else []
        atoms: list[Atom] = []
        for kind in kinds:
            for altloc in draw(st.sampled_from(("\0", "\0", "AB", "BA"))):
                position = draw(st.tuples(_coordinate, _coordinate, _coordinate))
                occupancy, b_factor = draw(_hundredth), draw(_hundredth)
                atoms.append(Atom(name=kind, altloc=altloc, position=position, occupancy=occupancy, b_factor=b_factor))
        insertion = found and draw(st.integers(0, 9)) == 0
        code = chr(ord(found[-1].insertion_code.replace(" ", "@")) + 1) if insertion else " "
        number += 0 if insertion else 1
        found.append(Residue(name=name, number=number, insertion_code=code, atoms=tuple(atoms)))
    return found


def gemmi_structure(chains: dict[str, list[Residue]], *, state_sequence: bool = True) -> gemmi.Structure:
    structure = gemmi.Structure()
    structure.name = "1abc"
    model = gemmi.Model(1)
    for index, (name, content) in enumerate(chains.items()):
        chain = gemmi.Chain(name)
        for place, residue in enumerate(content, start=1):
            if not residue.atoms:
                continue
            written = gemmi.Residue()
            written.name, written.seqid = residue.name, gemmi.SeqId(residue.number, residue.insertion_code)
            written.het_flag = "A" if residue.name in THREE_LETTER else "H"
            written.entity_type = gemmi.EntityType.Polymer
            written.label_seq, written.subchain, written.entity_id = place, chr(ord("P") + index), str(index + 1)
            for atom in residue.atoms:
                put = gemmi.Atom()
                put.name, put.altloc = atom.name, atom.altloc
                put.element = gemmi.Element("Se" if atom.name == "SE" else atom.name[0])
                put.pos = gemmi.Position(*atom.position)
                put.occ, put.b_iso = atom.occupancy, atom.b_factor
                written.add_atom(put)
            chain.add_residue(written)
        model.add_chain(chain)
        entity = gemmi.Entity(str(index + 1))
        entity.entity_type, entity.polymer_type = gemmi.EntityType.Polymer, gemmi.PolymerType.PeptideL
        entity.subchains = [chr(ord("P") + index)]
        entity.full_sequence = [residue.name for residue in content] if state_sequence else []
        structure.entities.append(entity)
    structure.add_model(model)
    return structure


def mmcif_text(chains: dict[str, list[Residue]]) -> bytes:
    return gemmi_structure(chains).make_mmcif_document().as_string().encode()


def pdb_text(chains: dict[str, list[Residue]], *, state_sequence: bool = True) -> bytes:
    return gemmi_structure(chains, state_sequence=state_sequence).make_pdb_string().encode()


def expected_atoms(content: list[Residue]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, mask and B-factors of a chain, atom by atom."""
    positions = np.zeros((len(content), 37, 3), np.float32)
    mask, b_factors = np.zeros((len(content), 37), np.float32), np.zeros((len(content), 37), np.float32)
    for index, residue in enumerate(content):
        best: dict[int, Atom] = {}
        for atom in residue.atoms:
            kind = ATOM_TYPES.index("SD" if atom.name == "SE" else atom.name)
            if kind not in best or atom.occupancy > best[kind].occupancy:
                best[kind] = atom
        for kind, atom in best.items():
            positions[index, kind], mask[index, kind], b_factors[index, kind] = atom.position, 1, atom.b_factor
        cd, nh1, nh2 = (ATOM_TYPES.index(name) for name in ("CD", "NH1", "NH2"))
        if residue.name == "ARG" and mask[index, [cd, nh1, nh2]].all():
            near, far = (np.linalg.norm(positions[index, kind] - positions[index, cd]) for kind in (nh1, nh2))
            if near > far:
                for array in (positions, b_factors):
                    array[index, [nh1, nh2]] = array[index, [nh2, nh1]]
    return positions, mask, b_factors
