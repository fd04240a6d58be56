"""Tab-separated tables as nf-core/proteinfold makes them of AlphaFold's output, for its report and for MultiQC.

Names and columns are those that its `extract_metrics.py` writes and `generate_report.py` and
`generate_multiqc_contents.py` read (development version of 2026): <target>_plddt.tsv, <target>_ptm.tsv,
<target>_<rank>_pae.tsv and <target>_msa.tsv. Where a prediction has notes, so has the table: as a column that those
readers pass over, or as a comment. A table of pTM can have neither.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.residues import GAP, RESTYPES, UNKNOWN
from helixfold.write.pdb import plain_text
from helixfold.write.ranking import FinishedPrediction, all_notes, read_pae
from helixfold.write.results import pae_rows, write_file

# HHblits' order, which AlphaFold's features have: twenty in the alphabet's order, unknown, gap.
_MSA_LETTERS = "ACDEFGHIKLMNPQRSTVWY"


def write_tables(directory: Path, order: Sequence[FinishedPrediction]) -> None:
    """Of predictions, best first: pLDDT and pTM of all ranks, and PAE of the best, for the report reads no other."""
    target, notes = directory.resolve().name, all_notes(order)
    write_file(directory / f"{target}_plddt.tsv", plddt_table([each.plddt for each in order], notes))
    ptms = [each.ptm for each in order if each.ptm is not None]
    if len(ptms) == len(order) and not notes:
        # Rank, from 0, and pTM, without a header.
        table = "".join(f"{rank}\t{ptm:.3f}\n" for rank, ptm in enumerate(ptms))
        write_file(directory / f"{target}_ptm.tsv", table)
    else:
        (directory / f"{target}_ptm.tsv").unlink(missing_ok=True)
    if order[0].ptm is not None:
        pae, _ = read_pae(directory / f"pae_{order[0].name}.json")
        write_file(directory / f"{target}_0_pae.tsv", pae_table(pae, order[0].notes))
    else:
        (directory / f"{target}_0_pae.tsv").unlink(missing_ok=True)


def plddt_table(plddts: Sequence[Float[np.ndarray, " r"]], notes: Sequence[str] = ()) -> str:
    """A row for each residue, from 0, and a column for each rank: pLDDT, 0 to 100."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(["Positions", *(f"rank_{rank}" for rank in range(len(plddts))), *(["notes"] if notes else [])])
    for position, values in enumerate(zip(*plddts, strict=True)):
        remark = [plain_text(" ".join(notes)) if position == 0 else ""] if notes else []
        writer.writerow([position, *(f"{value:.2f}" for value in values), *remark])
    return text.getvalue()


def pae_table(pae: Float[np.ndarray, "r r"], notes: Sequence[str] = ()) -> Iterator[bytes]:
    """PAE in Angstrom, without a header, row by row: row i is aligned, column j scored."""
    for note in notes:
        yield f"# {plain_text(note)}\n".encode()
    for row in pae_rows(pae, "\t"):
        yield f"{row}\n".encode()


def msa_table(msa: Int[np.ndarray, "n r"]) -> Iterator[bytes]:
    """The alignment's letters as numbers, the target first, without a header.

    0 to 19 in the alphabet's order, 20 unknown, 21 gap.
    """
    numbers = np.array([str(number) for number in (*map(_MSA_LETTERS.index, RESTYPES), UNKNOWN, GAP)])
    for row in msa:
        yield ("\t".join(numbers[row].tolist()) + "\n").encode()
