"""Resume a target: decide which earlier results stay, which are out of date, and which predictions are missing."""

from collections.abc import Sequence
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
    """Work that a run will do for a target: none if it is finished, else the missing predictions."""

    name: str
    finished: bool
    missing: int  # predictions
    remark: str | None = None  # for the user, about earlier results


@dataclass(kw_only=True)
class ResumedTarget:
    """A target whose directory is ready for more predictions, with the timings of earlier runs.

    `record` grows as predictions are made, and `notes` are for every reader of the results. `missing` is filled by
    `request`, once the target's features tell which predictions it has.
    """

    job: Job
    record: TargetRecord
    notes: tuple[str, ...]
    models: dict[str, Any]  # of timings.json, by prediction
    stages: tuple[Stage, ...]
    missing: tuple[PredictionRequest, ...] = ()

    def request(self, directory: Path, settings: RunSettings, found: TargetVariants) -> None:
        """Add the predictions from all variants of the alignment to the record, and find out which of them are missing.

        Raise `InputError` if the alignment falls into other clusters than in an earlier run.
        """
        before = self.record.clusters
        if before is not None and before.count is not None and found.clusters not in (None, before):
            raise InputError.at(
                SETTINGS.path(directory),
                f"an earlier run found {before.count} clusters, and now there are {found.clusters.count}: the "
                "alignment is another one; --overwrite begins anew",
            )
        requested = settings.predictions(found.variants)
        self.record = self.record.extended(record_for(self.job, settings, requested, found.clusters))
        done = self.record.finished(directory, self.job.residues)
        self.missing = tuple(_missing(self.record, done, directory, settings, requested))
        again = {prediction.name for prediction in self.missing}
        made = {name: each for name, each in self.record.provenance.items() if name in done and name not in again}
        self.record = replace(self.record, provenance=made)
        self.record.write(directory, self.notes)
        # What was measured of a prediction that is made again is measured again.
        self.stages = tuple(stage for stage in self.stages if stage.name.partition(": ")[0] not in again)

    @property
    def templates_read(self) -> set[str]:
        """Return the labels of the templates that the finished predictions used."""
        return {label for made in self.record.provenance.values() for label in made.templates}

    def add(self, directory: Path, prediction: Prediction) -> None:
        """Write into settings.json what made a prediction, whose files are to be written next."""
        assert prediction.provenance is not None
        made = {**self.record.provenance, prediction.name: prediction.provenance}
        self.record = replace(self.record, provenance=made)
        self.record.write(directory, self.notes)


def resume_status(
    job: Job, directory: Path, settings: RunSettings, packed: PackedResults | None = None
) -> ResumeStatus:
    """Return what a run with these settings will do for a target; nothing is written.

    Of a target that is `packed`, the index says what it can, and else its files are unpacked for as long as this takes.
    """
    entry = None
    if packed is not None and job.name in packed and (entry := packed.entry(job.name)) is None:
        return _unpacked_status(job, settings, packed)
    earlier = read_record(directory) if entry is None else record_of(entry.content.get("settings"))
    overwrite = settings.options.overwrite
    found = _expected(job, settings, None if overwrite else earlier)
    predictions = settings.predictions(found.variants)
    requested = record_for(job, settings, predictions, found.clusters)
    # At least one cluster, as long as nobody knows how many there are.
    unknown = 0 if found.clusters is None or found.clusters.count is not None else len(settings.predictions())
    is_marked = entry is not None or RANKING.path(directory).is_file()
    if overwrite or (earlier is None and not is_marked):
        return ResumeStatus(name=job.name, finished=False, missing=len(predictions) + unknown)
    remark = _mismatch(earlier, requested, is_marked=is_marked)
    if earlier is None or remark is not None:
        finished = is_marked and not (earlier is not None and earlier.is_superseded_by(requested))
        missing = 0 if finished else len(predictions) + unknown
        return ResumeStatus(name=job.name, finished=finished, missing=missing, remark=remark)
    record = earlier.extended(requested)
    if packed is not None and entry is not None:
        if not unknown and _is_whole(entry, record, predictions, settings):
            return ResumeStatus(name=job.name, finished=True, missing=0)
        return _unpacked_status(job, settings, packed)
    done = record.finished(directory, job.residues)
    missing = 0 if _has_score(done, settings) else unknown
    missing += len(_missing(record, done, directory, settings, predictions))
    finished = not missing and is_marked and is_postprocessed(directory, list(done.values()), settings)
    if done and not finished:
        to_do = f"{missing} to be made" if missing else "what follows on them is to be done"
        remark = f"{len(done)} prediction{'' if len(done) == 1 else 's'} there from an earlier run, {to_do}"
    return ResumeStatus(name=job.name, finished=finished, missing=missing, remark=remark)


def _unpacked_status(job: Job, settings: RunSettings, packed: PackedResults) -> ResumeStatus:
    """Return the status of a packed target from its files; a damaged one is predicted from the start."""
    try:
        with packed.directory(job.name) as directory:
            return resume_status(job, directory, settings)
    except InputError as error:
        missing = len(settings.predictions(_expected(job, settings, None).variants))
        return ResumeStatus(name=job.name, finished=False, missing=missing, remark=f"{error}; begins anew")


def _is_whole(
    entry: JsonObject, record: TargetRecord, requested: Sequence[PredictionRequest], settings: RunSettings
) -> bool:
    """Return whether a packed target has all predictions and files that the settings ask for, as far as its line says.

    False stands for what only its files say, too.
    """
    folding = settings.folding
    if folding.representations or folding.logits or folding.save_passes:
        return False
    if settings.options.output_format == "colabfold":
        return False
    try:
        plddt = entry.child("finished")
        done = {name: plddt.get(name, float) for name in plddt.content}
        order, relaxed = entry.list_of("order", str), entry.list_of("relaxed", str)
    except InputError:
        return False
    to_relax = {"none": (), "best": order[:1], "all": order}[settings.to_relax]
    score = folding.stop_at_score
    has_score = score is not None and any(mean >= score for mean in done.values())
    has_all = has_score or all(record.name_of(prediction) in done for prediction in requested)
    return has_all and bool(order) and {*to_relax} <= {*relaxed}


def begun_dtype(jobs: Sequence[Job], settings: RunSettings, packed: PackedResults) -> str | None:
    """Return the dtype of the first target that an earlier run made with these settings, dtypes aside; else None."""
    for job in jobs:
        entry = packed.entry(job.name) if job.name in packed else None
        directory = settings.options.output / job.name
        earlier = read_record(directory) if entry is None else record_of(entry.content.get("settings"))
        if earlier is None:
            continue
        dtype, requested = earlier.options.get("dtype"), _requested(job, settings, earlier)
        alike = replace(requested, options={**requested.options, "dtype": dtype})
        if dtype in DTYPES and not earlier.is_superseded_by(requested) and not earlier.differences(alike):
            return str(dtype)
    return None


def _mismatch(earlier: TargetRecord | None, requested: TargetRecord, *, is_marked: bool) -> str | None:
    """Say why earlier results are not the requested ones, and what becomes of them; None if they are."""
    if earlier is None:
        return f"finished before, but {SETTINGS.name()} there is missing or damaged, so nobody knows from what"
    if earlier.is_superseded_by(requested):
        return f"made before with {earlier.made_with}; begins anew"
    differences = "; ".join(earlier.differences(requested))
    if not differences:
        return None
    if is_marked:
        return f"finished before with other settings ({differences})"
    return f"begun before with other settings ({differences}) and not finished; begins anew"


def resume_target(job: Job, directory: Path, settings: RunSettings) -> ResumedTarget:
    """Keep what an earlier run made with the same settings, remove the rest, and write the new record."""
    earlier = None if settings.options.overwrite else read_record(directory)
    requested = _requested(job, settings, earlier)
    done_file(directory.resolve()).unlink(missing_ok=True)
    models, stages = dict[str, Any](), list[Stage]()
    if earlier is None or earlier.is_superseded_by(requested) or earlier.differences(requested):
        remove_results(directory)
        record = _requested(job, settings, None)
    else:
        RANKING.path(directory).unlink(missing_ok=True)
        record = earlier.extended(requested)
        models, stages = _earlier_timings(directory)
    notes = job.notes(settings.models)
    record.write(directory, notes)
    return ResumedTarget(job=job, record=record, notes=notes, models=models, stages=tuple(stages))


def _expected(job: Job, settings: RunSettings, earlier: TargetRecord | None) -> TargetVariants:
    return expected_variants(settings.variants, job, None if earlier is None else earlier.clusters)


def _requested(job: Job, settings: RunSettings, earlier: TargetRecord | None) -> TargetRecord:
    """Return the record of all predictions that the settings ask for, with the clusters that an earlier run found."""
    found = _expected(job, settings, earlier)
    return record_for(job, settings, settings.predictions(found.variants), found.clusters)


def _has_score(done: dict[str, Prediction], settings: RunSettings) -> bool:
    """Return whether a prediction that is done has the score at which a run stops."""
    score = settings.folding.stop_at_score
    return score is not None and any(prediction.plddt.mean() >= score for prediction in done.values())


def _missing(
    record: TargetRecord,
    done: dict[str, Prediction],
    directory: Path,
    settings: RunSettings,
    requested: Sequence[PredictionRequest],
) -> list[PredictionRequest]:
    """Return the requested predictions that are to be made; none if one that is done has the score that ends a run."""
    if _has_score(done, settings):
        return []
    form = settings.options.representations_format
    complete = [
        name for name, prediction in done.items() if has_requested_files(directory, prediction, settings.folding, form)
    ]
    renamed = (replace(prediction, name=record.name_of(prediction)) for prediction in requested)
    return [prediction for prediction in renamed if prediction.name not in complete]


def _earlier_timings(directory: Path) -> tuple[dict[str, Any], list[Stage]]:
    """Read what timings.json says of each model and stage; nothing if it is missing or damaged."""
    try:
        content: Any = read_json(TIMINGS.path(directory), AGAIN)
        stages = [
            Stage(name=str(name), seconds=float(row["seconds"]), peak_memory=int(row["peak_memory_gib"] * 2**30))
            for name, row in content["stages"].items()
        ]
        to_json({"models": content["models"], "seconds": [stage.seconds for stage in stages]})  # as it will be written
        return dict(content["models"]), stages
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}, []
