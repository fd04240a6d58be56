"""Resume a target: decide which earlier results to keep, and which predictions are missing."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError
from data_pipeline.io.json_files import read_json
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.postprocess import is_postprocessed
from helixfold.apps.predict.record import TargetRecord, read_record, record_for, record_of
from helixfold.apps.predict.settings import PredictionRequest, RunSettings
from helixfold.apps.predict.variants import TargetVariants, expected_variants
from helixfold.execution.device import DTYPES
from helixfold.execution.stages import Stage
from helixfold.folding.prediction import Prediction
from helixfold.results.colabfold import done_file
from helixfold.results.file_table import RANKING, SETTINGS, TIMINGS, remove_results
from helixfold.results.json_object import AGAIN, JsonObject
from helixfold.results.packed import PackedResults
from helixfold.results.prediction import has_requested_files
from helixfold.results.writing import to_json


@dataclass(frozen=True, kw_only=True)
class ResumeStatus:
    """Remaining work for a target: whether it is finished, and the number of missing predictions.

    A target is also unfinished if only its ranking or reports are missing. `name` is the name of its directory.
    """

    name: str
    finished: bool
    missing: int  # number of predictions
    remark: str | None = None  # text for the user about earlier results


def resume_status(
    job: Job, directory: Path, settings: RunSettings, packed: PackedResults | None = None
) -> ResumeStatus:
    """Return the remaining work for a target with these settings, without writing anything.

    With --overwrite, all predictions count as missing. A target that was finished with other settings counts as
    finished, with a remark, unless its parameters were less trustworthy.

    The status of a `packed` target comes from the index if possible; otherwise its files are unpacked temporarily.
    """
    entry = None
    if packed is not None and job.name in packed and (entry := packed.entry(job.name)) is None:
        return _unpacked_status(job, settings, packed)
    earlier = read_record(directory) if entry is None else record_of(entry.content.get("settings"))
    overwrite = settings.options.overwrite
    predictions, requested = _requested(job, settings, None if overwrite else earlier)
    # If the number of clusters is unknown, at least one is assumed.
    unknown_count = (
        0 if requested.clusters is None or requested.clusters.count is not None else len(settings.predictions())
    )
    is_marked = entry is not None or RANKING.path(directory).is_file()
    if overwrite or (earlier is None and not is_marked):
        return ResumeStatus(name=job.name, finished=False, missing=len(predictions) + unknown_count)
    remark = _mismatch(earlier, requested, is_marked=is_marked)
    if earlier is None or remark is not None:
        finished = is_marked and not (earlier is not None and earlier.is_superseded_by(requested))
        missing = 0 if finished else len(predictions) + unknown_count
        return ResumeStatus(name=job.name, finished=finished, missing=missing, remark=remark)
    record = earlier.extended(requested)
    if packed is not None and entry is not None:
        if not unknown_count and _is_whole(entry, record, predictions, settings):
            return ResumeStatus(name=job.name, finished=True, missing=0)
        return _unpacked_status(job, settings, packed)
    finished_predictions = record.finished(directory, job.residues)
    has_score = any(settings.folding.stops_at(each.plddt.mean()) for each in finished_predictions.values())
    missing = 0 if has_score else unknown_count
    missing += len(_missing(record, finished_predictions, directory, settings, predictions))
    finished = not missing and is_marked and is_postprocessed(directory, list(finished_predictions.values()), settings)
    if finished_predictions and not finished:
        work_left = f"{missing} missing" if missing else "ranking and reports are missing"
        count = len(finished_predictions)
        remark = f"{count} prediction{'' if count == 1 else 's'} there from an earlier run, {work_left}"
    return ResumeStatus(name=job.name, finished=finished, missing=missing, remark=remark)


def _unpacked_status(job: Job, settings: RunSettings, packed: PackedResults) -> ResumeStatus:
    """Return the status of a packed target from its files; a damaged one is predicted from the start."""
    try:
        with packed.directory(job.name) as directory:
            return resume_status(job, directory, settings)
    except InputError as error:
        predictions, _ = _requested(job, settings, None)
        return ResumeStatus(name=job.name, finished=False, missing=len(predictions), remark=f"{error}; starts again")


def _is_whole(
    entry: JsonObject, record: TargetRecord, requested: Sequence[PredictionRequest], settings: RunSettings
) -> bool:
    """Return whether a packed target certainly has all requested predictions and files, by its entry in the index.

    False also means that only its files can answer this.
    """
    folding = settings.folding
    if folding.representations or folding.logits or folding.save_passes:
        return False
    if settings.options.output_format == "colabfold":
        return False
    try:
        plddt = entry.child("finished")
        mean_plddts = {name: plddt.get(name, float) for name in plddt.content}
        order, relaxed = entry.list_of("order", str), entry.list_of("relaxed", str)
    except InputError:
        return False
    to_relax = {"none": (), "best": order[:1], "all": order}[settings.to_relax]
    has_score = any(map(folding.stops_at, mean_plddts.values()))
    has_all = has_score or all(record.name_of(prediction) in mean_plddts for prediction in requested)
    return has_all and bool(order) and {*to_relax} <= {*relaxed}


def begun_dtype(jobs: Sequence[Job], settings: RunSettings, packed: PackedResults) -> str | None:
    """Return the dtype with which an earlier run began the first of `jobs` that has results; else None.

    Results with other settings, apart from the dtype, or with less trustworthy parameters are passed over.
    """
    for job in jobs:
        entry = packed.entry(job.name) if job.name in packed else None
        directory = settings.options.output / job.name
        earlier = read_record(directory) if entry is None else record_of(entry.content.get("settings"))
        if earlier is None:
            continue
        dtype = earlier.options.get("dtype")
        _, requested = _requested(job, settings, earlier)
        same_dtype = replace(requested, options={**requested.options, "dtype": dtype})
        if dtype in DTYPES and not earlier.is_superseded_by(requested) and not earlier.differences(same_dtype):
            return str(dtype)
    return None


def _mismatch(earlier: TargetRecord | None, requested: TargetRecord, *, is_marked: bool) -> str | None:
    """Return why earlier results do not match the requested ones, and whether they are replaced; None if they match."""
    if earlier is None:
        return f"finished before, but {SETTINGS.name()} there is missing or damaged, so its settings are unknown"
    if earlier.is_superseded_by(requested):
        return f"predicted before with {earlier.made_with}; starts again"
    differences = "; ".join(earlier.differences(requested))
    if not differences:
        return None
    if is_marked:
        return f"finished before with other settings ({differences})"
    return f"started before with other settings ({differences}) and not finished; starts again"


def restore(directory: Path) -> None:
    """Unpack a target that needs more work into its directory if it is packed.

    A damaged one is left packed, so that it is predicted from the start.
    """
    with PackedResults(directory.parent) as packed, suppress(InputError):  # `resume_status` has reported it
        if directory.name in packed:
            packed.restore(directory.name)


def resume_target(job: Job, directory: Path, settings: RunSettings) -> tuple[TargetRecord, dict[str, Any], list[Stage]]:
    """Keep the results of an earlier run with the same settings, remove all others, and write the new record.

    A packed target is unpacked. Return the record, and the models and stages in the timings of the earlier run. In both
    cases, the target no longer counts as finished.
    """
    restore(directory)
    earlier = None if settings.options.overwrite else read_record(directory)
    _, requested = _requested(job, settings, earlier)
    done_file(directory.resolve()).unlink(missing_ok=True)
    models: dict[str, Any] = {}
    stages: list[Stage] = []
    if earlier is None or earlier.is_superseded_by(requested) or earlier.differences(requested):
        remove_results(directory)
        _, record = _requested(job, settings, None)
    else:
        RANKING.path(directory).unlink(missing_ok=True)
        record = earlier.extended(requested)
        models, stages = _earlier_timings(directory)
    record.write(directory, job.notes(settings.models))
    return record, models, stages


def request_predictions(
    record: TargetRecord, job: Job, directory: Path, settings: RunSettings, variants: TargetVariants
) -> tuple[TargetRecord, list[PredictionRequest]]:
    """Add the predictions from all variants of the alignment to a target's record; return it with what is missing.

    The provenance of missing predictions is dropped. Raise `InputError` if the alignment has other clusters than in an
    earlier run.
    """
    earlier = record.clusters
    if earlier is not None and earlier.count is not None and variants.clusters not in (None, earlier):
        raise InputError.at(
            SETTINGS.path(directory),
            f"an earlier run found {earlier.count} clusters, and now there are {variants.clusters.count}: the "
            "alignment has changed; pass --overwrite to start again",
        )
    requested = settings.predictions(variants.variants)
    record = record.extended(record_for(job, settings, requested, variants.clusters))
    finished = record.finished(directory, job.residues)
    missing = _missing(record, finished, directory, settings, requested)
    complete_names = finished.keys() - {prediction.name for prediction in missing}
    provenance = {name: each for name, each in record.provenance.items() if name in complete_names}
    return replace(record, provenance=provenance), missing


def _requested(
    job: Job, settings: RunSettings, earlier: TargetRecord | None
) -> tuple[list[PredictionRequest], TargetRecord]:
    """Return the predictions that are known before the alignment, with the clusters of an earlier run, and a record."""
    expected = expected_variants(settings.variants, job, None if earlier is None else earlier.clusters)
    predictions = settings.predictions(expected.variants)
    return predictions, record_for(job, settings, predictions, expected.clusters)


def _missing(
    record: TargetRecord,
    done: dict[str, Prediction],
    directory: Path,
    settings: RunSettings,
    requested: Sequence[PredictionRequest],
) -> list[PredictionRequest]:
    """Return the requested predictions that are missing; none if a finished one has the score that ends a run."""
    if any(settings.folding.stops_at(prediction.plddt.mean()) for prediction in done.values()):
        return []
    representations_format = settings.options.representations_format
    complete_names = [
        name
        for name, prediction in done.items()
        if has_requested_files(directory, prediction, settings.folding, representations_format)
    ]
    renamed = (replace(prediction, name=record.name_of(prediction)) for prediction in requested)
    return [prediction for prediction in renamed if prediction.name not in complete_names]


def _earlier_timings(directory: Path) -> tuple[dict[str, Any], list[Stage]]:
    """Read the entries of each model and stage in timings.json; nothing if it is missing or damaged."""
    try:
        content: Any = read_json(TIMINGS.path(directory), AGAIN)
        stages = [
            Stage(name=str(name), seconds=float(row["seconds"]), peak_memory=int(row["peak_memory_gib"] * 2**30))
            for name, row in content["stages"].items()
        ]
        to_json({"models": content["models"], "seconds": [stage.seconds for stage in stages]})  # checks values
        return dict(content["models"]), stages
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}, []
