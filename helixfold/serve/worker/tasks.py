"""Tasks of the predicting process of a worker: predict a job, search for other programs, tell what it offers."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.errors import InputError
from data_pipeline.json_files import read_json
from helixfold.predict.run import run
from helixfold.report.files import read_order, read_prediction
from helixfold.report.tables import mark_of
from helixfold.serve.upload_check import fasta_of
from helixfold.serve.worker.alignments import search
from helixfold.serve.worker.forecasts import offers
from helixfold.serve.worker.options import WorkerOptions, predict_options
from helixfold.write.json_object import AGAIN
from helixfold.write.results import RANKING_FILE

# The search results that they are made of are there, and features are large.
_LEFT_OUT = ("features.npz",)


def do(kind: str, content: Mapping[str, Any], directory: Path, options: WorkerOptions) -> Any:
    """Do one task in a directory, and return what the worker sends: the offers, or the result's folder and summary.

    Raise `InputError` or `SearchError` for what cannot be done.
    """
    if kind == "offers":
        return offers(options)
    if kind == "alignment":
        return {"folder": search(content, directory, options), "summary": {}}
    return predict(content, directory, options)


def predict(request: Mapping[str, Any], directory: Path, options: WorkerOptions) -> dict[str, Any]:
    """Predict a job as `helixfold predict` does; return the folder of its files and its scores.

    Raise `InputError` with the reason if the target fails.
    """
    (directory / "target.fasta").write_text(fasta_of(request))
    output, failures = directory / "predictions", directory / "failures.json"
    shutil.rmtree(output, ignore_errors=True)
    here = os.getcwd()
    os.chdir(directory)
    try:
        run(predict_options(request, directory, options, output, failures))
    finally:
        os.chdir(here)
    found = read_json(failures, AGAIN) if failures.is_file() else {}
    for reason in dict(found).values():
        raise InputError(str(reason))
    (target,) = (path for path in output.iterdir() if (path / RANKING_FILE).is_file())
    best = read_prediction(target, read_order(target)[0])
    for name in _LEFT_OUT:
        (target / name).unlink(missing_ok=True)
    summary = {
        "plddt": round(best.mean_plddt, 2),
        "ptm": best.ptm,
        "iptm": best.iptm,
        "model": best.name[:100],
        "provenance": (mark_of(best.notes) or "trained").lower(),
    }
    return {"folder": target, "summary": summary}
