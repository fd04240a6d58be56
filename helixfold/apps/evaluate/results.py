"""Write the results of an evaluation of chains and complexes as tables and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.io.errors import printable
from helixfold import __version__
from helixfold.analysis.benchmark_groups import TargetSize
from helixfold.analysis.complexes import ComplexComparison, InterfaceComparison
from helixfold.analysis.evaluation import MEASURES, Evaluated, summary_of
from helixfold.analysis.scores import Scores
from helixfold.results.writing import aligned, rounded, tab_separated, to_json, write_file

# Headings of the scores on the screen, by column of scores.tsv.
HEADINGS = {"lddt": "lDDT", "lddt_ca": "lDDT-CA", "tm_score": "TM", "gdt_ts": "GDT-TS", "gdt_ha": "GDT-HA"}
HEADINGS |= {"rmsd": "RMSD", "plddt": "pLDDT"}
_MAX_NAME_CHARACTERS = 32  # characters of a name on the screen


def write_evaluation(
    directory: Path,
    results: Sequence[Evaluated],
    failures: Mapping[str, str],
    unused: Sequence[str],
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write scores.tsv, residues.tsv, scores.json, and the tables of complexes (`write_complexes`).

    There must be at least one result. `failures` are reasons by target, `unused` are references without a prediction,
    and `more` are further entries of scores.json.
    """
    rows = [score_row(result) for result in results]
    write_file(directory / "scores.tsv", tab_separated(list(rows[0]), [list(row.values()) for row in rows]))
    write_file(directory / "residues.tsv", _residues_table(results))
    write_complexes(directory, results)
    content = {
        "helixfold": __version__,
        "summary": asdict(summary_of(results)),
        "scores": rows,
        "complexes": complex_content(results),
        "failures": dict(failures),
        "references_without_prediction": list(unused),
        **(more or {}),
    }
    write_file(directory / "scores.json", to_json(content, indent=2))


def score_row(result: Evaluated) -> dict[str, Any]:
    """Return a row of scores.tsv by column name; unknown values are None."""
    scores = {field.name: rounded(getattr(result.scores, field.name)) for field in fields(Scores)}
    return {**_names(result), "matched_by": "sequence" if result.by_sequence else "name", **scores}


def screen_table(results: Sequence[Evaluated], sizes: Mapping[str, TargetSize] | None = None) -> Iterator[str]:
    """Yield a table for the screen with all pairs, the means over first ranks, and correlations with pLDDT.

    With `sizes`, by target, rows also have the target's length and MSA depth.
    """
    size_columns = ["length", "rows"] if sizes is not None else []
    lines = [["target", "reference", *size_columns, "residues", *(HEADINGS[name] for name in MEASURES)]]
    for each in results:
        scores = each.scores
        chain = "" if scores.reference_chain == "_" else f" {scores.reference_chain}"
        reference = f"{each.reference}{chain}{' (by sequence)' if each.by_sequence else ''}"
        residues = str(scores.residues)
        if scores.compared < scores.residues:
            residues = f"{scores.compared}/{scores.residues}"
        target = each.target if each.rank == 0 else f"{each.target}, rank {each.rank}"
        names = [printable(name, _MAX_NAME_CHARACTERS) for name in (target, reference)]
        size = [str(sizes[each.target].residues), f"{sizes[each.target].rows:,}"] if sizes is not None else []
        lines.append([*names, *size, residues, *(_formatted(name, getattr(scores, name)) for name in MEASURES)])
    summary = summary_of(results)
    if summary.count > 1:
        empty_cells = [""] * (len(size_columns) + 2)
        lines.append(
            [
                f"mean of {summary.count}",
                *empty_cells,
                *(_formatted(name, summary.means.get(name)) for name in MEASURES),
            ]
        )
    yield from aligned(lines, left=2)
    for items, value in (("targets", summary.pearson_targets), ("residues", summary.pearson_residues)):
        if value is not None:
            yield f"Pearson's correlation of pLDDT with lDDT-CA over {items}: {value:.2f}"


def _formatted(measure: str, value: float | None) -> str:
    """Return the value of a measure as text for the screen."""
    if value is None:
        return "-"
    return f"{value:.1f}" if measure == "plddt" else f"{value:.2f}" if measure == "rmsd" else f"{value:.3f}"


def _residues_table(results: Sequence[Evaluated]) -> str:
    """Return the text of residues.tsv, with a line for each residue of each reference chain."""
    names = ["target", "rank", "reference", "chain", "residue", "type", "predicted_residue", "lddt", "lddt_ca", "plddt"]
    lines = []
    for result in results:
        residues = result.residues
        plddt = residues.plddt if residues.plddt is not None else np.full(len(residues.number), np.nan)
        columns = zip(
            residues.number.tolist(),
            residues.letters,
            np.where(residues.present, residues.predicted_number, np.array(None)).tolist(),
            *(map(rounded, scores.tolist()) for scores in (residues.lddt, residues.lddt_ca, plddt)),
            strict=True,
        )
        chain = [result.target, result.rank, result.reference, result.scores.reference_chain]
        lines += [[*chain, *residue] for residue in columns]
    return tab_separated(names, lines)


COMPLEXES_FILE, INTERFACES_FILE = "complexes.tsv", "interfaces.tsv"


def write_complexes(directory: Path, results: Sequence[Evaluated]) -> None:
    """Write complexes.tsv and interfaces.tsv; remove an earlier file for which the results have no rows."""
    tables = {
        COMPLEXES_FILE: [{**_names(result), **_complex_row(comparison)} for result, comparison in _complexes(results)],
        INTERFACES_FILE: [
            {**_names(result), **_interface_row(each)}
            for result, comparison in _complexes(results)
            for each in comparison.interfaces
        ],
    }
    for name, rows in tables.items():
        table = tab_separated(list(rows[0]), [list(row.values()) for row in rows]) if rows else None
        write_file(directory / name, table)


def complex_content(results: Sequence[Evaluated]) -> list[dict[str, Any]]:
    """Return each complex with its interfaces as JSON values."""
    return [
        {
            **_names(result),
            **_complex_row(comparison),
            "interface_scores": [_interface_row(each) for each in comparison.interfaces],
        }
        for result, comparison in _complexes(results)
    ]


def complex_table(results: Sequence[Evaluated]) -> Iterator[str]:
    """Yield a table of the complexes for the screen, after an empty line; nothing without complexes."""
    lines = [["complex", "reference", "chains", "interfaces", "DockQ", "interface lDDT", "TM", "RMSD"]]
    for result, comparison in _complexes(results):
        target = result.target if result.rank == 0 else f"{result.target}, rank {result.rank}"
        chains = str(len(comparison.chains))
        if len(comparison.chains) < comparison.reference_chains:
            chains = f"{chains}/{comparison.reference_chains}"
        lines.append(
            [
                *(printable(name, _MAX_NAME_CHARACTERS) for name in (target, result.reference)),
                chains,
                str(len(comparison.interfaces)),
                *("-" if score is None else f"{score:.3f}" for score in (comparison.dockq, comparison.interface_lddt)),
                f"{comparison.tm_score:.3f}",
                f"{comparison.rmsd:.2f}",
            ]
        )
    if len(lines) > 1:
        yield ""
        yield from aligned(lines, left=2)


def _complexes(results: Sequence[Evaluated]) -> list[tuple[Evaluated, ComplexComparison]]:
    """Return the results that compare complexes, with the comparison."""
    return [(each, each.complex) for each in results if each.complex is not None]


def _names(result: Evaluated) -> dict[str, Any]:
    """Return the columns that identify a comparison."""
    return {"target": result.target, "rank": result.rank, "reference": result.reference}


def _complex_row(comparison: ComplexComparison) -> dict[str, Any]:
    """Return a row of complexes.tsv by column name."""
    return {
        "chains": len(comparison.chains),
        "reference_chains": comparison.reference_chains,
        # Pairs of a reference chain and the matching predicted chain.
        "mapping": " ".join(f"{theirs}={ours}" for theirs, ours in comparison.chains),
        "residues": comparison.residues,
        "compared": comparison.compared,
        "interfaces": len(comparison.interfaces),
        "dockq": rounded(comparison.dockq),
        "interface_lddt": rounded(comparison.interface_lddt),
        "tm_score": rounded(comparison.tm_score),
        "rmsd": rounded(comparison.rmsd),
    }


def _interface_row(each: InterfaceComparison) -> dict[str, Any]:
    """Return a row of interfaces.tsv by column name."""
    return {
        "reference_chains": " ".join(each.reference_chains),
        "predicted_chains": " ".join(each.predicted_chains),
        "native_contacts": each.native_contacts,
        "dockq": rounded(each.dockq),
        "fnat": rounded(each.fnat),
        "irms": rounded(each.irms),
        "lrms": rounded(each.lrms),
        "capri": each.capri,
        "interface_lddt": rounded(each.lddt),
    }
