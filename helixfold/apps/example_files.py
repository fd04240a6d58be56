"""Files of the example that comes with the package: the SH3 domain of Src, its relatives, and a peptide."""

from pathlib import Path
from typing import Final

from data_pipeline.io.errors import InputError, printable

_EXAMPLE_DIRECTORY: Final = Path(__file__).parent / "predict" / "example"


def example_file(name: str) -> Path:
    """Return the path of an example file in the package; raise `InputError` for an unknown name.

    - src_sh3.fasta: the SH3 domain of chicken Src, 64 residues
    - src_sh3.a3m: an alignment of it and 111 SH3 domains of other proteins
    - 1shg.pdb: a template, the SH3 domain of spectrin (PDB 1SHG), with 34 % of the residues in common
    - strand_helix.pdb: an ideal peptide of 21 residues
    """
    path = _EXAMPLE_DIRECTORY / name
    names = sorted(each.name for each in _EXAMPLE_DIRECTORY.iterdir())
    if name not in names:
        raise InputError(f"unknown example file {printable(name)}; choose one of {', '.join(names)}")
    return path
