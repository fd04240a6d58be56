"""Read from mmCIF which chains make up the first biological assembly of an entry, and where each of them stands."""

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
# gemmi reads an assembly only if its category has these columns and its details are among those of the archive.
_ASSEMBLY = ("id", "details", "method_details", "oligomeric_details", "oligomeric_count")
_DETAILS = ("author_defined_assembly", "?", "?", "?")
# Copies of chains, ligands included; the largest viruses have a few thousand.
_MAX_COPIES = 100_000


@dataclass(frozen=True, kw_only=True)
class ChainCopy:
    """A chain of an assembly: the author's chain id, and the motion x -> rotation @ x + translation (Angstrom)."""

    chain: str
    rotation: Float[np.ndarray, "3 3"]
    translation: Float[np.ndarray, "3"]


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """The first biological assembly of an entry; its polymers in the file's order, those of one motion together.

    `problem` says why there is none, or is "".
    """

    copies: tuple[ChainCopy, ...] = ()
    problem: str = ""


def read_assembly(path: str | PathLike[str]) -> Assembly:
    """Return the first biological assembly that a structure file states; raise `InputError` if it cannot be read."""
    content = read_text_bytes(path, MAX_MMCIF_BYTES)
    return parse_assembly(content, path=path) if b"_pdbx_struct_assembly" in content else Assembly(problem=_UNSTATED)


_UNSTATED = "the file states no biological assembly"


def parse_assembly(content: bytes, *, path: str | PathLike[str] = "mmcif") -> Assembly:
    """Return the first biological assembly in the text of an mmCIF file; raise `InputError` for other content."""
    block = next((block for block in read_blocks(content, path) if block.find_loop(_COORDINATE)), None)
    if block is None:
        return Assembly(problem=_UNSTATED)
    try:
        stated = gemmi.make_structure_from_block(_only_assemblies(block)).assemblies
    except (ValueError, RuntimeError) as error:
        return Assembly(problem=f"its assemblies cannot be read ({' '.join(str(error).split())})")
    if not stated:
        return Assembly(problem=_UNSTATED)
    author_of = _authors_of_polymers(block, path)
    copies: dict[tuple[str, bytes], ChainCopy] = {}
    for generator in stated[0].generators:
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


_COORDINATE = "_atom_site.Cartn_x"


def _only_assemblies(block: gemmi.cif.Block) -> gemmi.cif.Block:
    """Return a block without atoms, which gemmi reads at once."""
    document = gemmi.cif.Document()
    found: gemmi.cif.Block = document.add_new_block("assemblies")
    for item in block:
        pair: Any = item.pair
        tags = item.loop.tags if item.loop else list(pair or ())
        if tags and tags[0].lower().startswith(_CATEGORIES):
            found.add_item(item)
    ids = dict.fromkeys(row.str(0) for row in found.find("_pdbx_struct_assembly_gen.", ["assembly_id"]))
    loop = found.init_mmcif_loop("_pdbx_struct_assembly.", list(_ASSEMBLY))
    for name in ids:
        loop.add_row([gemmi.cif.quote(name), *_DETAILS])
    return found


def _authors_of_polymers(block: gemmi.cif.Block, path: str | PathLike[str]) -> dict[str, str]:
    """Return the author's id of each polymer chain, by the chain id that assemblies use."""
    scheme = Category(block, "_pdbx_poly_seq_scheme.", "asym_id", path)
    found = dict(zip(scheme.text("asym_id"), scheme.text("pdb_strand_id"), strict=True))
    if found:
        return found
    sites = Category(block, "_atom_site.", "label_asym_id", path)
    rows = zip(*map(sites.text, ("label_asym_id", "auth_asym_id", "label_seq_id")), strict=True)
    return {name: author or name for name, author, number in rows if number}
