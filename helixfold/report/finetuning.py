"""Write pages of fine-tunings: scores of held-out targets before and after, tables of jobs, and training curves."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helixfold.report.page import page
from helixfold.report.plots import draw_grid, new_figure, to_png
from helixfold.report.training_curves import smoothed
from helixfold.results.training_log import TrainingHistory
from helixfold.results.writing import write_file

# Okabe and Ito's colours, which can be distinguished with any kind of colour vision.
_CURVE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINE_STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table of a page: its title, the titles of its columns, its rows of formatted cells, and a note under it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def write_finetuning_page(
    path: Path,
    *,
    kind: str,
    title: str,
    figures: Mapping[str, str],
    tables: Sequence[PageTable],
    facts: Mapping[str, str] | None = None,
    picture: bytes | None = None,
) -> None:
    """Write an HTML page with key numbers at the top (`figures`, by label), tables, facts and a PNG of training curves.

    `kind` is a word for what the page reports on, above the title. `facts` are pairs of name and value. Tables without
    rows are left out.
    """
    write_file(
        path,
        page(
            "finetuning.html",
            styles=("page.css", "finetuning.css"),
            scripts=(),
            kind=kind,
            title=title,
            figures=figures,
            tables=[table for table in tables if table.rows],
            facts=facts or {},
            picture=None if picture is None else f"data:image/png;base64,{base64.b64encode(picture).decode()}",
        ),
    )


def compared_curves(histories: Mapping[str, TrainingHistory]) -> bytes:
    """Return a PNG with the smoothed training loss and the held-out CA-lDDT of several runs over their steps.

    `histories` has the runs by the names in the legend.
    """
    figure = new_figure(10.0, 4.2)
    losses, scores = figure.subplots(1, 2)
    for index, (name, history) in enumerate(histories.items()):
        style = {
            "color": _CURVE_COLORS[index % len(_CURVE_COLORS)],
            "linestyle": _LINE_STYLES[index // len(_CURVE_COLORS) % len(_LINE_STYLES)],
            "label": (name if len(name) <= 24 else f"{name[:23]}…").replace("$", r"\$"),
        }
        steps = np.array([record.step + 1 for record in history.steps])
        values = np.array([record.losses.get("weighted", np.nan) for record in history.steps], float)
        losses.plot(steps, smoothed(values, max(1, len(values) // 20)), linewidth=1.3, **style)
        held_out = [
            (each.step + 1, each.summary["lddt_ca"]) for each in history.evaluations if "lddt_ca" in each.summary
        ]
        scores.plot([step for step, _ in held_out], [score for _, score in held_out], marker="o", markersize=3, **style)
    losses.set(ylabel="Training loss (weighted, smoothed)", xlabel="Steps")
    scores.set(ylabel="Held-out CA-lDDT", xlabel="Steps")
    for axes in (losses, scores):
        draw_grid(axes)
    if histories:
        scores.legend(frameon=False, fontsize=8)
    return to_png(figure)
