"""Read a structure file, mmCIF or PDB, which is recognised by content."""

import re
from os import PathLike

from data_pipeline.io.errors import InputError
from data_pipeline.parse.gemmi_chains import MAX_PDB_BYTES, parse_pdb
from data_pipeline.parse.mmcif import MAX_MMCIF_BYTES, parse_mmcif
from data_pipeline.parse.text_files import read_text_bytes
from data_pipeline.structure import Structure

_BLOCK = re.compile(rb"^[ \t]*[Dd][Aa][Tt][Aa]_", re.MULTILINE)
_ATOM = re.compile(rb"^(?:ATOM  |HETATM)", re.MULTILINE)  # in mmCIF, too, but after the block's name


def read_structure(path: str | PathLike[str]) -> Structure:
    """Return the first model in an mmCIF or PDB file, plain or gzip; raise `InputError` for any other file."""
    content = read_text_bytes(path, MAX_MMCIF_BYTES)
    atom = _ATOM.search(content)
    if _BLOCK.search(content, 0, atom.start() if atom else len(content)):
        return parse_mmcif(content, path=path)
    if not atom:
        raise InputError.at(path, "neither mmCIF (data_) nor PDB (ATOM records); give a structure in one of them")
    if len(content) > MAX_PDB_BYTES:
        raise InputError.at(path, f"it holds more than {MAX_PDB_BYTES:,} bytes of PDB, the most that is read")
    return parse_pdb(content, path=path)
