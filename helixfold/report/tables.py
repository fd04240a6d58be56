"""Prepare the texts and tables of a report: warnings, templates, relaxation, times, settings and files.

`UNTRAINED`, `DEMONSTRATION` and `RESIDUE_GAP` are the marks with which notes on such predictions begin.
"""

import csv
import itertools
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.parse.structures import read_structure
from helixfold.analysis.interfaces import CLASH, chain_clashes
from helixfold.folding.prediction import CONFIDENCE_BANDS, ConfidenceBand
from helixfold.report.files import TargetFiles, structures_of
from helixfold.report.page import counted
from helixfold.report.structures import MAX_BYTES
from helixfold.results.file_table import FILES, RANKING, REPORT, SIMILAR, kind_of
from helixfold.results.json_object import JsonObject
from helixfold.results.prediction import natural_key

# Notes on whether a structure can be trusted begin with one of these marks; the page shows a heading instead.
UNTRAINED, DEMONSTRATION, RESIDUE_GAP = "UNTRAINED", "DEMONSTRATION", "COMPLEX BY RESIDUE GAP"
_HEADINGS = {
    UNTRAINED: "Not a prediction: random parameters.",
    DEMONSTRATION: "A demonstration: do not rely on this structure.",
    RESIDUE_GAP: "A complex by a model of single chains.",
}
# AlphaFold's accuracy drops if an alignment has fewer than about 30 sequences (Jumper et al. 2021, Fig. 5a).
_MIN_ROWS = 30
_MAX_REJECTED = 100
_MAX_SIMILAR_STRUCTURES = 20
_MAX_STAGES = 150
_UNITS_BY_ENDING = {"_gib": ", GiB", "_kcal_per_mol": ", kcal/mol", "_angstrom": ", Å"}
_DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")


def band_of(plddt: float) -> ConfidenceBand:
    """Return the confidence band of a pLDDT value (0 to 100)."""
    return next(band for band in CONFIDENCE_BANDS if plddt >= band.min_plddt or band.min_plddt == 0)


def notes_of(target: TargetFiles) -> list[str]:
    """Return the notes of all predictions of a target, without repeats."""
    return list(dict.fromkeys(note for prediction in target.predictions for note in prediction.notes))


def headed(note: str) -> tuple[str, str]:
    """Split a note into heading and text; a mark at its beginning, such as UNTRAINED, determines the heading."""
    mark, colon, text = note.partition(": ")
    return (_HEADINGS[mark], text[:1].upper() + text[1:]) if colon and mark in _HEADINGS else ("Note.", note)


def mark_of(notes: Iterable[str]) -> str | None:
    """Return UNTRAINED or DEMONSTRATION if a note begins with it, else None."""
    return next((mark for mark in (UNTRAINED, DEMONSTRATION) if any(note.startswith(mark) for note in notes)), None)


def warnings_of(target: TargetFiles) -> list[str]:
    """Return sentences that warn about a target's predictions, in addition to their notes.

    They concern low pLDDT, overlapping chains, a shallow alignment, unknown residues and failed relaxation.
    """
    best, warnings = target.best, []
    if best.mean_plddt < CONFIDENCE_BANDS[-2].min_plddt and mark_of(notes_of(target)) is None:
        warnings.append(
            f"The mean pLDDT of the best model is {best.mean_plddt:.1f}. Structures with a mean below 50 should not be "
            "interpreted: the protein may be disordered on its own, or the alignment too shallow."
        )
    if len(target.summary.chains) > 1:
        warnings += _clashes(target)
    rows = target.rows
    if rows is not None and rows < _MIN_ROWS:
        what = "only the sequence itself" if rows == 1 else f"{rows} sequences"
        warnings.append(
            f"The alignment has {what}. With fewer than about {_MIN_ROWS}, predictions are much less accurate: "
            "search more databases, or pass an alignment with --msa."
        )
    unknown = target.sequence.count("X")
    if target.features is not None and unknown:
        are = "is unknown (X) and has no side chain" if unknown == 1 else "are unknown (X) and have no side chains"
        warnings.append(f"{unknown} of {counted(len(target.sequence), 'residue')} {are}.")
    for name, result in relaxation_results(target):
        if "failed" in result.content:
            warnings.append(f"{name} could not be relaxed and is shown as predicted: {result.get('failed', str)}")
    return warnings


def _clashes(target: TargetFiles) -> Iterator[str]:
    """Yield a sentence for each pair of chains that overlap in the best structure."""
    path = next(iter(structures_of(target.directory, target.best.name).values()), None)
    if path is None or path.stat().st_size > MAX_BYTES:
        return
    chains = read_structure(path).chains
    atoms = [chain.atom_positions[chain.atom_mask > 0] for chain in chains]
    index = np.repeat(np.arange(len(chains)), [len(each) for each in atoms])
    for (first, second), count in chain_clashes(np.concatenate(atoms), index).items():
        pairs = f"{count:,} pairs of their atoms are" if count > 1 else "one pair of their atoms is"
        yield (
            f"Chains {chains[first].name} and {chains[second].name} overlap: {pairs} closer than {CLASH:g} Å. "
            "Do not rely on this interface. Relaxation removes only a few such clashes."
        )


def relaxation_of(target: TargetFiles) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the table of relaxation: the names of its columns (predictions), and each measure with its cells."""
    columns = {name: dict(facts_of(result)) for name, result in relaxation_results(target)}
    measures = list(dict.fromkeys(measure for column in columns.values() for measure in column))
    return list(columns), [(measure, [column.get(measure, "") for column in columns.values()]) for measure in measures]


def relaxation_results(target: TargetFiles) -> Iterator[tuple[str, JsonObject]]:
    """Yield the name and relaxation metrics of each prediction for which relaxation was tried, the best first."""
    for prediction in target.predictions:
        if isinstance(target.relaxation.content.get(prediction.name), dict):
            yield prediction.name, target.relaxation.child(prediction.name)


def similar_structures_of(target: TargetFiles) -> list[dict[str, str]]:
    """Return Foldseek's first 20 hits from similar_structures.tsv, each as cells by the names of the table's columns.

    The list is empty without that file.
    """
    path = SIMILAR.path(target.directory)
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        rows = csv.DictReader((line for line in file if not line.startswith("#")), delimiter="\t")
        return list(itertools.islice(rows, _MAX_SIMILAR_STRUCTURES))


def templates_of(target: TargetFiles) -> dict[str, Any] | None:
    """Return the tables of used templates and rejected hits, or None without templates.json.

    "rejected" has up to 100 unused hits with reasons, and "more" is the number of the others. Files of earlier versions
    may list templates as "used" although no model used them; "read" is false then.
    """
    if not target.templates.content:
        return None
    records = [prediction.provenance for prediction in target.predictions if prediction.provenance is not None]
    read = any(each.templates for each in records)
    if not records:
        read = target.timings.get("templates", int, 1) > 0
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
        "rejected": rejected[:_MAX_REJECTED],
        "more": max(0, len(rejected) - _MAX_REJECTED),
    }


def stages_of(target: TargetFiles) -> list[dict[str, Any]]:
    """Return the time and peak memory of each stage, in the order in which the stages began.

    `share` is the percentage of the longest stage's `seconds`, and `peak_gib` the peak memory. If there are more than
    150 stages, the same stages of all predictions are combined: their times are added, and the largest peak counts.
    """
    rows = stage_records(target.timings)
    stages: dict[str, tuple[float, float]] = {}
    for name, row in rows:
        _, colon, kind = name.partition(": ")
        title = f"{kind} of all predictions" if colon and len(rows) > _MAX_STAGES else name
        seconds, peak = stages.get(title, (0.0, 0.0))
        stages[title] = seconds + row.get("seconds", float, 0.0), max(peak, row.get("peak_memory_gib", float, 0.0))
    longest = max([*(seconds for seconds, _ in stages.values()), 1e-9])
    return [
        {"name": name, "seconds": seconds, "share": 100 * seconds / longest, "peak_gib": peak}
        for name, (seconds, peak) in stages.items()
    ]


def stage_records(timings: JsonObject) -> list[tuple[str, JsonObject]]:
    """Return the name and measurements of each stage in timings.json."""
    table = timings.child("stages")
    return [(name, table.child(name)) for name in table.content]


def facts_of(record: JsonObject, without: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return the keys and values of a JSON object as pairs of texts, for a table of two columns.

    Objects one level below are flattened. Empty values and the keys in `without` are left out.
    """
    plain: list[tuple[str, Any]] = []
    for key, value in record.content.items():
        if isinstance(value, dict) and key not in without:
            plain += [(f"{key}: {inner}", item) for inner, item in value.items()]
        elif key not in without:
            plain.append((key, value))
    return [(_title(name), _words(value)) for name, value in plain if value not in (None, "", [], {})]


def table_of(record: JsonObject, key: str, names: Container[str]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the nested object under `key` as a table: the titles of its columns, and each name with its cells.

    Only objects with these `names` become rows.
    """
    rows = record.child(key).content.items()
    plain = {name: row for name, row in rows if isinstance(row, dict) and name in names}
    columns = list(dict.fromkeys(column for row in plain.values() for column in row))
    cells = [(name, [_words(row.get(column, "")) for column in columns]) for name, row in plain.items()]
    return [_title(column) for column in columns], cells


def _title(key: str) -> str:
    """Return a key as a title with its unit at the end: measured_peak_gib becomes "measured peak, GiB"."""
    for ending, unit in _UNITS_BY_ENDING.items():
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
    if isinstance(value, str) and _DIGEST_PATTERN.fullmatch(value):
        return f"{value[:12]}…"
    return f"{value:,}" if isinstance(value, int) else str(value)


def described_files(directory: Path) -> list[dict[str, Any]]:
    """Return a line for each file in a target's directory except the report.

    `size` is in bytes; it is None for a directory, or a file that does not exist yet. `order` is the position of its
    `purpose` in the list: files of general interest come first. The ranking is listed even if it does not exist yet,
    because it is written after the report.
    """
    paths = {path.name: path for path in directory.iterdir() if not path.name.startswith(".")}
    paths.setdefault(RANKING.name(), RANKING.path(directory))
    paths.pop(REPORT.name(), None)
    lines = []
    for _, path in sorted(paths.items(), key=lambda item: natural_key(item[0])):
        name = f"{path.name}/" if path.is_dir() else path.name
        kind = kind_of(name)
        lines.append(
            {
                "name": name,
                "size": path.stat().st_size if path.is_file() else None,
                "purpose": "" if kind is None else kind.purpose,
                "order": len(FILES) if kind is None else FILES.index(kind),
            }
        )
    return lines
