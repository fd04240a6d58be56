"""Write `designs.tsv`, `designs.fasta` and `designs.html`: designs, ranked by their check with another model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from helixfold.report.page import page
from helixfold.report.tables import DEMONSTRATION, UNTRAINED, mark_of
from helixfold.results.file_table import DESIGNS_PAGE, DESIGNS_SEQUENCES, DESIGNS_TABLE
from helixfold.results.writing import rounded, tab_separated, write_file


@dataclass(frozen=True, kw_only=True)
class CheckLine:
    """Columns of the table for the check of a design by another model; pLDDT is from 0 to 100.

    `known_tm_score` compares the checking model's structure with the backbone that the sequence was designed for.
    """

    model: str
    plddt: float
    tm_score: float  # to the structure of the design
    rmsd: float  # Å
    iptm: float | None
    known_tm_score: float | None
    agreement: float  # pLDDT times TM-score, 0 to 1
    # Scores of two controls: the shuffled sequence of the design, and random residues.
    plddt_shuffled: float
    tm_score_shuffled: float
    plddt_random: float
    tm_score_random: float
    beats_controls: str  # "yes" if pLDDT and TM-score are higher than for both controls, else "no"


@dataclass(frozen=True, kw_only=True)
class DesignLine:
    """A line of the table of designs; `check` is None if no other model has checked the design.

    `loss` is the weighted sum of the losses, and `losses` has each loss by name, without its weight. `loss_by_step` has
    the weighted sum of each step. `notes` are notes on the designing model.
    """

    target: str
    directory: str  # of its files, in the output directory
    number: int  # from 0
    protocol: str
    sequences: Mapping[str, str]  # by chain
    loss: float
    losses: Mapping[str, float]
    mean_plddt: float  # 0 to 100
    ptm: float | None  # 0 to 1
    iptm: float | None
    known_tm_score: float | None  # to the backbone that it was designed for
    loss_by_step: Sequence[float]
    notes: Sequence[str] = ()
    check: CheckLine | None = None

    @property
    def sequence(self) -> str:
        """The sequences of all chains, separated by colons."""
        return ":".join(self.sequences.values())


def write_designs(output: Path, lines: Iterable[DesignLine], failures: Mapping[str, str]) -> None:
    """Write designs.tsv, designs.fasta and designs.html into the directory `output`, with designs sorted by `ranked`.

    `failures` has the reasons of failed items, by name, for the page.
    """
    order = ranked(lines)
    write_file(DESIGNS_TABLE.path(output), table(order))
    records = (f">{line.directory}_{line.number}\n{line.sequence}\n" for line in order)
    write_file(DESIGNS_SEQUENCES.path(output), "".join(records))
    write_file(
        DESIGNS_PAGE.path(output),
        page(
            "designs.html",
            styles=("page.css", "index.css", "designs.css"),
            scripts=("banner.js", "index.js"),
            title=output.resolve().name,
            lines=order,
            failures=failures,
            checked=sum(line.check is not None for line in order),
            counting=sum(line.check is not None and line.check.beats_controls == "yes" for line in order),
            untrained=sum(mark_of(line.notes) == UNTRAINED for line in order),
            demonstrations=sum(mark_of(line.notes) == DEMONSTRATION for line in order),
        ),
    )


def ranked(lines: Iterable[DesignLine]) -> list[DesignLine]:
    """Sort designs by the agreement of their check, the best first; designs without a check come last, by loss."""
    return sorted(
        lines,
        key=lambda line: (1 if line.check is None else -line.check.agreement, line.loss, line.target, line.number),
    )


def table(lines: Sequence[DesignLine]) -> str:
    """Return the table of designs, sorted by `ranked`, as tab-separated text with NA for unknown values."""
    losses = list(dict.fromkeys(name for line in lines for name in line.losses))
    checks = [each.name for each in fields(CheckLine) if each.name != "agreement"]
    names = (
        *("rank", "target", "design", "protocol", "loss", "mean_plddt", "ptm", "iptm", "known_tm_score"),
        *(f"check_{name}" for name in checks),
        *(f"loss_{name}" for name in losses),
        *("residues", "sequence"),
    )
    rows = [
        [
            *(rank, line.target, line.number, line.protocol, line.loss, line.mean_plddt, line.ptm, line.iptm),
            line.known_tm_score,
            *(getattr(line.check, name, None) for name in checks),
            *(line.losses.get(name) for name in losses),
            *(len(line.sequence.replace(":", "")), line.sequence),
        ]
        for rank, line in enumerate(lines, start=1)
    ]
    return tab_separated(names, ([rounded(value) for value in row] for row in rows))
