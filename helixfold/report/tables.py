"""Make the words and tables of a report: warnings, templates, relaxation, times, settings and files."""

import csv
import itertools
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.parse.structures import read_structure
from helixfold.analysis.interfaces import CLASH, chain_clashes
from helixfold.folding.prediction import CONFIDENCE_BANDS, ConfidenceBand
from helixfold.report.files import TargetFiles, structures_of
from helixfold.report.page import counted
from helixfold.report.structures import MOST_BYTES
from helixfold.results.file_table import FILES, RANKING, REPORT, SIMILAR, kind_of
from helixfold.results.json_object import JsonObject
from helixfold.results.prediction import natural_key

# Notes that say how far a structure can be trusted begin with one of these; the page shows a heading instead.
UNTRAINED, DEMONSTRATION, RESIDUE_GAP = "UNTRAINED", "DEMONSTRATION", "COMPLEX BY RESIDUE GAP"
_HEADINGS = {
    UNTRAINED: "Not a prediction: random parameters.",
    DEMONSTRATION: "A demonstration: do not rely on this structure.",
    RESIDUE_GAP: "A complex by a model of single chains.",
}
# AlphaFold's accuracy falls where an alignment has fewer than about 30 sequences (Jumper et al. 2021, Fig. 5a).
_SHALLOW = 30
_MOST_REJECTED = 100
_MOST_SIMILAR = 20
_MOST_STAGES = 150
_UNITS = {"_gib": ", GiB", "_kcal_per_mol": ", kcal/mol", "_angstrom": ", Å"}
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of the prediction, as a bar in the chart of times."""

    name: str
    seconds: float
    share: float  # of the longest stage's seconds, in percent
    peak_gib: float


@dataclass(frozen=True, kw_only=True)
class FileLine:
    """A line about a file in the report's directory."""

    name: str
    size: int | None  # bytes; None for a directory, or a file that does not exist yet
    purpose: str
    order: int  # place in the list; files that people look for come first


def band_of(plddt: float) -> ConfidenceBand:
    return next(band for band in CONFIDENCE_BANDS if plddt >= band.min_plddt or band.min_plddt == 0)


def notes_of(target: TargetFiles) -> list[str]:
    """Return the notes of all predictions of a target, without repeats."""
    return list(dict.fromkeys(note for prediction in target.predictions for note in prediction.notes))


def headed(note: str) -> tuple[str, str]:
    """Return a heading and a text for a note; a mark at its beginning, such as UNTRAINED, becomes the heading."""
    mark, colon, said = note.partition(": ")
    return (_HEADINGS[mark], said[:1].upper() + said[1:]) if colon and mark in _HEADINGS else ("Note.", note)


def mark_of(notes: Iterable[str]) -> str | None:
    """Return UNTRAINED or DEMONSTRATION if a note begins with it, or None."""
    return next((mark for mark in (UNTRAINED, DEMONSTRATION) if any(note.startswith(mark) for note in notes)), None)


def warnings_of(target: TargetFiles) -> list[str]:
    """Return sentences on what makes a prediction doubtful, besides its notes.

    They are about low pLDDT, chains that overlap, a shallow alignment, unknown residues and relaxation that failed.
    """
    best, found = target.best, []
    if best.mean_plddt < CONFIDENCE_BANDS[-2].min_plddt and mark_of(notes_of(target)) is None:
        found.append(
            f"The mean pLDDT of the best model is {best.mean_plddt:.1f}. Below 50 a structure is not to be "
            "interpreted: the protein may be disordered on its own, or the alignment too shallow."
        )
    if len(target.summary.chains) > 1:
        found += _clashes(target)
    rows = target.rows
    if rows is not None and rows < _SHALLOW:
        what = "only the sequence itself" if rows == 1 else f"{rows} sequences"
        found.append(
            f"The alignment holds {what}. With fewer than about {_SHALLOW}, predictions are much less accurate: "
            "search more databases, or give an alignment with --msa."
        )
    unknown = target.sequence.count("X")
    if target.features is not None and unknown:
        are = "is unknown (X), and has no side chain" if unknown == 1 else "are unknown (X), and have no side chains"
        found.append(f"{unknown} of {counted(len(target.sequence), 'residue')} {are}.")
    for name, result in relaxation_results(target):
        if "failed" in result.content:
            found.append(f"{name} could not be relaxed and stays as predicted: {result.get('failed', str)}")
    return found


def _clashes(target: TargetFiles) -> Iterator[str]:
    """Yield a sentence for each pair of chains that overlap in the best structure."""
    path = next(iter(structures_of(target.directory, target.best.name).values()), None)
    if path is None or path.stat().st_size > MOST_BYTES:
        return
    chains = read_structure(path).chains
    atoms = [chain.atom_positions[chain.atom_mask > 0] for chain in chains]
    index = np.repeat(np.arange(len(chains)), [len(each) for each in atoms])
    for (first, second), count in chain_clashes(np.concatenate(atoms), index).items():
        pairs = f"{count:,} pairs of their atoms are" if count > 1 else "one pair of their atoms is"
        yield (
            f"Chains {chains[first].name} and {chains[second].name} overlap: {pairs} closer than {CLASH:g} Å. "
            "Do not rely on this interface. Relaxation removes a few such clashes, not many."
        )


def relaxation_of(target: TargetFiles) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the table of relaxation: its columns, one per prediction, and each measure with its cells."""
    facts = {name: dict(facts_of(result)) for name, result in relaxation_results(target)}
    rows = list(dict.fromkeys(measure for found in facts.values() for measure in found))
    return list(facts), [(row, [found.get(row, "") for found in facts.values()]) for row in rows]


def relaxation_results(target: TargetFiles) -> Iterator[tuple[str, JsonObject]]:
    """Yield the name and the relaxation metrics of each prediction that was to be relaxed, the best first."""
    if target.relaxation is not None:
        for prediction in target.predictions:
            if isinstance(target.relaxation.content.get(prediction.name), dict):
                yield prediction.name, target.relaxation.child(prediction.name)


def similar_structures_of(target: TargetFiles) -> list[dict[str, str]]:
    """Return Foldseek's first hits, each by the names of the table's columns."""
    path = SIMILAR.path(target.directory)
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        rows = csv.DictReader((line for line in file if not line.startswith("#")), delimiter="\t")
        return list(itertools.islice(rows, _MOST_SIMILAR))


def templates_of(target: TargetFiles) -> dict[str, Any] | None:
    """Return the tables of templates, or None without templates.json.

    "rejected" has up to 100 unused hits with reasons, and "more" counts the rest. Files of earlier versions may list
    templates as "used" that no model read; "read" is false then.
    """
    if target.templates is None:
        return None
    made = [prediction.provenance for prediction in target.predictions if prediction.provenance is not None]
    read = any(each.templates for each in made)
    if not made:
        read = target.timings is None or target.timings.get("templates", int, 1) > 0
    used = [
        {
            "name": record.get("name", str),
            "release_date": record.get("release_date", str, "") or None,
            "aligned": record.get("aligned_residues", int),
            "identity": record.get("identity", float),
            "note": record.get("note", str, ""),
        }
        for record in target.templates.children("used")
    ]
    rejected = [
        {"name": record.get("name", str), "reason": record.get("reason", str), "detail": record.get("detail", str, "")}
        for record in target.templates.children("rejected")
    ]
    return {
        "used": used,
        "read": read,
        "rejected": rejected[:_MOST_REJECTED],
        "more": max(0, len(rejected) - _MOST_REJECTED),
    }


def stages_of(target: TargetFiles) -> list[Stage]:
    """Return seconds and peak memory of each stage, in the order in which the stages began.

    Of very many, those of all predictions are summed.
    """
    rows = stage_records(target.timings)
    found: dict[str, tuple[float, float]] = {}
    for name, row in rows:
        _, colon, kind = name.partition(": ")
        title = f"{kind} of all predictions" if colon and len(rows) > _MOST_STAGES else name
        seconds, peak = found.get(title, (0.0, 0.0))
        found[title] = seconds + row.get("seconds", float, 0.0), max(peak, row.get("peak_memory_gib", float, 0.0))
    longest = max([*(seconds for seconds, _ in found.values()), 1e-9])
    return [
        Stage(name=name, seconds=seconds, share=100 * seconds / longest, peak_gib=peak)
        for name, (seconds, peak) in found.items()
    ]


def stage_records(timings: JsonObject | None) -> list[tuple[str, JsonObject]]:
    """Return the name and the measurements of each stage in timings.json, if it is there."""
    table = timings and timings.child("stages")
    return [(name, table.child(name)) for name in table.content] if table else []


def facts_of(record: JsonObject | None, without: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return the values of a JSON object as pairs of words, for a table of two columns.

    Objects inside it are flattened; empty values, and those whose keys are in `without`, are left out.
    """
    if record is None:
        return []
    plain: list[tuple[str, Any]] = []
    for key, value in record.content.items():
        if isinstance(value, dict) and key not in without:
            plain += [(f"{key}: {inner}", item) for inner, item in value.items()]
        elif key not in without:
            plain.append((key, value))
    return [(_title(name), _words(value)) for name, value in plain if value not in (None, "", [], {})]


def table_of(
    record: JsonObject | None, key: str, names: Container[str]
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the object of objects under `key` as a table: its columns, and each of these names with its cells."""
    rows = {} if record is None else record.child(key).content
    plain = {name: row for name, row in rows.items() if isinstance(row, dict) and name in names}
    columns = list(dict.fromkeys(column for row in plain.values() for column in row))
    cells = [(name, [_words(row.get(column, "")) for column in columns]) for name, row in plain.items()]
    return [_title(column) for column in columns], cells


def _title(key: str) -> str:
    """Return a key as people read it, with its unit at the end: measured_peak_gib becomes "measured peak, GiB"."""
    for ending, unit in _UNITS.items():
        key = key.removesuffix(ending) + unit if key.endswith(ending) else key
    return key.replace("_", " ")


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    if isinstance(value, dict) and value.keys() == {"file", "sha256"}:
        return f"{value['file']} ({_words(value['sha256'])})"
    if isinstance(value, dict):
        return ", ".join(f"{_title(str(name))} {_words(item)}" for name, item in value.items())
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return f"{value[:12]}…"
    return f"{value:,}" if isinstance(value, int) else str(value)


def described_files(directory: Path) -> list[FileLine]:
    """Return a line for each file in a target's directory but the report, those that people look for first.

    The ranking is listed even if it has yet to be written.
    """
    paths = {path.name: path for path in directory.iterdir() if not path.name.startswith(".")}
    paths.setdefault(RANKING.name(), RANKING.path(directory))
    paths.pop(REPORT.name(), None)
    lines = [_line(name, path) for name, path in sorted(paths.items(), key=lambda item: natural_key(item[0]))]
    return sorted(lines, key=lambda line: line.order)


def _line(name: str, path: Path) -> FileLine:
    name = f"{name}/" if path.is_dir() else name
    kind = kind_of(name)
    return FileLine(
        name=name,
        size=path.stat().st_size if path.is_file() else None,
        purpose="" if kind is None else kind.purpose,
        order=len(FILES) if kind is None else FILES.index(kind),
    )
