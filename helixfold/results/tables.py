"""Write tab-separated tables in the format of nf-core/proteinfold, for its report and for MultiQC.

Its `extract_metrics.py` writes tables with these names and columns, and its `generate_report.py` and
`generate_multiqc_contents.py` read them (development version of 2026): <target>_plddt.tsv, <target>_ptm.tsv,
<target>_<rank>_pae.tsv and <target>_msa.tsv. Notes of a prediction are in a column that these programs ignore, or in a
comment. The table of pTM can have neither, so it is not written for predictions with notes.

<target>_interfaces.tsv is our own: a line for each pair of chains of each prediction of a complex.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.residues import GAP, RESTYPES, UNKNOWN
from helixfold.folding.prediction import Prediction
from helixfold.results.file_table import CONFIDENCE, INTERFACES_TABLE, PAE, PAE_TABLE, PLDDT_TABLE, PTM_TABLE
from helixfold.results.json_object import JsonObject
from helixfold.results.pdb import plain_text
from helixfold.results.prediction import all_notes, pae_rows, read_pae
from helixfold.results.writing import tab_separated, write_file

# The twenty residue types in alphabetical order, as in HHblits.
_MSA_LETTERS = "ACDEFGHIKLMNPQRSTVWY"
_FIRST_COLUMNS = ("rank", "prediction", "chain_1", "chain_2")
_SCORE_COLUMNS = ("iptm", "ipsae", "pdockq", "pdockq2", "lis", "interface_plddt", "interface_pae", "contacts")


def write_tables(directory: Path, order: Sequence[Prediction]) -> None:
    """Write tables of pLDDT, pTM and interface scores of all predictions, the best first, and of the best one's PAE.

    Tables that cannot be written are removed. These are the table of pTM if a prediction has none or has notes, of PAE
    if the best prediction has none, and of interfaces for single chains.
    """
    target, notes = directory.resolve().name, all_notes(order)
    write_file(PLDDT_TABLE.path(directory, target=target), plddt_table([each.plddt for each in order], notes))
    # The columns are the rank, from 0, and pTM, without a header.
    ptms = [f"{rank}\t{each.ptm:.3f}\n" for rank, each in enumerate(order) if each.ptm is not None]
    write_file(
        PTM_TABLE.path(directory, target=target), "".join(ptms) if len(ptms) == len(order) and not notes else None
    )
    pae = None
    if order[0].ptm is not None:
        errors, _ = read_pae(PAE.path(directory, prediction=order[0].name), len(order[0].plddt))
        pae = pae_table(errors, order[0].notes)
    write_file(PAE_TABLE.path(directory, target=target, rank=0), pae)
    write_file(INTERFACES_TABLE.path(directory, target=target), interface_table(directory, order))


def interface_table(directory: Path, order: Sequence[Prediction]) -> str | None:
    """Return a table with a line for each pair of chains, from the confidence files; None for single chains.

    The scores are defined in `helixfold.analysis.interfaces`; missing scores are NA. The last column has the notes.
    """
    lines = [
        [rank, prediction.name, *interface.list_of("chains", str), *map(interface.content.get, _SCORE_COLUMNS), notes]
        for rank, prediction in enumerate(order)
        for interface in JsonObject.read(CONFIDENCE.path(directory, prediction=prediction.name)).children("interfaces")
        for notes in [plain_text(" ".join(prediction.notes))]
    ]
    return tab_separated([*_FIRST_COLUMNS, *_SCORE_COLUMNS, "notes"], lines) if lines else None


def plddt_table(plddts: Sequence[Float[np.ndarray, " r"]], notes: Sequence[str] = ()) -> str:
    """Return a table of pLDDT, 0 to 100, with a row for each residue (from 0) and a column for each rank (from 0).

    With notes, a last column has all of them in its first row.
    """
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(["Positions", *(f"rank_{rank}" for rank in range(len(plddts))), *(["notes"] if notes else [])])
    for position, values in enumerate(zip(*plddts, strict=True)):
        remark = [plain_text(" ".join(notes)) if position == 0 else ""] if notes else []
        writer.writerow([position, *(f"{value:.2f}" for value in values), *remark])
    return text.getvalue()


def pae_table(pae: Float[np.ndarray, "r r"], notes: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield a table of PAE in Å without a header; rows are aligned residues, and columns scored ones.

    The notes precede it as lines that begin with "#".
    """
    for note in notes:
        yield f"# {plain_text(note)}\n".encode()
    for row in pae_rows(pae, "\t"):
        yield f"{row}\n".encode()


def msa_table(msa: Int[np.ndarray, "n r"]) -> Iterator[bytes]:
    """Yield a table of the alignment without a header, the target first, with a number for each residue.

    Numbers 0 to 19 are the residue types in alphabetical order, 20 is an unknown residue, and 21 a gap.
    """
    codes = np.array([str(code) for code in (*map(_MSA_LETTERS.index, RESTYPES), UNKNOWN, GAP)])
    for row in msa:
        yield ("\t".join(codes[row].tolist()) + "\n").encode()
