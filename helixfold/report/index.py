"""Write `index.html`, one page for a batch: every target with its confidence, sortable, or why it failed.

The page is written again after every target, from small files in the targets' directories; files that have not changed
are not read again. A damaged file makes a line that says so, and never stops the batch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from data_pipeline.errors import InputError
from helixfold import __version__
from helixfold.prediction import CONFIDENCE_BANDS
from helixfold.report.files import FEATURES, RANKING, RELAXATION, TIMINGS, PredictionFiles, read_prediction
from helixfold.report.page import page
from helixfold.report.tables import DEMONSTRATION, UNTRAINED, band_of, mark_of
from helixfold.report.target_page import REPORT_FILE
from helixfold.write.json_object import JsonObject, read_json
from helixfold.write.results import FAILURES_FILE, write_file

INDEX_FILE: Final = "index.html"
_STRIP = 100


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table, for one target.

    `mean_plddt` is None for a target that is not finished; `problem` then says why, if it failed or a file is damaged.
    """

    name: str
    problem: str | None = None
    has_report: bool = False
    residues: int | None = None
    mean_plddt: float | None = None
    ptm: float | None = None
    rows: int | None = None
    relaxed: bool | None = None
    seconds: float | None = None
    peak_gib: float | None = None
    mark: str | None = None  # UNTRAINED or DEMONSTRATION, if such a model made it
    strip: tuple[tuple[str, str], ...] = ()  # the letter of each confidence band, and the SVG path of its steps


class Index:
    """Index page of one output directory, with a line for every target in it and for every one of `names`.

    It remembers the lines of targets whose files have not changed.
    """

    def __init__(self, output: Path, names: Iterable[str] = ()) -> None:
        self.output, self.names = output, frozenset(names)
        self._known: dict[str, tuple[object, Line]] = {}

    def write(self, failures: Mapping[str, str] | None = None) -> None:
        """Write index.html.

        `failures` has the reasons of targets that failed in this run; if None, they are read from failures.json.
        """
        failed = dict(self._failures() if failures is None else failures)
        names = self.names | failed.keys() | {path.name for path in self.output.iterdir() if _is_target(path)}
        lines = [self._line(name, failed.get(name)) for name in sorted(names, key=str.casefold)]
        finished = [line for line in lines if line.mean_plddt is not None]
        text = page(
            "index.html",
            styles=("page.css", "index.css"),
            scripts=("index.js",),
            version=__version__,
            title=self.output.resolve().name,
            lines=lines,
            finished=len(finished),
            failed=sum(line.problem is not None for line in lines),
            residues=sum(line.residues or 0 for line in finished),
            seconds=sum(line.seconds or 0 for line in finished),
            mean=float(np.mean([line.mean_plddt for line in finished])) if finished else None,
            untrained=sum(line.mark == UNTRAINED for line in finished),
            demonstrations=sum(line.mark == DEMONSTRATION for line in finished),
            bands=CONFIDENCE_BANDS,
            band=band_of,
            width=_STRIP,
        )
        write_file(self.output / INDEX_FILE, text)

    def _line(self, name: str, failure: str | None) -> Line:
        directory = self.output / name
        if failure is not None:
            return Line(name=name, problem=failure, has_report=(directory / REPORT_FILE).is_file())
        state = tuple(_state(directory / file) for file in (RANKING, REPORT_FILE, TIMINGS, RELAXATION))
        if name not in self._known or self._known[name][0] != state:
            self._known[name] = (state, _read(directory))
        return self._known[name][1]

    def _failures(self) -> dict[str, str]:
        path = self.output / FAILURES_FILE
        if not path.is_file():
            return {}
        try:
            content = read_json(path)
        except InputError as error:
            return {FAILURES_FILE: str(error)}
        return {str(name): str(why) for name, why in content.items()} if isinstance(content, dict) else {}


def _read(directory: Path) -> Line:
    name, has_report = directory.name, (directory / REPORT_FILE).is_file()
    try:
        if not (directory / RANKING).is_file():
            return Line(name=name)
        order = JsonObject.read(directory / RANKING).texts("order")
        if not order:
            raise InputError.at(directory / RANKING, "it names no prediction; fold the target again")
        best = read_prediction(directory, order[0])
        timings = JsonObject.read(directory / TIMINGS) if (directory / TIMINGS).is_file() else None
        stages = timings.child("stages") if timings is not None else None
        times = [] if stages is None else [stages.child(stage) for stage in stages.content]
        rows = best.rows if best.rows is not None or timings is None else int(timings.number("msa_rows", 0)) or None
        return Line(
            name=name,
            has_report=has_report,
            residues=len(best.plddt),
            mean_plddt=best.mean_plddt,
            ptm=best.ptm,
            rows=rows,
            relaxed="relaxed" in best.structures,
            seconds=sum(stage.number("seconds", 0) for stage in times) if times else None,
            peak_gib=max((stage.number("peak_memory_gib", 0) for stage in times), default=None),
            mark=mark_of(best.notes),
            strip=_strip(best),
        )
    except (InputError, OSError) as error:
        return Line(name=name, problem=str(error), has_report=has_report)


def _strip(prediction: PredictionFiles) -> tuple[tuple[str, str], ...]:
    """Return pLDDT along the chain in at most a hundred steps, as an SVG path for each confidence band."""
    values = np.array(prediction.plddt)
    edges = np.unique(np.linspace(0, len(values), min(_STRIP, len(values)) + 1).round().astype(int))
    letters = [band_of(float(value)).letter for value in np.add.reduceat(values, edges[:-1]) / np.diff(edges)]
    starts = edges * (_STRIP / len(values))
    paths: dict[str, str] = {}
    for letter, start, stop in zip(letters, starts[:-1], starts[1:], strict=True):
        paths[letter] = paths.get(letter, "") + f"M{start:.1f} 0H{stop:.1f}V1H{start:.1f}z"
    return tuple(paths.items())


def _is_target(path: Path) -> bool:
    """Return whether a directory is that of a target that was started."""
    return path.is_dir() and any((path / file).is_file() for file in (RANKING, FEATURES, TIMINGS))


def _state(path: Path) -> tuple[int, int] | None:
    """Return a file's time of change and size, which differ after it is written again; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
