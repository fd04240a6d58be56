"""Read mmCIF: each protein chain's sequence as the entry states it, with the observed atoms."""

from collections.abc import Mapping
from dataclasses import dataclass
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

_SITES = "_atom_site."
_RESIDUE_COLUMNS = ("auth_asym_id", "auth_seq_id", "label_asym_id", "label_seq_id", "pdbx_PDB_ins_code")
_MAX_OBSERVED = 2**17  # gemmi's time rises with the square of it
_MAX_CHAINS = 2**16  # each ligand is one
_GEMMI_NEEDS = ("id", "type_symbol", "label_alt_id", "label_asym_id")  # gemmi finds no atoms if one is missing
_NO_NUMBER = -(2**31) + 1  # not a residue's number
# AlphaFold takes the last of these that is a number.
_RESOLUTIONS = (
    ("_refine.", "ls_d_res_high"),
    ("_em_3d_reconstruction.", "resolution"),
    ("_reflns.", "d_resolution_high"),
)
# The second is the name before 2017.
_RELEASES = (("_pdbx_audit_revision_history.", "revision_date"), ("_database_PDB_rev.", "date"))


@dataclass(frozen=True, kw_only=True)
class _Polymer:
    """A polymer's residues as the entry states them, observed or not."""

    components: tuple[str, ...]
    first_number: int  # label_seq_id of the first component
    is_protein: bool


def parse_mmcif(content: bytes, *, path: str | PathLike[str] = "mmcif") -> Structure:
    """Return the first model in the text of an mmCIF file; raise `InputError`, which names `path`, for other content.

    As in AlphaFold, chains have the author's names, and a polymer with at least one peptide-like component is a
    protein. Chains of files that do not state the sequence have the observed residues only.
    """
    blocks = read_blocks(content, path)
    block = next((block for block in blocks if all(_has(block, f"Cartn_{axis}") for axis in "xyz")), None)
    if block is None:
        raise InputError.at(path, "there are no atoms (_atom_site.Cartn_x, _y, _z); give a file with coordinates")
    polymers = _polymers(block, path)
    stated = all(_has(block, f"label_{item}_id") for item in ("asym", "seq", "comp", "atom"))
    chains, skipped = _chains(block, polymers, path) if polymers and stated else _chains_of_observed(block, path)
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
    """Return whether some atom has a value in this column."""
    return not all(map(gemmi.cif.is_null, block.find_values(_SITES + column)))


def _polymers(block: gemmi.cif.Block, path: str | PathLike[str]) -> dict[str, _Polymer]:
    """Return the polymers that the entry describes, by entity."""
    residues = Category(block, "_entity_poly_seq.", "num", path)
    entities, names = residues.text("entity_id"), residues.text("mon_id")
    numbers = residues.integers("num", unset=0).tolist()
    by_entity: dict[str, dict[int, str]] = {}
    for entity, number, name in zip(entities, numbers, names, strict=True):
        # Differs from AlphaFold: of residues that share a position (microheterogeneity) the first is taken, as in
        # SEQRES. AlphaFold takes all of them in turn, which shifts all following atoms against the sequence.
        by_entity.setdefault(entity, {}).setdefault(number, name)
    kinds = Category(block, "_chem_comp.", "id", path)
    kind_of = dict(zip(kinds.text("id"), kinds.text("type"), strict=True))
    polymers = {}
    for entity, by_number in by_entity.items():
        first = min(by_number)
        if max(by_number) - first + 1 != len(by_number):
            raise InputError.at(path, f"_entity_poly_seq skips residue numbers of entity '{printable(entity)}'")
        components = tuple(name for _, name in sorted(by_number.items()))
        is_protein = any(_is_peptide(name, kind_of.get(name, "")) for name in set(components))
        polymers[entity] = _Polymer(components=components, first_number=first, is_protein=is_protein)
    return polymers


def _is_peptide(component: str, kind: str) -> bool:
    return "peptide" in kind.lower() if kind else component == "UNK" or residue_letter(component) != "X"


def _chains(
    block: gemmi.cif.Block, polymers: Mapping[str, _Polymer], path: str | PathLike[str]
) -> tuple[list[Chain], dict[str, str]]:
    """Return the protein chains in the order of _struct_asym, and the reasons for chains that were left out."""
    sites = _first_model_sites(block, path)
    label, labels = sites.codes("label_asym_id")
    author, authors = sites.codes("auth_asym_id")
    if len(labels) > _MAX_CHAINS:
        raise InputError.at(path, f"its first model has more than {_MAX_CHAINS:,} chains, the most that is read")
    rows_of = dict(zip(labels, groups(label, len(labels)), strict=True))
    author_of = {name: authors[author[rows[0]]] or name for name, rows in rows_of.items()}
    scheme = Category(block, "_pdbx_poly_seq_scheme.", "asym_id", path)
    strand_of = dict(zip(scheme.text("asym_id"), scheme.text("pdb_strand_id"), strict=True))
    atoms, numbers = _atom_table(sites), sites.integers("label_seq_id", unset=_NO_NUMBER)

    chains: dict[str, Chain] = {}
    skipped: dict[str, str] = {}
    residues = 0
    for label_name, entity in _entity_of_chain(block, sites, path).items():
        polymer = polymers.get(entity)
        if label_name not in rows_of and polymer is None:
            continue
        name = author_of.get(label_name) or strand_of.get(label_name) or label_name
        if polymer is None:
            skipped.setdefault(name, "no polymer, only ligands or water")
            continue
        if not polymer.is_protein:
            skipped[name] = "a polymer, but no protein"
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
            chains[name] = chain
    return list(chains.values()), {name: reason for name, reason in skipped.items() if name not in chains}


def _chain(name: str, polymer: _Polymer, atoms: AtomTable, numbers: Int[np.ndarray, "n"]) -> Chain | None:
    residue = numbers.astype(np.int64) - polymer.first_number
    inside = np.flatnonzero((residue >= 0) & (residue < len(polymer.components)))
    if not len(inside):
        return None
    return chain_from_atoms(
        name, polymer.components, atoms.rows(inside), residue[inside], first_number=polymer.first_number
    )


def _entity_of_chain(block: gemmi.cif.Block, sites: Category, path: str | PathLike[str]) -> dict[str, str]:
    """Return the entity of each chain (both by mmCIF's own ids), in the order of _struct_asym, else of the atoms."""
    units = Category(block, "_struct_asym.", "id", path)
    stated = dict(zip(units.text("id"), units.text("entity_id"), strict=True))
    (label, labels), (entity, entities) = sites.codes("label_asym_id"), sites.codes("label_entity_id")
    first_rows = np.unique(label, return_index=True)[1].tolist()
    for name, row in zip(labels, first_rows, strict=True):
        stated.setdefault(name, entities[entity[row]])
    return stated


def _first_model_sites(block: gemmi.cif.Block, path: str | PathLike[str]) -> Category:
    """Return the rows of _atom_site that belong to the model of its first row."""
    sites = Category(block, _SITES, "Cartn_x", path)
    sites.choose(np.flatnonzero(sites.codes("pdbx_PDB_model_num")[0] == 0))
    return sites


def _atom_table(sites: Category) -> AtomTable:
    component, components = sites.codes("label_comp_id")
    atom, atoms = sites.codes("label_atom_id")
    number = sites.integers("auth_seq_id", unset=_NO_NUMBER)
    number = np.where(number == _NO_NUMBER, sites.integers("label_seq_id", unset=_NO_NUMBER), number)
    code, codes = sites.codes("pdbx_PDB_ins_code")
    atom_types = np.array([atom_type(name) for name in atoms], dtype=np.int64)[atom]
    is_selenium = np.array([name.upper() == "SE" for name in atoms], dtype=bool)[atom]
    is_mse = np.array([name == "MSE" for name in components], dtype=bool)[component]
    occupancy, b_factor = sites.reals("occupancy", unset=1.0), sites.reals("B_iso_or_equiv", unset=0.0)
    return AtomTable(
        component_names=components,
        component=component,
        atom_type=selenium_as_sulphur(atom_types, is_selenium, is_mse),
        number=number,
        insertion_code=np.array([name[:1] or " " for name in codes], dtype="U1")[code],
        position=_coordinates(sites),
        occupancy=occupancy,
        b_factor=b_factor,
    )


def _coordinates(sites: Category) -> Float[np.ndarray, "n 3"]:
    return np.stack([sites.reals(f"Cartn_{axis}", unset=np.nan) for axis in "xyz"], axis=-1)


def _chains_of_observed(block: gemmi.cif.Block, path: str | PathLike[str]) -> tuple[list[Chain], dict[str, str]]:
    """Return the chains of an entry that does not list its residues, and the reasons for chains that were left out."""
    sites = Category(block, _SITES, "Cartn_x", path)
    _coordinates(sites)  # raises for invalid numbers, which gemmi would read as NaN
    places = np.stack([sites.codes(column)[0] for column in _RESIDUE_COLUMNS])
    if np.count_nonzero((np.diff(places) != 0).any(axis=0)) >= _MAX_OBSERVED:
        problem = f"it does not state its sequences and has more than {_MAX_OBSERVED:,} residues, water included"
        raise InputError.at(path, f"{problem}; leave out the water")
    try:
        table = block.find_mmcif_category(_SITES)
        if not table.width():  # gemmi ends the process at an empty loop
            raise ValueError(f"the loop that has {_SITES}Cartn_x begins with another category")
        table.ensure_loop()
        lacking = [_SITES + column for column in _GEMMI_NEEDS if not len(block.find_values(_SITES + column))]
        if lacking:
            table.loop.add_columns(lacking, "?")
        model = gemmi.make_structure_from_block(block)
    except (ValueError, RuntimeError, IndexError) as error:
        message = printable(" ".join(str(error).split()))
        raise InputError.at(path, f"its atoms cannot be read ({message}); was the file edited?") from error
    if not len(model):
        raise InputError.at(path, "its atoms cannot be read, for columns of _atom_site are missing")
    stated = Category(block, "_entity_poly.", "entity_id", path)
    letters = dict(zip(stated.text("entity_id"), stated.text("pdbx_seq_one_letter_code"), strict=True))
    for entity in model.entities:
        if not entity.full_sequence:
            sequence = "".join(letters.get(entity.name, "").split())
            check_residues(len(sequence), path)
            entity.full_sequence = gemmi.expand_one_letter_sequence(sequence, gemmi.ResidueKind.AA)
    return chains_from_gemmi(model, path)


def _release_date(block: gemmi.cif.Block, path: str | PathLike[str]) -> date | None:
    """Return the date of the first revision, or None if unknown."""
    for category, column in _RELEASES:
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
    resolution = None
    for category, column in _RESOLUTIONS:
        values = Category(block, category, column, path).text(column)[:1]
        number = gemmi.cif.as_number(values[0]) if values else 0.0
        if 0 < number < np.inf:
            resolution = number
    return resolution
