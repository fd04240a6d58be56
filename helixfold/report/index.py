"""Write `index.html`, the page of a batch: a sortable table of all targets with confidence or the reason of failure.

The page is updated while a batch runs, from small files in the targets' directories; unchanged files are not read
again. For a damaged file, the table shows an error; the batch is not stopped.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import file_state
from data_pipeline.io.json_files import parse_json
from helixfold.folding.prediction import CONFIDENCE_BANDS
from helixfold.report.files import read_order, read_record, structures_of, summary_of
from helixfold.report.page import page
from helixfold.report.tables import DEMONSTRATION, UNTRAINED, band_of, mark_of, stage_records
from helixfold.results.confidence import read_prediction
from helixfold.results.failures import failures_in
from helixfold.results.file_table import FEATURES, INDEX, RANKING, RELAXATION, REPORT, TIMINGS
from helixfold.results.json_object import JsonObject
from helixfold.results.packed import PackedResults
from helixfold.results.writing import write_file

_MARKS = (None, UNTRAINED, DEMONSTRATION)
_STRIP_STEPS = 100  # width of the strip of confidence bands, in steps
# These fields of a line depend on where its target is.
_LOCATION_FIELDS = ("name", "problem", "has_report", "archive")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table, for one target.

    `mean_plddt` is None for an unfinished target; `problem` is the reason if it failed or a file is damaged. Scores are
    of the best prediction. `rows` counts rows of the alignment. `seconds` is the time of all stages, and `peak_gib`
    their largest peak memory. `relaxed` is whether the best prediction was relaxed.
    """

    name: str  # of its directory
    title: str | None = None  # name in the input file
    problem: str | None = None
    has_report: bool = False
    residues: int | None = None
    mean_plddt: float | None = None
    ptm: float | None = None
    iptm: float | None = None  # of a complex
    rows: int | None = None
    relaxed: bool | None = None
    seconds: float | None = None
    peak_gib: float | None = None
    mark: str | None = None  # UNTRAINED or DEMONSTRATION, if such a model was used
    letters: str = ""  # of the confidence bands along the chain, in steps of equal length
    archive: str | None = None  # archive of a packed target

    @cached_property
    def strip(self) -> tuple[tuple[str, str], ...]:
        """The letter of each confidence band in the chain, and the SVG path of the band's steps in a strip."""
        edges = _edges(self.residues or 1) * (_STRIP_STEPS / (self.residues or 1))
        paths: dict[str, str] = {}
        for letter, start, stop in zip(self.letters, edges[:-1], edges[1:], strict=True):
            paths[letter] = paths.get(letter, "") + f"M{start:.1f} 0H{stop:.1f}V1H{start:.1f}z"
        return tuple(paths.items())


def write_index(output: Path, names: Iterable[str] = (), failures: Mapping[str, str] | None = None) -> None:
    """Write index.html of an output directory, with a line for every target in it and every name in `names`.

    Packed targets are included. `failures` has the reasons of targets that failed in this run; by default, they are
    read from failures.json.
    """
    failed = failures_in(output) if failures is None else failures
    with PackedResults(output) as packed:
        failed = {**failed, **{str(path.relative_to(output)): why for path, why in packed.problems.items()}}
        in_archives = packed.names()
        names = {*names, *failed, *in_archives, *(path.name for path in output.iterdir() if _is_target(path))}
        # Targets are read archive by archive, because only one archive is open at a time.
        lines = [
            *(_line(output, name, failed.get(name), packed) for name in in_archives),
            *(_line(output, name, failed.get(name)) for name in names.difference(in_archives)),
        ]
    lines.sort(key=lambda line: (line.name.casefold(), line.name))
    finished = [line for line in lines if line.mean_plddt is not None]
    write_file(
        INDEX.path(output),
        page(
            "index.html",
            styles=("page.css", "index.css"),
            scripts=("banner.js", "index.js"),
            title=output.resolve().name,
            lines=lines,
            finished=len(finished),
            failed=sum(line.problem is not None for line in lines),
            residues=sum(line.residues or 0 for line in finished),
            seconds=sum(line.seconds or 0 for line in finished),
            mean=float(np.mean([line.mean_plddt for line in finished])) if finished else None,
            untrained=sum(line.mark == UNTRAINED for line in finished),
            demonstrations=sum(line.mark == DEMONSTRATION for line in finished),
            has_complexes=any(line.iptm is not None for line in lines),
            bands=CONFIDENCE_BANDS,
            band=band_of,
            width=_STRIP_STEPS,
        ),
    )


def _line(output: Path, name: str, failure: str | None, packed: PackedResults | None = None) -> Line:
    directory = output / name
    has_report = REPORT.path(directory).is_file()
    if failure is not None:
        return Line(name=name, problem=failure, has_report=has_report)
    try:
        return _read_line(directory, _states(directory)) if packed is None else _packed_line(packed, name)
    except (InputError, OSError) as error:
        return Line(name=name, problem=str(error), has_report=has_report)


def _states(directory: Path) -> tuple[object, ...]:
    return tuple(file_state(kind.path(directory)) for kind in (RANKING, REPORT, TIMINGS, RELAXATION))


@cache
def _read_line(directory: Path, _: object) -> Line:
    """Read the line of a target; the result is cached by the states of its files."""
    if not RANKING.path(directory).is_file():
        return Line(name=directory.name)
    best = read_prediction(directory, read_order(directory)[0])
    timings = read_record(TIMINGS.path(directory))
    times = [stage for _, stage in stage_records(timings)]
    summary, structures = summary_of(best), structures_of(directory, best.name)
    rows = summary.rows
    if rows is None:
        rows = int(timings.get("msa_rows", float, 0.0)) or None
    return Line(
        name=directory.name,
        title=summary.target,
        has_report=REPORT.path(directory).is_file(),
        residues=len(best.plddt),
        mean_plddt=best.mean_plddt,
        ptm=best.ptm,
        iptm=best.iptm,
        rows=rows,
        relaxed="relaxed" in structures or (not structures and _was_relaxed(directory, best.name)),
        seconds=sum(stage.get("seconds", float, 0.0) for stage in times) if times else None,
        peak_gib=max((stage.get("peak_memory_gib", float, 0.0) for stage in times), default=None),
        mark=mark_of(best.notes),
        letters=_letters(best.plddt),
    )


def _was_relaxed(directory: Path, prediction: str) -> bool:
    """Return whether a prediction of a slim target, which has only ranked structures, was relaxed."""
    result = read_record(RELAXATION.path(directory)).content.get(prediction)
    return isinstance(result, dict) and "failed" not in result


def _letters(plddt: np.ndarray) -> str:
    """Return the letters of the confidence bands along the chain, in at most a hundred steps."""
    edges = _edges(len(plddt))
    means = np.add.reduceat(plddt.astype(np.float64), edges[:-1]) / np.diff(edges)
    return "".join(band_of(float(value)).letter for value in means)


def _edges(residues: int) -> np.ndarray:
    """Return the first residue of each step along a chain, and the number of residues."""
    return np.unique(np.linspace(0, residues, min(_STRIP_STEPS, residues) + 1).round().astype(int))


def line_entry(directory: Path) -> dict[str, Any]:
    """Return the fields of a target's `Line` as JSON values, for an archive's index, from which its line is made later.

    Fields that depend on the place of the target, such as its name, are left out.
    """
    line = asdict(_read_line(directory, _states(directory)))
    return {key: value for key, value in line.items() if key not in _LOCATION_FIELDS}


def _packed_line(packed: PackedResults, name: str) -> Line:
    """Return the line of a packed target."""
    path, line = packed.line(name)
    archive = str(path.relative_to(packed.output))
    with suppress(ValueError):  # If the entry is damaged, the target's files are read.
        if line is not None:
            return _line_of(line, name, archive)
    with packed.directory(name) as directory:
        return replace(_read_line.__wrapped__(directory, None), has_report=False, archive=archive)


@cache
def _line_of(line: bytes, name: str, archive: str) -> Line:
    """Read the line of a packed target from the archive's index. Raise `ValueError` if it is damaged."""
    entry = JsonObject(Path(archive), parse_json(line)).child("line")
    residues, letters = entry.get("residues", int), entry.get("letters", str)
    relaxed, mark = entry.get("relaxed", bool), entry.content.get("mark")
    has_known_letters = {*letters} <= {band.letter for band in CONFIDENCE_BANDS}
    if residues < 1 or len(letters) != len(_edges(residues)) - 1 or not has_known_letters or mark not in _MARKS:
        raise InputError.at(archive, f"the line of {name} is damaged")
    rows = entry.optional_number("rows")
    return Line(
        name=name,
        title=entry.get("title", str),
        residues=residues,
        mean_plddt=entry.get("mean_plddt", float),
        ptm=entry.optional_number("ptm"),
        iptm=entry.optional_number("iptm"),
        rows=None if rows is None else int(rows),
        relaxed=relaxed,
        seconds=entry.optional_number("seconds"),
        peak_gib=entry.optional_number("peak_gib"),
        mark=mark,
        letters=letters,
        archive=archive,
    )


def _is_target(path: Path) -> bool:
    """Return whether a path is the directory of a target that was started."""
    return path.is_dir() and any(kind.path(path).is_file() for kind in (RANKING, FEATURES, TIMINGS))
