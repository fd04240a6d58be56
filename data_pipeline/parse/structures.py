"""Read structure files in mmCIF or PDB format, recognised by content."""

import re
from os import PathLike

from data_pipeline.io.errors import InputError
from data_pipeline.parse.gemmi_chains import MAX_PDB_BYTES, parse_pdb
from data_pipeline.parse.mmcif import MAX_MMCIF_BYTES, parse_mmcif
from data_pipeline.parse.text_files import read_text_bytes
from data_pipeline.structure import Structure

_MMCIF_BLOCK = re.compile(rb"^[ \t]*[Dd][Aa][Tt][Aa]_", re.MULTILINE)
_ATOM_RECORD = re.compile(rb"^(?:ATOM  |HETATM)", re.MULTILINE)  # mmCIF has these too, but after the block name


def read_structure(path: str | PathLike[str]) -> Structure:
    """Return the first model in an mmCIF or PDB file, plain or gzip; raise `InputError` for any other file."""
    content = read_text_bytes(path, MAX_MMCIF_BYTES)
    atom = _ATOM_RECORD.search(content)
    if _MMCIF_BLOCK.search(content, 0, atom.start() if atom else len(content)):
        return parse_mmcif(content, path=path)
    if not atom:
        raise InputError.at(
            path, "neither mmCIF (data_) nor PDB (ATOM records); pass a structure in one of these formats"
        )
    if len(content) > MAX_PDB_BYTES:
        raise InputError.at(path, f"the PDB file is larger than the maximum of {MAX_PDB_BYTES:,} bytes")
    return parse_pdb(content, path=path)
