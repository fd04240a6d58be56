"""Page of a task that was learnt from a table: scores with and without changes of the network, and the ROC curve."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from helixfold.analysis.intervals import Estimate
from helixfold.analysis.rank_scores import roc
from helixfold.finetune.task_run import LearntTask, Task
from helixfold.report.finetuning import PageTable, write_finetuning_page
from helixfold.report.plots import new_figure, to_png

_COLORS = ("#0072B2", "#D55E00", "#009E73")


def write_task_page(path: Path, title: str, task: Task, learnt: Mapping[str, LearntTask]) -> None:
    """Write the page of a task, which was learnt in one or several ways."""
    score = "AUC" if task.kind != "regression" else "Spearman correlation"
    test = task.of("test")
    write_finetuning_page(
        path,
        kind=f"Task: {task.kind}",
        title=title,
        figures={
            **{f"{score}, {name}": _shown(each.scores.deciding) for name, each in learnt.items()},
            "rows to learn from": f"{len(task.of('train')):,}",
            "held-out rows": f"{len(test):,}",
        },
        tables=[
            PageTable(
                title="Held-out rows",
                columns=["Way", score, "95 % interval"],
                rows=[[name, *_cells(each.scores.deciding)] for name, each in learnt.items()],
                note="Intervals are over resamples of the held-out rows.",
            ),
            PageTable(
                title="Predictions",
                columns=["Name", "Split", "Value", *learnt],
                rows=[
                    [row.name, row.split, "" if row.value is None else f"{row.value:g}"]
                    + [f"{each.predicted[number]:.3g}" for each in learnt.values()]
                    for number, row in enumerate(task.rows)
                ],
            ),
        ],
        facts={"Model": task.preset.name, "Head reads": task.reads, "Seed": str(task.config.run.seed)},
        picture=_picture(task, learnt, test),
    )


def _picture(task: Task, learnt: Mapping[str, LearntTask], test: list[int]) -> bytes:
    """Draw ROC curves of classes, or predicted against true values."""
    figure = new_figure(5.2, 4.6)
    axes, true = figure.subplots(), np.array([task.rows[number].value or 0.0 for number in test])
    for (name, each), color in zip(learnt.items(), _COLORS, strict=False):
        predicted = each.predicted[test]
        if task.kind == "regression":
            axes.plot(true, predicted, linestyle="none", marker="o", markersize=3, color=color, label=name)
        else:
            axes.plot(*roc(predicted, true > 0.5), color=color, label=name)
    if task.kind == "regression":
        axes.set(xlabel="Value", ylabel="Predicted")
    else:
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle="--")
        axes.set(xlabel="False positive rate", ylabel="True positive rate", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return to_png(figure)


def _shown(score: Estimate | None) -> str:
    return "not defined" if score is None else f"{score.value:.3f}"


def _cells(score: Estimate | None) -> list[str]:
    return ["not defined", ""] if score is None else [f"{score.value:.3f}", f"{score.low:.3f} to {score.high:.3f}"]
