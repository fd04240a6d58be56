"""Define the command `helixfold scan`, which shows what mutations change in the eyes of a network."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from helixfold.predict.options import TARGETS
from helixfold.scoring.options import ScanOptions

_EXAMPLES = """examples:
  helixfold scan protein.fasta --positions 10-20 --msa-server
      each of these residues to all other amino acids, with one search
  helixfold scan complex.fasta --positions A.30 B.all --to A
      an alanine scan of a residue and a chain of a complex
  helixfold scan protein.fasta --table mutations.tsv
      the mutations of a table

Run the same command again to go on: finished mutants are not made again.
"""
_USUAL = ScanOptions()
app = App(name="scan", usage="helixfold scan FILE... [--output DIR] [options]", help_epilogue=_EXAMPLES)


@app.default
def scan(
    *inputs: Annotated[Path, Parameter(name="FILE", group=TARGETS, required=True)], options: ScanOptions = _USUAL
) -> int:
    """Predict mutants of proteins and complexes from one alignment, and compare them with the wild type: pLDDT, PAE,
    lDDT of the structures, and how likely the network thinks each amino acid is.

    Parameters
    ----------
    inputs
        FASTA files (all records), tables (.csv, .tsv: id, sequence), a3m alignments (.gz too), directories of them, or
        sequences.
    """
    from helixfold.imports import collecting_no_garbage

    with collecting_no_garbage():
        from helixfold.scoring.scan_run import scan as run

    return run(replace(options, inputs=inputs))
