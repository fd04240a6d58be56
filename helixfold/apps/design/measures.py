"""Measure the interface of a binder and its target by the geometry of their atoms.

`HYDROPHOBIC` has the one-letter codes of amino acids that count as hydrophobic.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from data_pipeline.ideal_betas import with_ideal_betas
from data_pipeline.io.extras import require
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_TYPES, RESTYPES, THREE_LETTER
from helixfold.analysis.interfaces import ipsae
from helixfold.analysis.metrics import rmsd, superposition
from helixfold.analysis.secondary_structure import HELIX, STRAND, secondary_structure

HYDROPHOBIC = "ACFGILMPVWY"  # one-letter codes of the amino acids that BindCraft counts as hydrophobic
_MAX_CONTACT_DISTANCE = 4.0  # Angstrom between atoms of two sides, the largest of a contact (BindCraft)
_CLASH_DISTANCE, _ALPHA_CLASH_DISTANCE = 2.4, 2.5  # Angstrom between atoms, or C-alpha atoms, that overlap (BindCraft)
_MAX_NEIGHBOUR_OFFSET = 1  # residues along a chain
_BURIED_AREA = 1.0  # maximum accessible area of a buried atom, and minimum area that binding buries, square Angstrom
_MAX_HYDROGEN_BOND = 3.5  # Angstrom
_DONORS_AND_ACCEPTORS = {("SER", "OG"), ("THR", "OG1"), ("TYR", "OH"), ("HIS", "ND1"), ("HIS", "NE2")}
_DONORS = {
    *_DONORS_AND_ACCEPTORS,
    *(("ASN", "ND2"), ("GLN", "NE2"), ("LYS", "NZ"), ("TRP", "NE1"), ("ARG", "NE"), ("ARG", "NH1"), ("ARG", "NH2")),
}
_ACCEPTORS = {
    *_DONORS_AND_ACCEPTORS,
    *(("ASP", "OD1"), ("ASP", "OD2"), ("GLU", "OE1"), ("GLU", "OE2"), ("ASN", "OD1"), ("GLN", "OE1")),
}
# Side-chain neighbours (Rosetta): the distance in Angstrom at which one counts half, and the maximum of a surface
# residue.
_NEIGHBOUR_MIDPOINT, _MAX_SURFACE_NEIGHBOURS = 9.0, 2.0
_CA, _CB = ATOM_TYPES.index("CA"), ATOM_TYPES.index("CB")


@dataclass(frozen=True, kw_only=True)
class Atoms:
    """Heavy atoms of some residues, in the order of the residues."""

    positions: np.ndarray  # n 3, Angstrom
    names: list[str]  # of the atoms, such as CA
    residues: np.ndarray  # n, the index of each atom's residue in the protein's arrays

    @classmethod
    def of(cls, protein: Protein, chosen: Bool[np.ndarray, "r"]) -> "Atoms":
        """Return the atoms with a mask above 0.5 of the residues where `chosen` is true."""
        residues, atoms = np.nonzero((protein.atom_mask > 0.5) & chosen[:, None])
        positions = protein.atom_positions[residues, atoms].astype(np.float64)
        return cls(positions=positions, names=[ATOM_TYPES[each] for each in atoms], residues=residues)

    def joined(self, other: "Atoms") -> "Atoms":
        """Return one list of atoms: these atoms, followed by the other atoms."""
        return Atoms(
            positions=np.concatenate([self.positions, other.positions]),
            names=[*self.names, *other.names],
            residues=np.concatenate([self.residues, other.residues]),
        )


def interface_residues(protein: Protein, binder: Bool[np.ndarray, "r"]) -> list[int]:
    """Return the indices, in the binder and from 0, of its residues with a heavy atom within 4 Å of a target atom.

    `binder` is true for the binder's residues, which are contiguous; all other residues are the target.
    """
    from scipy.spatial import cKDTree  # noqa: PLC0415 (takes long to load)

    binder_atoms, target_atoms = Atoms.of(protein, binder), Atoms.of(protein, ~binder)
    if not len(binder_atoms.positions) or not len(target_atoms.positions):
        return []
    distances, _ = cKDTree(target_atoms.positions).query(
        binder_atoms.positions, distance_upper_bound=_MAX_CONTACT_DISTANCE + 1e-9
    )
    first = int(np.flatnonzero(binder)[0])
    return sorted({int(each) - first for each in binder_atoms.residues[np.isfinite(distances)]})


def clashes(protein: Protein, *, only_alpha: bool = False) -> int:
    """Count pairs of heavy atoms of different chains that are closer than 2.4 Å (BindCraft).

    With `only_alpha`, count pairs of C-alpha atoms closer than 2.5 Å, also within a chain, except neighbours in it.
    """
    from scipy.spatial import cKDTree  # noqa: PLC0415

    atoms = Atoms.of(protein, np.ones(len(protein.aatype), bool))
    is_compared = np.array(atoms.names) == "CA" if only_alpha else np.ones(len(atoms.names), bool)
    residues = atoms.residues[is_compared]
    pairs = cKDTree(atoms.positions[is_compared]).query_pairs(
        _ALPHA_CLASH_DISTANCE if only_alpha else _CLASH_DISTANCE, output_type="ndarray"
    )
    first, second = residues[pairs[:, 0]], residues[pairs[:, 1]]
    between = protein.chain_index[first] != protein.chain_index[second]
    if only_alpha:
        between |= np.abs(protein.residue_index[first] - protein.residue_index[second]) > _MAX_NEIGHBOUR_OFFSET
    return int(between.sum())


def interface(protein: Protein, binder: Bool[np.ndarray, "r"]) -> dict[str, Any]:
    """Return BindCraft's measures of an interface, by BindCraft's names, except energies, which need PyRosetta.

    `binder` is true for the binder's residues; all others are the target. Areas are in Å² and shares in percent, except
    Surface_Hydrophobicity, from 0 to 1. ShapeComplementarity is None without a contact. InterfaceAAs counts the
    binder's interface residues by amino acid. Raise `InputError` without the packages of the extra binders.
    """
    require("binders", "protein_interface", "biotite", action="measuring interfaces")
    import protein_interface  # noqa: PLC0415 (an extra)

    binder_arrays, target = _arrays(protein_interface, protein, binder), _arrays(protein_interface, protein, ~binder)
    sides = [Atoms.of(protein, chosen & (protein.aatype < len(RESTYPES))) for chosen in (binder, ~binder)]
    both_sides = sides[0].joined(sides[1])
    separate_areas, complexed = np.concatenate([_areas(protein, side) for side in sides]), _areas(protein, both_sides)
    covered, is_binder = float((separate_areas - complexed).sum()), binder[both_sides.residues]
    interface_indices = interface_residues(protein, binder)
    letters = [RESTYPES[kind] if kind < len(RESTYPES) else "X" for kind in protein.aatype[binder].tolist()]
    at_interface = [letters[index] for index in interface_indices]
    count = len(interface_indices)
    bonds = int(protein_interface.hbonds(binder_arrays, target)) if count else 0
    lonely = unsatisfied(protein, both_sides, separate_areas, complexed)
    return {
        "Surface_Hydrophobicity": _surface_hydrophobicity(protein, binder),
        "ShapeComplementarity": _complementarity(protein_interface, binder_arrays, target) if count else None,
        "dSASA": covered,
        "Interface_SASA_%": 100 * covered / max(1e-9, float(complexed[is_binder].sum())),
        "Interface_Hydrophobicity": _percent(sum(each in HYDROPHOBIC for each in at_interface), count),
        "n_InterfaceResidues": count,
        "n_InterfaceHbonds": bonds,
        "InterfaceHbondsPercentage": _percent(bonds, count),
        "n_InterfaceUnsatHbonds": lonely,
        "InterfaceUnsatHbondsPercentage": _percent(lonely, count),
        "InterfaceAAs": {letter: at_interface.count(letter) for letter in sorted(RESTYPES)},
    }


def structure_shares(protein: Protein, binder: Bool[np.ndarray, "r"]) -> dict[str, float]:
    """Return the shares of helix, sheet and loop in the binder and in its interface residues, in percent.

    `i_pLDDT` and `ss_pLDDT` are the mean pLDDT, 0 to 1, of the interface residues and of the binder's residues in
    helices and sheets. Without such residues they are 0. The B-factors of `protein` must be pLDDT. Keys are BindCraft's
    names.
    """
    letters = np.array(list(secondary_structure(protein)))[binder]
    plddt = protein.b_factors[binder, _CA] / 100
    interface_indices = interface_residues(protein, binder)
    shares: dict[str, float] = {}
    for part, part_letters in (("Binder", letters), ("Interface", letters[interface_indices])):
        helix, strand = (_percent(int((part_letters == kind).sum()), len(part_letters)) for kind in (HELIX, STRAND))
        shares |= {f"{part}_Helix%": helix, f"{part}_BetaSheet%": strand}
        shares[f"{part}_Loop%"] = 100 - helix - strand if len(part_letters) else 0.0
    ordered = np.isin(letters, (HELIX, STRAND))
    shares["i_pLDDT"] = float(plddt[interface_indices].mean()) if interface_indices else 0.0
    shares["ss_pLDDT"] = float(plddt[ordered].mean()) if ordered.any() else 0.0
    return shares


def pose_rmsd(protein: Protein, designed: Protein, binder: Bool[np.ndarray, "r"]) -> float:
    """Return the RMSD of the binder's C-alpha atoms in Å between two structures, with their targets superposed."""
    alphas, true = _alpha(protein), _alpha(designed)
    is_known = np.isfinite(alphas + true).all(-1)
    moved = superposition(alphas[is_known & ~binder], true[is_known & ~binder]).apply(alphas)
    return float(np.sqrt(np.square(moved - true)[is_known & binder].sum(-1).mean()))


def alpha_rmsd(protein: Protein, chosen: np.ndarray, true: np.ndarray) -> float:
    """Return the RMSD in Å, after superposition, of the C-alpha atoms of the `chosen` residues to positions `true`.

    Residues without an atom, or with NaN in `true`, do not count.
    """
    alphas = _alpha(protein)[chosen]
    is_known = np.isfinite(alphas + true).all(-1)
    return rmsd(alphas[is_known], true[is_known])


def interface_ipsae(pae: np.ndarray, binder: Bool[np.ndarray, "r"]) -> float:
    """Return the larger ipSAE of both directions between binder and target; all target chains count as one chain.

    `pae` is in Å, and `binder` is true for the binder's residues.
    """
    return max(ipsae(pae[np.ix_(binder, ~binder)]), ipsae(pae[np.ix_(~binder, binder)]))


def means(values: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean over models of each value of the first model, by name; None if a model does not have the value.

    `values` has the values of each model by its number. Values that are dicts of numbers are averaged by key.
    """
    first, *other_models = values.values()
    averages: dict[str, Any] = {}
    for name, value in first.items():
        model_values = [value, *(each.get(name) for each in other_models)]
        if any(each is None for each in model_values):
            averages[name] = None
        elif isinstance(value, Mapping):
            averages[name] = {key: sum(each[key] for each in model_values) / len(model_values) for key in value}
        else:
            averages[name] = sum(model_values) / len(model_values)
    return averages


def _surface_hydrophobicity(protein: Protein, binder: Bool[np.ndarray, "r"]) -> float:
    """Return the share of hydrophobic residues, 0 to 1, among the surface residues of a chain alone.

    Residues with few side-chain neighbours are the surface, as in Rosetta's LayerSelector, which BindCraft uses: other
    C-beta atoms count by their distance and by how far they lie in the direction from C-alpha to C-beta (constants of
    Rosetta's documentation).
    """
    positions, mask = with_ideal_betas(protein.atom_positions[binder], protein.atom_mask[binder])
    present = mask[:, [_CA, _CB]].all(-1)
    alpha, beta = positions[present, _CA].astype(np.float64), positions[present, _CB].astype(np.float64)
    direction = (beta - alpha) / np.linalg.norm(beta - alpha, axis=-1, keepdims=True)
    apart = beta - beta[:, None]
    distance = np.linalg.norm(apart, axis=-1)
    cosine = (apart * direction[:, None]).sum(-1) / np.maximum(distance, 1e-6)
    towards = np.maximum(0, (cosine + 0.5) / 1.5) ** 2
    neighbours = towards / (1 + np.exp(distance - _NEIGHBOUR_MIDPOINT))
    np.fill_diagonal(neighbours, 0)
    surface = protein.aatype[binder][present][neighbours.sum(-1) <= _MAX_SURFACE_NEIGHBOURS]
    hydrophobic = np.isin(surface, [RESTYPES.index(letter) for letter in HYDROPHOBIC])
    return float(hydrophobic.mean()) if len(surface) else 0.0


def _complementarity(package: Any, own: Any, target: Any) -> float | None:
    try:
        complementarity = package.compute_sc(
            own.coords, own.atom_names, own.residue_names, target.coords, target.atom_names, target.residue_names, False
        )
    except (ValueError, RuntimeError):  # too few atoms face each other
        return None
    value = float(getattr(complementarity, "sc", complementarity))
    return value if np.isfinite(value) else None


def unsatisfied(protein: Protein, atoms: Atoms, apart: np.ndarray, complexed: np.ndarray) -> int:
    """Count polar atoms that binding buries and that have no partner for a hydrogen bond in any chain.

    `atoms` are all atoms of both sides. `apart` and `complexed` are their solvent-accessible areas in Å² in the
    separate sides and in the complex. A partner is a polar atom of the other kind (donor or acceptor) at most 3.5 Å
    away. Atoms of the same residue and of its neighbours in the chain do not count.
    """
    kinds = [THREE_LETTER[kind] for kind in protein.aatype[atoms.residues]]
    gives, takes = (
        np.array(
            [
                (name == backbone and not (name == "N" and kind == "PRO")) or (kind, name) in polar
                for kind, name in zip(kinds, atoms.names, strict=True)
            ]
        )
        for backbone, polar in (("N", _DONORS), ("O", _ACCEPTORS))
    )
    buried = np.flatnonzero((gives | takes) & (complexed < _BURIED_AREA) & (apart - complexed > _BURIED_AREA))
    distances = np.linalg.norm(atoms.positions[buried, None] - atoms.positions, axis=-1)
    near_by_bonds = (np.abs(atoms.residues[buried, None] - atoms.residues) <= _MAX_NEIGHBOUR_OFFSET) & (
        protein.chain_index[atoms.residues[buried]][:, None] == protein.chain_index[atoms.residues]
    )
    fits = (gives[buried, None] & takes) | (takes[buried, None] & gives)
    return int((~((distances <= _MAX_HYDROGEN_BOND) & fits & ~near_by_bonds).any(1)).sum())


def _areas(protein: Protein, atoms: Atoms) -> np.ndarray:
    """Return the solvent-accessible area in Å² of each atom, as if `atoms` were the only atoms."""
    from biotite import structure  # noqa: PLC0415 (an extra)

    array = structure.AtomArray(len(atoms.names))
    array.coord, array.atom_name = atoms.positions.astype(np.float32), np.array(atoms.names)
    array.element = np.array([name[0] for name in atoms.names])
    array.res_name = np.array([THREE_LETTER[kind] for kind in protein.aatype[atoms.residues]])
    array.res_id = atoms.residues + 1
    return np.asarray(np.nan_to_num(structure.sasa(array, point_number=960)), np.float64)


def _arrays(package: Any, protein: Protein, chosen: Bool[np.ndarray, "r"]) -> Any:
    atoms = Atoms.of(protein, chosen & (protein.aatype < len(RESTYPES)))
    names = [THREE_LETTER[protein.aatype[each]] for each in atoms.residues]
    numbers = [("A", int(each) + 1, "") for each in atoms.residues]
    return package.AtomArrays(atoms.positions.tolist(), atoms.names, names, numbers)


def _alpha(protein: Protein) -> np.ndarray:
    return protein.positions_of("CA").astype(np.float64)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
