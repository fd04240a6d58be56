"""Define the command `helixfold scan`, which predicts mutants and compares them with the wild type."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from helixfold.apps.score.options import ScanOptions
from helixfold.cli.command import Command
from helixfold.runtime.options import MOST_USED

_HELP_EXAMPLES = """more examples:
  helixfold scan complex.fasta --positions A.30 B.all --to A
      alanine scan of one residue of chain A and of all of chain B
  helixfold scan protein.fasta --table mutations.tsv
      the mutations listed in a table

Run the same command again to resume: finished mutants are kept.
"""
_USAGE = (
    "helixfold scan FILE... [--output DIR] [options]\n"
    "example: helixfold scan protein.fasta --positions 10-20 --msa-server"
)
_DEFAULT_OPTIONS = ScanOptions()
app = Command(name="scan", usage=_USAGE, help_epilogue=_HELP_EXAMPLES)


@app.default
def scan(
    *inputs: Annotated[Path, Parameter(name="FILE", group=MOST_USED, required=True)],
    options: ScanOptions = _DEFAULT_OPTIONS,
) -> int:
    """Predict mutants of proteins and complexes from the wild type's alignment, and compare them with the wild type:
    pLDDT, PAE, lDDT between the structures, and the network's likelihood of each amino acid.

    Parameters
    ----------
    inputs
        Sequences to predict: FASTA files, tables (.csv, .tsv with columns id and sequence), a3m alignments, directories
        of such files, or sequences of at least ten residues typed here.
    """
    from helixfold.runtime.imports import collecting_no_garbage

    with collecting_no_garbage():
        from helixfold.apps.score.scan_run import scan as run
        from helixfold.runtime.screen import logged_screen

    with logged_screen(options.log_file):
        return run(replace(options, inputs=inputs))
