"""Read the first biological assembly of an mmCIF entry: its chains and their positions."""

from dataclasses import dataclass
from os import PathLike
from typing import Any

import gemmi
import numpy as np
from jaxtyping import Float

from data_pipeline.parse.cif import Category, read_blocks
from data_pipeline.parse.mmcif import MAX_MMCIF_BYTES
from data_pipeline.parse.text_files import read_text_bytes

_CATEGORIES = ("_pdbx_struct_assembly_gen.", "_pdbx_struct_oper_list.")
# gemmi reads an assembly only if its category has these columns, with `details` from the archive's vocabulary.
_ASSEMBLY_COLUMNS = ("id", "details", "method_details", "oligomeric_details", "oligomeric_count")
_DETAIL_VALUES = ("author_defined_assembly", "?", "?", "?")
# Copies of chains, ligands included; the largest viruses have a few thousand.
_MAX_COPIES = 100_000


@dataclass(frozen=True, kw_only=True)
class ChainCopy:
    """A chain of an assembly: the author's chain id, and the motion x -> rotation @ x + translation (Å)."""

    chain: str
    rotation: Float[np.ndarray, "3 3"]
    translation: Float[np.ndarray, "3"]


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """The first biological assembly of an entry, with copies of its polymer chains in file order, grouped by motion.

    If it cannot be read, or the file states none, there are no copies and `problem` is the reason; else it is "".
    """

    copies: tuple[ChainCopy, ...] = ()
    problem: str = ""


def read_assembly(path: str | PathLike[str]) -> Assembly:
    """Return the first biological assembly in a structure file; raise `InputError` if the file cannot be read.

    Files other than mmCIF state no assembly, which is the result's `problem`.
    """
    content = read_text_bytes(path, MAX_MMCIF_BYTES)
    return parse_assembly(content, path=path) if b"_pdbx_struct_assembly" in content else Assembly(problem=_NO_ASSEMBLY)


_NO_ASSEMBLY = "the file states no biological assembly"


def parse_assembly(content: bytes, *, path: str | PathLike[str] = "mmcif") -> Assembly:
    """Return the first biological assembly in the content of an mmCIF file; raise `InputError` for other content."""
    block = next((block for block in read_blocks(content, path) if block.find_loop(_COORDINATE_TAG)), None)
    if block is None:
        return Assembly(problem=_NO_ASSEMBLY)
    try:
        assemblies = gemmi.make_structure_from_block(_only_assemblies(block)).assemblies
    except (ValueError, RuntimeError) as error:
        return Assembly(problem=f"its assemblies cannot be read ({' '.join(str(error).split())})")
    if not assemblies:
        return Assembly(problem=_NO_ASSEMBLY)
    author_of = _authors_of_polymers(block, path)
    copies: dict[tuple[str, bytes], ChainCopy] = {}
    for generator in assemblies[0].generators:
        for operator in generator.operators:
            motion = operator.transform
            rotation, translation = np.array(motion.mat.tolist()), np.array(motion.vec.tolist())
            for name in generator.subchains:
                if name in author_of:
                    copy = ChainCopy(chain=author_of[name], rotation=rotation, translation=translation)
                    copies.setdefault((copy.chain, np.append(rotation, translation).tobytes()), copy)
                if len(copies) > _MAX_COPIES:
                    return Assembly(problem=f"its assembly has more than {_MAX_COPIES:,} chains")
    return Assembly(copies=tuple(copies.values()), problem="" if copies else "its assembly has no polymer")


_COORDINATE_TAG = "_atom_site.Cartn_x"


def _only_assemblies(block: gemmi.cif.Block) -> gemmi.cif.Block:
    """Return a block with the assemblies but without atoms, which gemmi parses much faster."""
    document = gemmi.cif.Document()
    assemblies: gemmi.cif.Block = document.add_new_block("assemblies")
    for item in block:
        pair: Any = item.pair
        tags = item.loop.tags if item.loop else list(pair or ())
        if tags and tags[0].lower().startswith(_CATEGORIES):
            assemblies.add_item(item)
    ids = dict.fromkeys(row.str(0) for row in assemblies.find("_pdbx_struct_assembly_gen.", ["assembly_id"]))
    loop = assemblies.init_mmcif_loop("_pdbx_struct_assembly.", list(_ASSEMBLY_COLUMNS))
    for name in ids:
        loop.add_row([gemmi.cif.quote(name), *_DETAIL_VALUES])
    return assemblies


def _authors_of_polymers(block: gemmi.cif.Block, path: str | PathLike[str]) -> dict[str, str]:
    """Return the author's chain id of each polymer, by the chain id that assemblies use (label_asym_id)."""
    scheme = Category(block, "_pdbx_poly_seq_scheme.", "asym_id", path)
    authors = dict(zip(scheme.text("asym_id"), scheme.text("pdb_strand_id"), strict=True))
    if authors:
        return authors
    sites = Category(block, "_atom_site.", "label_asym_id", path)
    rows = zip(*map(sites.text, ("label_asym_id", "auth_asym_id", "label_seq_id")), strict=True)
    return {name: author or name for name, author, residue_number in rows if residue_number}
