"""Write the table and the heat map of a scan: mutations.tsv, mutations.json and mutations.html."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.residues import RESTYPES
from helixfold import __version__
from helixfold.prediction import Prediction
from helixfold.report.page import page
from helixfold.report.tables import headed
from helixfold.scoring.mutations import Mutant, TargetChains, scanned_positions
from helixfold.write.results import to_json, write_file
from helixfold.write.text_tables import aligned, rounded, tab_separated

TABLE_FILE, JSON_FILE, PAGE_FILE = "mutations.tsv", "mutations.json", "mutations.html"
_MOST_ON_SCREEN, _MOST_ON_PAGE = 10, 1000
# Amino acids by what their side chains are like, as rows of heat maps usually have them.
_ROWS = "GAVLIMCFWYPSTNQHKRDE"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A column of the table, and a heat map; values below `neutral`, if there is one, have another colour."""

    title: str
    layout: str
    neutral: float | None = 0.0
    largest: float | None = None  # for a scale from 0 to a fixed end
    is_loss: bool = False  # larger values are worse


MEASURES: dict[str, Measure] = {
    "masked_marginal": Measure(title="Masked marginal", layout="%.2f"),
    "wild_type_marginal": Measure(title="Wild-type marginal", layout="%.2f"),
    "plddt_change": Measure(title="Change of pLDDT", layout="%.2f"),
    "site_plddt_change": Measure(title="Change of pLDDT at the site", layout="%.2f"),
    "lddt": Measure(title="lDDT to the wild type", layout="%.3f", neutral=None, largest=1.0),
    "site_lddt": Measure(title="lDDT to the wild type at the site", layout="%.3f", neutral=None, largest=1.0),
    "pae_change": Measure(title="Change of PAE, Å", layout="%.3f", is_loss=True),
    "site_pae_change": Measure(title="Change of PAE at the site, Å", layout="%.3f", is_loss=True),
    "ptm_change": Measure(title="Change of pTM", layout="%.4f"),
    "iptm_change": Measure(title="Change of ipTM", layout="%.4f"),
    "rmsd": Measure(title="RMSD to the wild type, Å", layout="%.2f", neutral=None, is_loss=True),
    "plddt": Measure(title="pLDDT", layout="%.1f", neutral=None, largest=100.0),
}
_ON_SCREEN = ("masked_marginal", "plddt_change", "site_plddt_change", "pae_change", "lddt")


@dataclass(frozen=True, kw_only=True)
class ScannedTarget:
    """A target whose mutants are all made.

    `results` are by name of the mutant; `log_likelihoods`, by index of a hidden position, those of 20 amino acids.
    """

    chains: TargetChains
    mutants: tuple[Mutant, ...]
    results: Mapping[str, Mapping[str, Any]]
    log_likelihoods: Mapping[int, np.ndarray] | None
    wild_type: Prediction
    settings: Mapping[str, Any]

    @property
    def measures(self) -> list[str]:
        """Return the measures that any mutant has."""
        return [name for name in MEASURES if any(each.get(name) is not None for each in self.results.values())]


def screen_lines(scanned: ScannedTarget) -> Iterator[str]:
    """Yield the mutants that are furthest from the wild type as a table for the screen."""
    names = [name for name in _ON_SCREEN if name in scanned.measures]
    furthest = sorted(scanned.mutants, key=lambda mutant: scanned.results[mutant.name]["lddt"])[:_MOST_ON_SCREEN]
    rows = [["furthest from the wild type", *names]]
    for mutant in furthest:
        result = scanned.results[mutant.name]
        cells = ["-" if result.get(name) is None else MEASURES[name].layout % result[name] for name in names]
        rows.append([mutant.name, *cells])
    yield from aligned(rows, left=1)


def write_scan(directory: Path, scanned: ScannedTarget) -> None:
    """Write the table for programs as .tsv and .json, and the page, into the target's directory."""
    names = scanned.measures
    rows = [
        [
            mutant.name,
            ":".join(scanned.chains.label(each.position) for each in mutant.substitutions),
            *(rounded(scanned.results[mutant.name].get(name)) for name in names),
        ]
        for mutant in scanned.mutants
    ]
    write_file(directory / TABLE_FILE, tab_separated(("mutation", "position", *names), rows))
    write_file(directory / JSON_FILE, to_json(_content(scanned), indent=1) + "\n")
    write_file(directory / PAGE_FILE, _page(scanned))


def _content(scanned: ScannedTarget) -> dict[str, Any]:
    positions = scanned_positions(scanned.mutants)
    likelihoods = scanned.log_likelihoods or {}
    return {
        "target": scanned.chains.target,
        "settings": dict(scanned.settings),
        "notes": list(scanned.wild_type.notes),
        "wild_type": {
            "plddt": round(float(scanned.wild_type.plddt.mean(dtype=np.float64)), 2),
            "ptm": rounded(scanned.wild_type.ptm),
            "iptm": rounded(scanned.wild_type.iptm),
        },
        "amino_acids": RESTYPES,
        "masked_log_likelihoods": {
            scanned.chains.label(positions[index]): [round(float(value), 4) for value in values]
            for index, values in likelihoods.items()
        },
        "mutations": [
            {"mutation": mutant.name, **{name: rounded(value) for name, value in scanned.results[mutant.name].items()}}
            for mutant in scanned.mutants
        ],
    }


def _page(scanned: ScannedTarget) -> str:
    measures = scanned.measures
    shown = scanned.mutants[:_MOST_ON_PAGE]
    data = map_data(scanned)
    return page(
        "mutations.html",
        styles=("page.css", "index.css", "mutations.css"),
        scripts=("banner.js", "mutation_map.js", "index.js"),
        version=__version__,
        title=scanned.chains.target,
        banners=[headed(note) for note in scanned.wild_type.notes],
        mutants=len(scanned.mutants),
        positions=len(scanned_positions(scanned.mutants)),
        plddt=float(scanned.wild_type.plddt.mean(dtype=np.float64)),
        ptm=scanned.wild_type.ptm,
        settings=scanned.settings,
        has_likelihoods="wild_type_marginal" in measures,
        columns=[(name, MEASURES[name].title, MEASURES[name].layout) for name in measures],
        lines=[(mutant.name, scanned.results[mutant.name]) for mutant in shown],
        hidden_lines=len(scanned.mutants) - len(shown),
        data=data if data["positions"] else None,
    )


def map_data(scanned: ScannedTarget) -> dict[str, Any]:
    """Return what the heat map shows of single mutants: positions in columns, amino acids that occur in rows."""
    singles = [mutant for mutant in scanned.mutants if len(mutant.substitutions) == 1]
    positions = scanned_positions(singles)
    column = {index: place for place, index in enumerate(positions)}
    letters = {each.letter for mutant in singles for each in mutant.substitutions}
    letters |= {position.letter for position in positions.values()}
    shown = "".join(letter for letter in _ROWS if letter in letters)
    measures = []
    for name in scanned.measures:
        cells: list[list[float | None]] = [[None] * len(column) for _ in shown]
        for mutant in singles:
            (each,) = mutant.substitutions
            value = rounded(scanned.results[mutant.name].get(name))
            cells[shown.index(each.letter)][column[each.position.index]] = value
        measure = MEASURES[name]
        measures.append(
            {
                "title": measure.title,
                "digits": int(measure.layout[2:-1]),
                "neutral": measure.neutral,
                "range": _range([value for row in cells for value in row if value is not None], measure),
                "isLoss": measure.is_loss,
                "cells": cells,
            }
        )
    return {
        "rows": shown,
        "positions": [[scanned.chains.label(position), position.letter] for position in positions.values()],
        "measures": [measure for measure in measures if measure["range"] is not None],
    }


def _range(values: Sequence[float], measure: Measure) -> list[float] | None:
    """Return the ends of a measure's scale, of a difference as far from 0 on both sides; None without values."""
    if not values:
        return None
    if measure.neutral is not None:
        end = max(abs(value) for value in values) or 1.0
        return [-end, end]
    least = min(values)
    largest = max(values) if measure.largest is None else measure.largest
    return [least, largest] if largest > least else [least - 1e-3, largest]
