"""What of a target is there already, and what of it a run is to make: nothing twice, and nothing old taken for new."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from helixfold.execution.stages import Stage
from helixfold.predict.jobs import Job, Method, Wanted
from helixfold.predict.postprocess import has_followed
from helixfold.predict.record import SETTINGS_FILE, Record, clear, read_record, record_of
from helixfold.write.ranking import Finished
from helixfold.write.records import read_json
from helixfold.write.results import RANKING_FILE, TIMINGS_FILE, to_json


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What will become of a target; `remark` is what its user should know of that, if anything."""

    name: str
    finished: bool
    missing: int  # predictions
    remark: str | None = None


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A target whose directory is ready for what is missing, and what earlier runs have said of the rest."""

    record: Record
    missing: tuple[Wanted, ...]
    models: dict[str, Any]  # of timings.json
    stages: tuple[Stage, ...]


def outlook(job: Job, directory: Path, method: Method, *, overwrite: bool) -> Outlook:
    """What a run with this method will do for a target; nothing is written."""
    wanted, there = record_of(job, method), read_record(directory)
    is_marked = (directory / RANKING_FILE).is_file()
    if overwrite or (there is None and not is_marked):
        return Outlook(name=job.name, finished=False, missing=len(method.wanted))
    unlike = _unlike(there, wanted, is_marked=is_marked)
    if there is None or unlike is not None:
        finished = is_marked and not (there is not None and there.gives_way_to(wanted))
        return Outlook(name=job.name, finished=finished, missing=0 if finished else len(method.wanted), remark=unlike)
    record = there.with_more(wanted)
    done = record.finished(directory, len(job.sequence))
    missing = len(_missing(record, done, directory, method))
    finished = not missing and is_marked and has_followed(directory, list(done.values()), method)
    remark = None
    if done and not finished:
        to_do = f"{missing} to be made" if missing else "what follows on them is to be done"
        remark = f"{len(done)} prediction{'' if len(done) == 1 else 's'} there from an earlier run, {to_do}"
    return Outlook(name=job.name, finished=finished, missing=missing, remark=remark)


def _unlike(there: Record | None, wanted: Record, *, is_marked: bool) -> str | None:
    """Why what is there is not what is wanted, and what becomes of it; None if it is."""
    if there is None:
        return f"finished before, but {SETTINGS_FILE} there is missing or damaged, so nobody knows from what"
    if there.gives_way_to(wanted):
        return f"made before with {there.made_with}; begins anew"
    settings = "; ".join(there.differences(wanted))
    if not settings:
        return None
    if is_marked:
        return f"finished before with other settings ({settings})"
    return f"begun before with other settings ({settings}) and not finished; begins anew"


def begin(job: Job, directory: Path, method: Method, *, overwrite: bool) -> Begun:
    """Take up what an earlier run has made from the same; remove the rest, and say what is made here now."""
    wanted, there = record_of(job, method), read_record(directory)
    anew = overwrite or there is None or there.gives_way_to(wanted) or bool(there.differences(wanted))
    if anew or there is None:
        clear(directory)
        record = wanted
    else:
        (directory / RANKING_FILE).unlink(missing_ok=True)
        record = there.with_more(wanted)
    record.write(directory, [note for model in method.models for note in model.notes])
    done = record.finished(directory, len(job.sequence))
    models, stages = ({}, ()) if anew else _earlier_timings(directory)
    return Begun(
        record=record, missing=tuple(_missing(record, done, directory, method)), models=models, stages=tuple(stages)
    )


def _missing(record: Record, done: dict[str, Finished], directory: Path, method: Method) -> list[Wanted]:
    """The predictions that are still to be made: none once one has the score at which no more are."""
    score = method.options.stop_at_score
    if score is not None and any(each.ranking_confidence >= score for each in done.values()):
        return []
    named = [replace(wanted, name=record.name_of(wanted)) for wanted in method.wanted]
    return [
        each
        for each in named
        if each.name not in done or (method.options.logits and not (directory / f"logits_{each.name}.npz").is_file())
    ]


def _earlier_timings(directory: Path) -> tuple[dict[str, Any], list[Stage]]:
    """What is to be added to; what cannot be read does not count."""
    try:
        content: Any = read_json(directory / TIMINGS_FILE)
        stages = [
            Stage(name=str(name), seconds=float(row["seconds"]), peak_memory=int(row["peak_memory_gib"] * 2**30))
            for name, row in content["stages"].items()
        ]
        to_json({"models": content["models"], "seconds": [stage.seconds for stage in stages]})  # as it will be written
        return dict(content["models"]), stages
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}, []
