"""Write `pulldown.tsv` and `pulldown.html`: the complexes of baits and preys, ranked by the model's confidence.

`pulldown.json` in the output directory lists the complexes. Both files are made from the files of finished complexes,
and are updated while a batch runs. For a damaged file, the table shows an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import FileState, file_state
from helixfold.report.files import read_order, read_record
from helixfold.report.page import page
from helixfold.report.tables import DEMONSTRATION, UNTRAINED, mark_of
from helixfold.results.failures import failures_in
from helixfold.results.file_table import CONFIDENCE, PULLDOWN, PULLDOWN_PAGE, PULLDOWN_TABLE, RANKING, REPORT
from helixfold.results.json_object import JsonObject
from helixfold.results.packed import PackedResults
from helixfold.results.writing import rounded, tab_separated, to_json, write_file

# Weights of ipTM and pTM in AlphaFold-Multimer's ranking (Evans et al. 2022, Sec. 2.5).
_IPTM_WEIGHT, _PTM_WEIGHT = 0.8, 0.2
_SCORES = ("iptm", "ipsae", "pdockq", "pdockq2", "lis", "interface_plddt", "interface_pae")
# A matrix of baits and preys with more cells is left out, because it does not fit on a screen.
_MAX_CELLS = 2500
_SHADES = 5
_MAX_PDOCKQ = 0.74


@dataclass(frozen=True, kw_only=True)
class PulldownEntry:
    """A complex of a pulldown: the name of its directory, its baits and preys, and the chains of the baits."""

    name: str
    baits: tuple[str, ...]  # names of proteins, by chain
    preys: tuple[str, ...]
    bait_chains: tuple[str, ...]

    @property
    def bait(self) -> str:
        """The names of the baits as one text, such as A:B*2 for one A and two B."""
        return _counted(self.baits)

    @property
    def prey(self) -> str:
        """The names of the preys as one text, such as A:B*2 for one A and two B."""
        return _counted(self.preys)


@dataclass(frozen=True, kw_only=True)
class PulldownLine:
    """A line of the table of complexes; for an unfinished complex, only `entry`, `problem` and `has_report` are set."""

    entry: PulldownEntry
    problem: str | None = None  # why the complex failed, or which file is damaged
    prediction: str | None = None  # name of the best prediction
    residues: int | None = None
    iptm: float | None = None  # 0 to 1; None for models without aligned errors
    ptm: float | None = None
    mean_plddt: float | None = None  # 0 to 100
    interface: str | None = None  # the chains of the best interface of a bait and a prey
    scores: Mapping[str, float | None] = field(default_factory=dict)  # of that interface
    contacts: int | None = None  # number of residue pairs in contact
    mark: str | None = None  # UNTRAINED or DEMONSTRATION, if such a model was used
    has_report: bool = False

    @property
    def status(self) -> str:
        """The word for the table: failed, finished or not finished."""
        return "failed" if self.problem is not None else "finished" if self.prediction is not None else "not finished"

    @property
    def score(self) -> float | None:
        """The score 0.8 ipTM + 0.2 pTM, from 0 to 1; None if there is no ipTM or pTM."""
        if self.iptm is None or self.ptm is None:
            return None
        return _IPTM_WEIGHT * self.iptm + _PTM_WEIGHT * self.ptm

    @property
    def order(self) -> tuple[float, ...]:
        """The sort key of lines, the largest first: score, then the interface's pDockQ, then mean pLDDT.

        Missing values are -1.
        """
        values = (self.score, self.scores.get("pdockq"), self.mean_plddt)
        return tuple(-1.0 if value is None else value for value in values)

    @property
    def cell_value(self) -> float | None:
        """The value of the complex's cell in the matrix of baits and preys: the score, or else pDockQ, or else None."""
        return self.scores.get("pdockq") if self.score is None else self.score

    @property
    def level(self) -> int | None:
        """The shade of the matrix's cell, from 0 to `_SHADES` - 1; None if it has no value."""
        if self.cell_value is None:
            return None
        largest = _MAX_PDOCKQ if self.score is None else 1.0
        return min(int(self.cell_value / largest * _SHADES), _SHADES - 1)


def write_entries(output: Path, entries: Iterable[PulldownEntry]) -> None:
    """Write `pulldown.json`, which lists the complexes for later runs.

    Entries of earlier runs are kept, unless a new entry has the same name.
    """
    by_name = {entry.name: entry for entry in (*read_entries(output), *entries)}
    content = {"complexes": [asdict(entry) for entry in by_name.values()]}
    write_file(PULLDOWN.path(output), to_json(content, indent=1) + "\n")


def read_entries(output: Path) -> list[PulldownEntry]:
    """Read the complexes in `pulldown.json`; empty if there is no such file. Raise `InputError` if it is damaged."""
    return [
        PulldownEntry(
            name=record.get("name", str),
            baits=record.list_of("baits", str),
            preys=record.list_of("preys", str),
            bait_chains=record.list_of("bait_chains", str),
        )
        for record in read_record(PULLDOWN.path(output)).children("complexes")
    ]


def write_pulldown(output: Path, failures: Mapping[str, str] | None = None) -> bool:
    """Write pulldown.tsv and pulldown.html, and return True; return False if the directory is not of a pulldown.

    `failures` has the reasons of complexes that failed in this run; by default, they are read from failures.json.
    """
    entries = read_entries(output)
    if not entries:
        return False
    failed = failures_in(output) if failures is None else failures
    with PackedResults(output) as archive:
        lines = ranked([_line(output, entry, failed.get(entry.name), archive) for entry in entries])
    write_file(PULLDOWN_TABLE.path(output), table(lines))
    finished = [line for line in lines if line.prediction is not None]
    write_file(
        PULLDOWN_PAGE.path(output),
        page(
            "pulldown.html",
            styles=("page.css", "index.css", "pulldown.css"),
            scripts=("banner.js", "index.js"),
            title=output.resolve().name,
            lines=lines,
            matrix=_matrix(lines),
            finished=len(finished),
            failed=sum(line.problem is not None for line in lines),
            untrained=sum(line.mark == UNTRAINED for line in finished),
            demonstrations=sum(line.mark == DEMONSTRATION for line in finished),
            scored=any(line.score is not None for line in finished),
        ),
    )
    return True


def ranked(lines: Iterable[PulldownLine]) -> list[PulldownLine]:
    """Sort lines by `PulldownLine.order`, the best complexes first; unfinished complexes come last, by name."""
    by_name = sorted(lines, key=lambda line: line.entry.name.casefold())
    return sorted(by_name, key=lambda line: (line.prediction is not None, line.order), reverse=True)


def table(lines: Sequence[PulldownLine]) -> str:
    """Return the table of complexes, sorted by `ranked`, as tab-separated text with NA for unknown values."""
    names = (
        *("rank", "complex", "bait", "prey", "status", "score", "iptm", "ptm", "mean_plddt", "residues"),
        *("prediction", "interface", *(f"interface_{name.removeprefix('interface_')}" for name in _SCORES)),
        *("interface_contacts", "problem"),
    )
    rows = [
        [
            None if line.prediction is None else rank,
            *(line.entry.name, line.entry.bait, line.entry.prey, line.status),
            *(line.score, line.iptm, line.ptm, line.mean_plddt, line.residues, line.prediction, line.interface),
            *(line.scores.get(name) for name in _SCORES),
            *(line.contacts, line.problem),
        ]
        for rank, line in enumerate(lines, start=1)
    ]
    return tab_separated(names, ([rounded(value) for value in row] for row in rows))


def _line(output: Path, entry: PulldownEntry, failure: str | None, archive: PackedResults) -> PulldownLine:
    directory = output / entry.name
    line = PulldownLine(entry=entry, problem=failure, has_report=REPORT.path(directory).is_file())
    if failure is not None:
        return line
    try:
        if entry.name in archive:
            return _with_scores(line, _packed_scores(archive, entry.name))
        return _with_scores(line, _best_scores(directory)) if RANKING.path(directory).is_file() else line
    except (InputError, OSError) as error:
        return replace(line, problem=str(error))


def _packed_scores(archive: PackedResults, name: str) -> JsonObject:
    """Return the scores of the best prediction of a packed complex, from the archive's index or else its files."""
    line = archive.entry(name)
    if line is not None and (scores := line.child("pulldown")).content:
        return scores
    with archive.directory(name) as directory:
        return _best_scores(directory)


def _best_scores(directory: Path) -> JsonObject:
    return _scores_of_ranking(directory, file_state(RANKING.path(directory)))


@cache
def _scores_of_ranking(directory: Path, _: FileState | None) -> JsonObject:
    """Read the name, residues and scores of a target's best prediction; they are cached by the state of its ranking."""
    best = read_order(directory)[0]
    confidence = JsonObject.read(CONFIDENCE.path(directory, prediction=best))
    names = ("iptm", "ptm", "mean_plddt", "interfaces", "notes")
    scores = {name: confidence.content[name] for name in names if name in confidence.content}
    residues = len(confidence.list_of("plddt", float))
    return JsonObject(confidence.path, {"prediction": best, "residues": residues, **scores})


def pulldown_entry(directory: Path) -> dict[str, Any] | None:
    """Return the best prediction's scores for an archive's index, from which a packed complex's line is made later.

    Return None for a single chain.
    """
    scores = _best_scores(directory)
    return scores.content if scores.children("interfaces") else None


def _with_scores(line: PulldownLine, scores: JsonObject) -> PulldownLine:
    interface = _best_interface(scores.children("interfaces"), line.entry.bait_chains)
    return replace(
        line,
        prediction=scores.get("prediction", str),
        residues=scores.get("residues", int),
        iptm=scores.optional_number("iptm"),
        ptm=scores.optional_number("ptm"),
        mean_plddt=scores.get("mean_plddt", float),
        interface=None if interface is None else ":".join(interface.list_of("chains", str)),
        scores={name: None if interface is None else interface.optional_number(name) for name in _SCORES},
        contacts=None if interface is None else interface.get("contacts", int),
        mark=mark_of(scores.list_of("notes", str, [])),
    )


def _best_interface(interfaces: Iterable[JsonObject], bait_chains: Sequence[str]) -> JsonObject | None:
    """Return the interface of a bait and a prey with the largest ipSAE, or pDockQ for models without aligned errors."""
    across = [each for each in interfaces if len({chain in bait_chains for chain in each.list_of("chains", str)}) == 2]
    return max(across, key=_interface_order, default=None)


def _interface_order(interface: JsonObject) -> tuple[float, float]:
    values = (interface.optional_number(name) for name in ("ipsae", "pdockq"))
    ipsae, pdockq = (-1.0 if value is None else value for value in values)
    return ipsae, pdockq


def _matrix(lines: Sequence[PulldownLine]) -> dict[str, Any] | None:
    """Return a matrix with baits as rows and preys as columns, whose cells are lines, or None without a complex.

    Return None if there is a single bait or a single prey, or if the matrix is too large for a screen.
    """
    by_pair = {(line.entry.bait, line.entry.prey): line for line in reversed(lines)}
    baits, preys = (sorted({pair[side] for pair in by_pair}, key=str.casefold) for side in (0, 1))
    if min(len(baits), len(preys)) < 2 or len(baits) * len(preys) > _MAX_CELLS:
        return None
    rows = tuple((bait, tuple(by_pair.get((bait, prey)) for prey in preys)) for bait in baits)
    return {"preys": preys, "rows": rows}


def _counted(names: Sequence[str]) -> str:
    """Return the names of proteins with the numbers of copies, in the format of a table of complexes (A:B*2)."""
    counts = {name: names.count(name) for name in names}
    return ":".join(name if count == 1 else f"{name}*{count}" for name, count in counts.items())
