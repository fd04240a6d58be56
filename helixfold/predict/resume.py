"""Resume a target: decide which earlier results stay, which are out of date, and which predictions are missing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_pipeline.errors import InputError
from data_pipeline.json_files import read_json
from data_pipeline.npz import npz_names
from helixfold.execution.dtypes import DTYPES
from helixfold.execution.stages import Stage
from helixfold.predict.jobs import Job, RequestedPrediction, RunSettings
from helixfold.predict.postprocess import is_postprocessed
from helixfold.predict.record import SETTINGS_FILE, TargetRecord, read_record, record_for, remove_results
from helixfold.write.colabfold import done_file
from helixfold.write.json_object import AGAIN
from helixfold.write.provenance import PredictionProvenance
from helixfold.write.ranking import FinishedPrediction
from helixfold.write.results import RANKING_FILE, TIMINGS_FILE, to_json


@dataclass(frozen=True, kw_only=True)
class ResumeStatus:
    """Work that a run will do for a target: none if it is finished, else the missing predictions."""

    name: str
    finished: bool
    missing: int  # predictions
    remark: str | None = None  # for the user, about earlier results


@dataclass(kw_only=True)
class ResumedTarget:
    """A target whose directory is ready for the missing predictions, with the timings of earlier runs.

    `record` grows as predictions are made, and `notes` are for every reader of the results.
    """

    record: TargetRecord
    notes: tuple[str, ...]
    missing: tuple[RequestedPrediction, ...]
    models: dict[str, Any]  # of timings.json, by prediction
    stages: tuple[Stage, ...]

    def add_provenance(self, directory: Path, name: str, provenance: PredictionProvenance) -> None:
        """Write into settings.json what made the prediction of a name, whose files are to be written next."""
        self.record = replace(self.record, provenance={**self.record.provenance, name: provenance})
        self.record.write(directory, self.notes)


def resume_status(job: Job, directory: Path, settings: RunSettings, *, overwrite: bool) -> ResumeStatus:
    """Return what a run with these settings will do for a target; nothing is written."""
    requested, earlier = record_for(job, settings), read_record(directory)
    is_marked = (directory / RANKING_FILE).is_file()
    if overwrite or (earlier is None and not is_marked):
        return ResumeStatus(name=job.name, finished=False, missing=len(settings.predictions))
    remark = _mismatch(earlier, requested, is_marked=is_marked)
    if earlier is None or remark is not None:
        finished = is_marked and not (earlier is not None and earlier.is_superseded_by(requested))
        missing = 0 if finished else len(settings.predictions)
        return ResumeStatus(name=job.name, finished=finished, missing=missing, remark=remark)
    record = earlier.extended(requested)
    done = record.finished(directory, job.residues)
    missing = len(_missing(record, done, directory, settings))
    finished = not missing and is_marked and is_postprocessed(directory, list(done.values()), settings)
    if done and not finished:
        to_do = f"{missing} to be made" if missing else "what follows on them is to be done"
        remark = f"{len(done)} prediction{'' if len(done) == 1 else 's'} there from an earlier run, {to_do}"
    return ResumeStatus(name=job.name, finished=finished, missing=missing, remark=remark)


def begun_dtype(jobs: Sequence[Job], output: Path, settings: RunSettings) -> str | None:
    """Return the dtype of the first target that an earlier run made with these settings, dtypes aside; else None."""
    for job in jobs:
        if (earlier := read_record(output / job.name)) is None:
            continue
        dtype, requested = earlier.options.get("dtype"), record_for(job, settings)
        alike = replace(requested, options={**requested.options, "dtype": dtype})
        if dtype in DTYPES and not earlier.is_superseded_by(requested) and not earlier.differences(alike):
            return str(dtype)
    return None


def _mismatch(earlier: TargetRecord | None, requested: TargetRecord, *, is_marked: bool) -> str | None:
    """Say why earlier results are not the requested ones, and what becomes of them; None if they are."""
    if earlier is None:
        return f"finished before, but {SETTINGS_FILE} there is missing or damaged, so nobody knows from what"
    if earlier.is_superseded_by(requested):
        return f"made before with {earlier.made_with}; begins anew"
    differences = "; ".join(earlier.differences(requested))
    if not differences:
        return None
    if is_marked:
        return f"finished before with other settings ({differences})"
    return f"begun before with other settings ({differences}) and not finished; begins anew"


def resume_target(job: Job, directory: Path, settings: RunSettings, *, overwrite: bool) -> ResumedTarget:
    """Keep what an earlier run made with the same settings, remove the rest, and write the new record."""
    requested, earlier = record_for(job, settings), read_record(directory)
    done_file(directory.resolve()).unlink(missing_ok=True)
    if overwrite or earlier is None or earlier.is_superseded_by(requested) or earlier.differences(requested):
        remove_results(directory)
        record, models, stages = requested, dict[str, Any](), list[Stage]()
    else:
        (directory / RANKING_FILE).unlink(missing_ok=True)
        record = earlier.extended(requested)
        models, stages = _earlier_timings(directory)
    done = record.finished(directory, job.residues)
    missing = _missing(record, done, directory, settings)
    made = {name for name in done if all(name != prediction.name for prediction in missing)}
    record = replace(record, provenance={name: each for name, each in record.provenance.items() if name in made})
    notes = job.notes(settings.models)
    record.write(directory, notes)
    # What was measured of a prediction that is made again is measured again.
    again = tuple(f"{prediction.name}: " for prediction in missing)
    stages = [stage for stage in stages if not stage.name.startswith(again)]
    return ResumedTarget(record=record, notes=notes, missing=tuple(missing), models=models, stages=tuple(stages))


def _missing(
    record: TargetRecord, done: dict[str, FinishedPrediction], directory: Path, settings: RunSettings
) -> list[RequestedPrediction]:
    """Return the predictions to make; none if one that is done has the score at which a run stops."""
    score = settings.options.stop_at_score
    if score is not None and any(prediction.plddt.mean() >= score for prediction in done.values()):
        return []
    renamed = [replace(prediction, name=record.name_of(prediction)) for prediction in settings.predictions]
    return [
        prediction
        for prediction in renamed
        if prediction.name not in done
        or (settings.options.logits and not (directory / f"logits_{prediction.name}.npz").is_file())
        or (settings.options.save_passes and not _has_passes(directory, prediction.name))
        or not _has_representations(directory / f"representations_{prediction.name}.npz", settings)
    ]


def _has_passes(directory: Path, name: str) -> bool:
    """Return whether the structures of all passes are there, if a PDB file can hold them."""
    return (directory / f"recycles_{name}.pdb").is_file() or not (directory / f"unrelaxed_{name}.pdb").is_file()


def _has_representations(path: Path, settings: RunSettings) -> bool:
    """Return whether a file holds all representations that the settings ask for."""
    wanted = set(settings.options.representations)
    try:
        return not wanted or wanted <= npz_names(path)
    except InputError:
        return False


def _earlier_timings(directory: Path) -> tuple[dict[str, Any], list[Stage]]:
    """Read what timings.json says of each model and stage; nothing if it is missing or damaged."""
    try:
        content: Any = read_json(directory / TIMINGS_FILE, AGAIN)
        stages = [
            Stage(name=str(name), seconds=float(row["seconds"]), peak_memory=int(row["peak_memory_gib"] * 2**30))
            for name, row in content["stages"].items()
        ]
        to_json({"models": content["models"], "seconds": [stage.seconds for stage in stages]})  # as it will be written
        return dict(content["models"]), stages
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}, []
