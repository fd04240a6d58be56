"""Read the protein chains of mmCIF files: their full sequences and observed atoms.

`MAX_MMCIF_BYTES` limits the unpacked size of a file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from os import PathLike

import gemmi
import numpy as np
from jaxtyping import Float, Int

from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.atom_table import (
    AtomTable,
    atom_type,
    chain_from_atoms,
    check_residues,
    groups,
    residue_letter,
    selenium_as_sulphur,
)
from data_pipeline.parse.cif import Category, read_blocks
from data_pipeline.parse.gemmi_chains import SAME_NAME, bonds_of_cif, chains_from_gemmi, entry_name, with_rings
from data_pipeline.structure import Chain, Structure

MAX_MMCIF_BYTES = 2**27

_ATOM_SITE = "_atom_site."
_RESIDUE_COLUMNS = ("auth_asym_id", "auth_seq_id", "label_asym_id", "label_seq_id", "pdbx_PDB_ins_code")
_MAX_OBSERVED = 2**17  # gemmi's run time is quadratic in the number of residues
_MAX_CHAINS = 2**16  # each ligand is a chain
_COLUMNS_FOR_GEMMI = ("id", "type_symbol", "label_alt_id", "label_asym_id")  # gemmi reads no atoms if one is missing
_UNSET_NUMBER = -(2**31) + 1  # never used as a residue number
# AlphaFold uses the last of these that is a number.
_RESOLUTION_COLUMNS = (
    ("_refine.", "ls_d_res_high"),
    ("_em_3d_reconstruction.", "resolution"),
    ("_reflns.", "d_resolution_high"),
)
# The second category was used before 2017.
_RELEASE_DATE_COLUMNS = (("_pdbx_audit_revision_history.", "revision_date"), ("_database_PDB_rev.", "date"))


@dataclass(frozen=True, kw_only=True)
class _Polymer:
    """All residues of a polymer, observed or not, as listed in the entry."""

    components: tuple[str, ...]
    first_number: int  # label_seq_id of the first component
    is_protein: bool


def parse_mmcif(content: bytes, *, path: str | PathLike[str] = "mmcif") -> Structure:
    """Return the first model in the content of an mmCIF file; raise `InputError` with `path` for other content.

    The release date is the earliest revision's. As in AlphaFold, chains have the author's names, and a polymer with at
    least one peptide-like component is a protein. Chains have only the observed residues if the file does not list
    their sequence.
    """
    blocks = read_blocks(content, path)
    block = next((block for block in blocks if all(_has(block, f"Cartn_{axis}") for axis in "xyz")), None)
    if block is None:
        raise InputError.at(path, "there are no atoms (_atom_site.Cartn_x, _y, _z); pass a file with coordinates")
    polymers = _polymers(block, path)
    has_labels = all(_has(block, f"label_{item}_id") for item in ("asym", "seq", "comp", "atom"))
    chains, skipped = _chains(block, polymers, path) if polymers and has_labels else _chains_of_observed(block, path)
    entry_ids = Category(block, "_entry.", "id", path).text("id")
    return Structure(
        name=entry_name(entry_ids[0] if entry_ids else "", path),
        release_date=_release_date(block, path),
        resolution=_resolution(block, path),
        method=",".join(method.lower() for method in Category(block, "_exptl.", "method", path).text("method")),
        chains=with_rings(chains, bonds_of_cif(block)),
        skipped=skipped,
    )


def _has(block: gemmi.cif.Block, column: str) -> bool:
    """Return whether any atom has a value in this column."""
    return not all(map(gemmi.cif.is_null, block.find_values(_ATOM_SITE + column)))


def _polymers(block: gemmi.cif.Block, path: str | PathLike[str]) -> dict[str, _Polymer]:
    """Return the polymers of the entry by entity id."""
    residues = Category(block, "_entity_poly_seq.", "num", path)
    entities, names = residues.text("entity_id"), residues.text("mon_id")
    numbers = residues.integers("num", unset=0).tolist()
    by_entity: dict[str, dict[int, str]] = {}
    for entity, residue_number, name in zip(entities, numbers, names, strict=True):
        # Differs from AlphaFold: if residues share a position (microheterogeneity), only the first is used, as in
        # SEQRES. AlphaFold uses all of them one after the other, which shifts all later atoms along the sequence.
        by_entity.setdefault(entity, {}).setdefault(residue_number, name)
    kinds = Category(block, "_chem_comp.", "id", path)
    kind_of = dict(zip(kinds.text("id"), kinds.text("type"), strict=True))
    polymers = {}
    for entity, by_number in by_entity.items():
        first = min(by_number)
        if max(by_number) - first + 1 != len(by_number):
            raise InputError.at(path, f"_entity_poly_seq lacks residue numbers of entity '{printable(entity)}'")
        components = tuple(name for _, name in sorted(by_number.items()))
        is_protein = any(_is_peptide(name, kind_of.get(name, "")) for name in set(components))
        polymers[entity] = _Polymer(components=components, first_number=first, is_protein=is_protein)
    return polymers


def _is_peptide(component: str, kind: str) -> bool:
    """Return whether a component is an amino acid, by its kind, else by its name."""
    return "peptide" in kind.lower() if kind else component == "UNK" or residue_letter(component) != "X"


def _chains(
    block: gemmi.cif.Block, polymers: Mapping[str, _Polymer], path: str | PathLike[str]
) -> tuple[list[Chain], dict[str, str]]:
    """Return the protein chains in the order of _struct_asym, and the reason for each chain that is left out."""
    sites = _first_model_sites(block, path)
    label, labels = sites.codes("label_asym_id")
    author, authors = sites.codes("auth_asym_id")
    if len(labels) > _MAX_CHAINS:
        raise InputError.at(path, f"its first model has more than the maximum of {_MAX_CHAINS:,} chains")
    rows_of = dict(zip(labels, groups(label, len(labels)), strict=True))
    author_of = {name: authors[author[rows[0]]] or name for name, rows in rows_of.items()}
    known = Category(block, "_entity.", "id", path)
    descriptions = dict(zip(known.text("id"), known.text("pdbx_description"), strict=True))
    scheme = Category(block, "_pdbx_poly_seq_scheme.", "asym_id", path)
    strand_of = dict(zip(scheme.text("asym_id"), scheme.text("pdb_strand_id"), strict=True))
    atoms, numbers = _atom_table(sites), sites.integers("label_seq_id", unset=_UNSET_NUMBER)

    chains: dict[str, Chain] = {}
    skipped: dict[str, str] = {}
    residues = 0
    for label_name, entity in _entity_of_chain(block, sites, path).items():
        polymer = polymers.get(entity)
        if label_name not in rows_of and polymer is None:
            continue
        name = author_of.get(label_name) or strand_of.get(label_name) or label_name
        if polymer is None:
            skipped.setdefault(name, "not a polymer, only ligands or water")
            continue
        if not polymer.is_protein:
            skipped[name] = "a polymer, but not a protein"
            continue
        residues += len(polymer.components)
        check_residues(residues, path)
        rows = rows_of.get(label_name)
        chain = None if rows is None else _chain(name, polymer, atoms.rows(rows), numbers[rows])
        if chain is None:
            skipped.setdefault(name, "none of its residues was observed")
        elif name in chains:
            skipped[f"{name} (again)"] = SAME_NAME
        if chain is not None and (name not in chains or chain.observed.sum() > chains[name].observed.sum()):
            chains[name] = replace(chain, description=" ".join(descriptions.get(entity, "").split()))
    return list(chains.values()), {name: reason for name, reason in skipped.items() if name not in chains}


def _chain(name: str, polymer: _Polymer, atoms: AtomTable, numbers: Int[np.ndarray, "n"]) -> Chain | None:
    """Return the chain of a polymer from its atoms and their residue numbers; None if none lies in its sequence."""
    residue = numbers.astype(np.int64) - polymer.first_number
    inside = np.flatnonzero((residue >= 0) & (residue < len(polymer.components)))
    if not len(inside):
        return None
    return chain_from_atoms(
        name, polymer.components, atoms.rows(inside), residue[inside], first_number=polymer.first_number
    )


def _entity_of_chain(block: gemmi.cif.Block, sites: Category, path: str | PathLike[str]) -> dict[str, str]:
    """Return the entity id of each chain by label_asym_id, in the order of _struct_asym, then of the atoms."""
    units = Category(block, "_struct_asym.", "id", path)
    entity_of = dict(zip(units.text("id"), units.text("entity_id"), strict=True))
    (label, labels), (entity, entities) = sites.codes("label_asym_id"), sites.codes("label_entity_id")
    first_rows = np.unique(label, return_index=True)[1].tolist()
    for name, row in zip(labels, first_rows, strict=True):
        entity_of.setdefault(name, entities[entity[row]])
    return entity_of


def _first_model_sites(block: gemmi.cif.Block, path: str | PathLike[str]) -> Category:
    """Return the rows of _atom_site that belong to the first model in the file."""
    sites = Category(block, _ATOM_SITE, "Cartn_x", path)
    sites.choose(np.flatnonzero(sites.codes("pdbx_PDB_model_num")[0] == 0))
    return sites


def _atom_table(sites: Category) -> AtomTable:
    """Return all atoms of an mmCIF table; a residue without the author's number has its number in the sequence."""
    component, components = sites.codes("label_comp_id")
    atom, atoms = sites.codes("label_atom_id")
    residue_number = sites.integers("auth_seq_id", unset=_UNSET_NUMBER)
    label_number = sites.integers("label_seq_id", unset=_UNSET_NUMBER)
    residue_number = np.where(residue_number == _UNSET_NUMBER, label_number, residue_number)
    code, codes = sites.codes("pdbx_PDB_ins_code")
    atom_types = np.array([atom_type(name) for name in atoms], dtype=np.int64)[atom]
    is_selenium = np.array([name.upper() == "SE" for name in atoms], dtype=bool)[atom]
    is_mse = np.array([name == "MSE" for name in components], dtype=bool)[component]
    occupancy, b_factor = sites.reals("occupancy", unset=1.0), sites.reals("B_iso_or_equiv", unset=0.0)
    return AtomTable(
        component_names=components,
        component=component,
        atom_type=selenium_as_sulphur(atom_types, is_selenium, is_mse),
        residue_number=residue_number,
        insertion_code=np.array([name[:1] or " " for name in codes], dtype="U1")[code],
        position=_coordinates(sites),
        occupancy=occupancy,
        b_factor=b_factor,
    )


def _coordinates(sites: Category) -> Float[np.ndarray, "n 3"]:
    """Return the coordinates of all atoms in Angstrom, NaN where one is missing."""
    return np.stack([sites.reals(f"Cartn_{axis}", unset=np.nan) for axis in "xyz"], axis=-1)


def _chains_of_observed(block: gemmi.cif.Block, path: str | PathLike[str]) -> tuple[list[Chain], dict[str, str]]:
    """Return the chains of an entry without a residue list, and the reason for each chain that is left out."""
    sites = Category(block, _ATOM_SITE, "Cartn_x", path)
    _coordinates(sites)  # raises for invalid numbers, which gemmi would read as NaN
    places = np.stack([sites.codes(column)[0] for column in _RESIDUE_COLUMNS])
    if np.count_nonzero((np.diff(places) != 0).any(axis=0)) >= _MAX_OBSERVED:
        problem = f"the file does not list its sequences and has more than {_MAX_OBSERVED:,} residues, including water"
        raise InputError.at(path, f"{problem}; remove the water")
    try:
        table = block.find_mmcif_category(_ATOM_SITE)
        if not table.width():  # gemmi aborts the process on an empty loop
            raise ValueError(f"the loop that has {_ATOM_SITE}Cartn_x begins with another category")
        table.ensure_loop()
        missing = [
            _ATOM_SITE + column for column in _COLUMNS_FOR_GEMMI if not len(block.find_values(_ATOM_SITE + column))
        ]
        if missing:
            table.loop.add_columns(missing, "?")
        model = gemmi.make_structure_from_block(block)
    except (ValueError, RuntimeError, IndexError) as error:
        message = printable(" ".join(str(error).split()))
        raise InputError.at(path, f"its atoms cannot be read ({message}); was the file edited?") from error
    if not len(model):
        raise InputError.at(path, "its atoms cannot be read because columns of _atom_site are missing")
    poly = Category(block, "_entity_poly.", "entity_id", path)
    letters = dict(zip(poly.text("entity_id"), poly.text("pdbx_seq_one_letter_code"), strict=True))
    for entity in model.entities:
        if not entity.full_sequence:
            sequence = "".join(letters.get(entity.name, "").split())
            check_residues(len(sequence), path)
            entity.full_sequence = gemmi.expand_one_letter_sequence(sequence, gemmi.ResidueKind.AA)
    return chains_from_gemmi(model, path)


def _release_date(block: gemmi.cif.Block, path: str | PathLike[str]) -> date | None:
    """Return the date of the first revision, or None if it is unknown."""
    for category, column in _RELEASE_DATE_COLUMNS:
        dates = []
        for text in Category(block, category, column, path).text(column):
            try:
                dates.append(date.fromisoformat(text))
            except ValueError:
                continue
        if dates:
            return min(dates)
    return None


def _resolution(block: gemmi.cif.Block, path: str | PathLike[str]) -> float | None:
    """Return the resolution in Angstrom of the last category that has one, or None."""
    resolution = None
    for category, column in _RESOLUTION_COLUMNS:
        values = Category(block, category, column, path).text(column)[:1]
        angstrom = gemmi.cif.as_number(values[0]) if values else 0.0
        if 0 < angstrom < np.inf:
            resolution = angstrom
    return resolution
