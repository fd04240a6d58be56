"""Make the complexes next to this file: two ideal peptides side by side, for trying training on complexes.

    python examples/complexes/make.py

The peptides come from `examples/structures`. They lie along one axis, as close to each other as their atoms allow. The
structures are neither experimental nor predicted. If both peptides are equal, the file has one of them and the symmetry
operator that generates the other. Running this again writes the same files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from data_pipeline.io.files import atomic_write
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER, ATOM_TYPES, RESTYPES, THREE_LETTER
from data_pipeline.structure import Chain

PEPTIDES = Path(__file__).parent.with_name("structures")
MIN_CLEARANCE = 3.4  # Å between atoms of different chains
# About the y axis, so that the second peptide runs the other way.
TWOFOLD = np.diag([-1.0, 1.0, -1.0])
ANGLES, DISTANCES = range(0, 360, 30), np.arange(6.0, 20.0, 0.25)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One file: its name, and the two peptides; if both are the same, the second is a symmetry copy."""

    name: str
    peptides: tuple[str, str]


PAIRS = (
    Pair(name="helices", peptides=("helix_long", "helix_long")),
    Pair(name="helix_and_polyproline", peptides=("helix_short", "polyproline")),
    Pair(name="helix_and_strands", peptides=("helix_long", "meander")),
    Pair(name="hairpins", peptides=("hairpin_long", "hairpin_long")),
)


def upright(name: str) -> Chain:
    """Return the peptide with its longest axis along z and its centre at the origin."""
    (chain,) = read_structure(PEPTIDES / f"{name}.pdb").chains
    alpha = chain.atom_positions[:, ATOM_ORDER["CA"]].astype(np.float64)
    axes = np.linalg.svd(alpha - alpha.mean(0))[2][::-1]
    # Each axis as near as possible to a fixed direction, so that every machine finds the same.
    axes *= np.where((axes @ [1.0, 0.9, 0.8]) < 0, -1, 1)[:, None]
    axes[0] *= np.sign(np.linalg.det(axes))
    return moved(chain, axes, -axes @ alpha.mean(0))


def moved(chain: Chain, rotation: Float[np.ndarray, "3 3"], shift: Float[np.ndarray, "3"]) -> Chain:
    return replace(chain, atom_positions=chain.atom_positions @ rotation.T + shift)


def about_z(degrees: float) -> Float[np.ndarray, "3 3"]:
    sine, cosine = np.sin(np.deg2rad(degrees)), np.cos(np.deg2rad(degrees))
    return np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])


def side_by_side(pair: Pair) -> tuple[Chain, Chain]:
    """Return the peptides at the smallest distance, over all angles, at which no atoms are too close."""
    first, second = map(upright, pair.peptides)
    for distance in DISTANCES:
        for angle in ANGLES:
            turned = moved(first, about_z(angle), np.array([distance / 2, 0, 0]))
            by_symmetry = pair.peptides[0] == pair.peptides[1]
            other = moved(turned if by_symmetry else second, TWOFOLD, np.zeros(3))
            if not by_symmetry:
                other = moved(other, np.eye(3), np.array([-distance / 2, 0, 0]))
            if clearance(turned, other) >= MIN_CLEARANCE:
                return turned, other
    raise ValueError(f"{pair.name}: no place where the peptides keep apart")


def clearance(one: Chain, other: Chain) -> float:
    points = [chain.atom_positions[chain.atom_mask > 0] for chain in (one, other)]
    return float(np.sqrt(np.square(points[0][:, None] - points[1]).sum(-1).min()))


def to_mmcif(pair: Pair) -> str:
    """Return the text of an mmCIF file with the chains, and with the assembly of both."""
    chains: Sequence[Chain] = side_by_side(pair)
    operators = "1"
    if pair.peptides[0] == pair.peptides[1]:
        chains, operators = chains[:1], "1,2"
    names = "AB"[: len(chains)]
    lines = [
        f"data_{pair.name}",
        "# Ideal peptides side by side, made by helixfold's examples/complexes/make.py; no experiment.",
        f"_entry.id {pair.name}",
        *loop("_pdbx_struct_assembly_gen", ("assembly_id", "oper_expression", "asym_id_list")),
        f"1 {operators} {','.join(names)}",
        *loop("_pdbx_struct_oper_list", ("id", "type", *MATRIX, *VECTOR)),
    ]
    for operator, rotation in enumerate((np.eye(3), TWOFOLD), start=1):
        lines.append(f"{operator} ? {' '.join(f'{value:g}' for value in (*rotation.ravel(), 0, 0, 0))}")
    lines += loop("_entity_poly_seq", ("entity_id", "num", "mon_id"))
    for entity, chain in enumerate(chains, start=1):
        lines += [f"{entity} {seq_id} {three(letter)}" for seq_id, letter in enumerate(chain.sequence, start=1)]
    lines += loop("_pdbx_poly_seq_scheme", ("asym_id", "entity_id", "seq_id", "mon_id", "pdb_strand_id"))
    for entity, (name, chain) in enumerate(zip(names, chains, strict=True), start=1):
        numbered = enumerate(chain.sequence, start=1)
        lines += [f"{name} {entity} {seq_id} {three(letter)} {name}" for seq_id, letter in numbered]
    lines += loop("_atom_site", SITE)
    serial = 0
    for entity, (name, chain) in enumerate(zip(names, chains, strict=True), start=1):
        for residue, atom in zip(*np.nonzero(chain.atom_mask > 0), strict=True):
            serial += 1
            kind, place = ATOM_TYPES[atom], " ".join(f"{value:.3f}" for value in chain.atom_positions[residue, atom])
            what = f"{kind[0]} {kind} . {three(chain.sequence[residue])} {name} {entity} {residue + 1} ?"
            lines.append(f"ATOM {serial} {what} {place} 1.00 0.00 {residue + 1} {name} 1")
    return "\n".join([*lines, ""])


MATRIX = [f"matrix[{row}][{column}]" for row in (1, 2, 3) for column in (1, 2, 3)]
VECTOR = [f"vector[{row}]" for row in (1, 2, 3)]
SITE = (
    *("group_PDB", "id", "type_symbol", "label_atom_id", "label_alt_id", "label_comp_id", "label_asym_id"),
    *("label_entity_id", "label_seq_id", "pdbx_PDB_ins_code", "Cartn_x", "Cartn_y", "Cartn_z", "occupancy"),
    *("B_iso_or_equiv", "auth_seq_id", "auth_asym_id", "pdbx_PDB_model_num"),
)


def loop(category: str, items: Sequence[str]) -> list[str]:
    return ["#", "loop_", *(f"{category}.{item}" for item in items)]


def three(letter: str) -> str:
    return THREE_LETTER[RESTYPES.index(letter)]


def main() -> None:
    """Write every pair next to this file."""
    for pair in PAIRS:
        with atomic_write(Path(__file__).with_name(f"{pair.name}.cif")) as temporary:
            temporary.write_text(to_mmcif(pair), encoding="ascii")


if __name__ == "__main__":
    main()
