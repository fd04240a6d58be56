"""mmCIF files of made-up complexes, for tests of assemblies."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_pipeline.residues import RESTYPES, THREE_LETTER

# By name: rotation rows and a shift. The last rotation, by a third of a turn, is not its own inverse.
OPERATORS = {
    "1": (np.eye(3), np.zeros(3)),
    "2": (np.diag([-1.0, -1.0, 1.0]), np.array([30.0, 0.0, 5.0])),
    "3": (np.eye(3), np.array([0.0, 40.0, 0.0])),
    "4": (np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), np.array([0.0, 40.0, 0.0])),
}


def mmcif_of(
    name: str, chains: Sequence[tuple[str, str, str]], assembly: Sequence[tuple[str, str]] = (), seed: int = 0
) -> str:
    """A file of these chains (label, author's name, sequence), and the first assembly's generators.

    A generator has an expression of operators and the labels of chains, parted by commas.
    """
    rng = np.random.default_rng(seed)
    lines = [f"data_{name}", f"_entry.id {name}"]
    if assembly:
        lines += ["loop_", *(f"_pdbx_struct_assembly.{item}" for item in _ASSEMBLY), "1 a ? b 2", "2 a ? b 1"]
        lines += ["loop_", *(f"_pdbx_struct_assembly_gen.{item}" for item in _GENERATOR)]
        lines += [f"1 '{expression}' {labels}" for expression, labels in assembly]
        lines += [f"2 1 {chains[0][0]}"]
        lines += ["loop_", "_pdbx_struct_oper_list.id", "_pdbx_struct_oper_list.type"]
        lines += [f"_pdbx_struct_oper_list.matrix[{i}][{j}]" for i in (1, 2, 3) for j in (1, 2, 3)]
        lines += [f"_pdbx_struct_oper_list.vector[{i}]" for i in (1, 2, 3)]
        for operator, (rotation, shift) in OPERATORS.items():
            lines.append(f"{operator} 'point' {' '.join(map(str, [*rotation.ravel(), *shift]))}")
    lines += ["loop_", *(f"_entity_poly_seq.{item}" for item in ("entity_id", "num", "mon_id"))]
    entities = {sequence: number for number, sequence in enumerate(dict.fromkeys(each[2] for each in chains), start=1)}
    for sequence, entity in entities.items():
        lines += [f"{entity} {number} {_three(letter)}" for number, letter in enumerate(sequence, start=1)]
    lines += ["loop_", *(f"_pdbx_poly_seq_scheme.{item}" for item in ("asym_id", "seq_id", "mon_id", "pdb_strand_id"))]
    for label, author, sequence in chains:
        lines += [f"{label} {number} {_three(letter)} {author}" for number, letter in enumerate(sequence, start=1)]
    lines += ["loop_", *(f"_atom_site.{item}" for item in _SITE)]
    serial = 0
    for place, (label, author, sequence) in enumerate(chains):
        alpha = np.cumsum(rng.normal(size=(len(sequence), 3)) * 2, axis=0) + 6 * place
        for number, (letter, centre) in enumerate(zip(sequence, alpha, strict=True), start=1):
            for atom, shift in (("N", [-1.4, 0, 0]), ("CA", [0, 0, 0]), ("C", [1, 1, 0]), ("O", [1, 2, 0])):
                serial += 1
                x, y, z = centre + shift
                lines.append(
                    f"ATOM {serial} {atom[0]} {atom} . {_three(letter)} {label} {entities[sequence]} {number} ? "
                    f"{x:.3f} {y:.3f} {z:.3f} 1.00 20.00 {number} {author} 1"
                )
    return "\n".join([*lines, ""])


_ASSEMBLY = ("id", "details", "method_details", "oligomeric_details", "oligomeric_count")
_GENERATOR = ("assembly_id", "oper_expression", "asym_id_list")
_SITE = (
    *("group_PDB", "id", "type_symbol", "label_atom_id", "label_alt_id", "label_comp_id", "label_asym_id"),
    *("label_entity_id", "label_seq_id", "pdbx_PDB_ins_code", "Cartn_x", "Cartn_y", "Cartn_z", "occupancy"),
    *("B_iso_or_equiv", "auth_seq_id", "auth_asym_id", "pdbx_PDB_model_num"),
)


def _three(letter: str) -> str:
    return THREE_LETTER[RESTYPES.index(letter)]


def write_mmcif(path: Path, *args: object, **named: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(mmcif_of(path.name.split(".")[0], *args, **named))  # type: ignore[arg-type]
