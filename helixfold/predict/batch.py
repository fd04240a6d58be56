"""All targets of `helixfold predict`: what there is of them already, what is left, and what that will take."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from tqdm import tqdm

from data_pipeline.errors import InputError
from data_pipeline.search.plan import SearchPlan
from helixfold.execution.device import pick_device
from helixfold.execution.stages import Stages
from helixfold.inference import FoldingOptions
from helixfold.parallel.crew import Crew, sharers
from helixfold.predict import memory_plan, relaxation
from helixfold.predict.jobs import Job, Method
from helixfold.predict.lock import output_held, sweep
from helixfold.predict.memory_plan import Forecast, MemoryOptions
from helixfold.predict.record import search_identities
from helixfold.predict.relaxation import ToRelax
from helixfold.predict.resume import Outlook, outlook
from helixfold.predict.runner import FAILURES, SOME_FAILED, Turns, archive, close
from helixfold.predict.search import check_earlier, check_output, search_for_all
from helixfold.report.index import Index
from helixfold.weights.find import find_models

Order = Literal["length", "none", "random"]
_MOST_LINES = 10  # on targets of which there is nothing to say but that they are finished


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """What holds for all targets of a run, beside how each is folded."""

    num_seeds: int = 1
    order: Order = "length"
    overwrite: bool = False
    models_to_relax: ToRelax | None = None  # None: the best, if that can be done and is worth it
    archive: bool = False  # every finished target as one file, too
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.num_seeds < 1:
            raise InputError(f"num_seeds must be at least 1, got {self.num_seeds}")
        if self.order not in get_args(Order):
            raise InputError(f"order must be one of {', '.join(get_args(Order))}, got {self.order!r}")


def predict(
    jobs: Sequence[Job],
    *,
    output: Path,
    plan: SearchPlan | None = None,
    models: Sequence[str] = (),
    weights: Path | None = None,
    options: FoldingOptions | None = None,
    crew: Crew | None = None,
    memory: MemoryOptions | None = None,
    batch: BatchOptions | None = None,
) -> int:
    """Fold every target with every model, into `output/<target>/`; 0, or 1 if some target failed.

    All input is read and checked before anything is written: wrong input is an `InputError`. What an earlier run has
    made from the same is kept, unless told to `overwrite`; a target that fails is recorded in `failures.json` and never
    stops the others. A dry run writes and searches nothing; 1 then says that some target will not fit into memory.

    All processes of a `crew` call this. Each group of them takes the next target that is left when it is free, and
    the first process returns for all.
    """
    options, crew, batch = options or FoldingOptions(), crew or Crew.alone(pick_device()), batch or BatchOptions()
    jobs = _sorted(jobs, batch.order, options.seed, several=crew.mesh.layout.dp > 1)
    loading = Stages(crew.mesh.device)

    def ready() -> Method:
        limits = memory or MemoryOptions()
        searches = plan or SearchPlan()
        with loading.stage("load parameters"):
            found = [limits.limited(model) for model in find_models(models, weights, seed=options.seed)]
            for model in found:
                model.network.to(crew.mesh.device)
        trained = all(model.standing == "trained" for model in found)
        to_relax, remark = relaxation.chosen(batch.models_to_relax, trained=trained)
        if remark is not None and crew.mesh.is_first:
            print(f"helixfold: {remark}", file=sys.stderr)
        check = check_earlier if batch.dry_run else check_output
        check(output, {job.name: job.sequence for job in jobs})
        return Method(
            searches=searches,
            models=tuple(found),
            options=options,
            memory=limits.shared(sharers(), crew.mesh.device),
            crew=crew,
            num_seeds=batch.num_seeds,
            to_relax=to_relax,
            search_identities=search_identities(searches),
        )

    method = crew.world.together(ready)
    if crew.mesh.is_first:
        for note in (note for model in method.models for note in model.notes):
            print(f"helixfold: {note}", file=sys.stderr)
    if batch.dry_run:
        return _forecast(jobs, output, method, batch) if crew.mesh.is_first else 0
    with output_held(output, crew):
        return _fold_all(jobs, output, method, batch, loading)


def _fold_all(jobs: Sequence[Job], output: Path, method: Method, batch: BatchOptions, loading: Stages) -> int:
    crew = method.crew
    # As the first process finds them, for others may begin to write before the last one has looked.
    outlooks = crew.world.together(lambda: _outlooks(jobs, output, method, batch) if crew.mesh.is_first else [])
    found = [Outlook(**told) for told in crew.world.exchange([asdict(each) for each in outlooks])[0]]
    left = [(job, each) for job, each in zip(jobs, found, strict=True) if not each.finished]

    def search() -> None:
        if crew.mesh.is_first:
            sweep(output, [job.name for job in jobs])
            if batch.archive:
                archive([output / each.name for each in found if each.finished])
            search_for_all([job.target for job, _ in left if job.target is not None], method.searches, output)

    with loading.stage("searches for all targets"):
        crew.world.together(search)
    if crew.mesh.is_first:
        crew.queue.begin([job.name for job, _ in left])
    index = Index(output, [job.name for job in jobs])
    turns = Turns(left, output, method, overwrite=batch.overwrite, archive=batch.archive)
    turns.take(index, loading.finished)
    crew.leave()
    return close(crew.queue, output) if crew.mesh.is_first else 0


def _sorted(jobs: Sequence[Job], order: Order, seed: int, *, several: bool) -> list[Job]:
    """By length so that results come early; for several groups, so that none is left with a long one at the end."""
    if order == "none":
        return list(jobs)
    if order == "random":
        return [jobs[number] for number in np.random.default_rng(seed).permutation(len(jobs))]
    return sorted(jobs, key=lambda job: len(job.sequence), reverse=several)


def _outlooks(jobs: Sequence[Job], output: Path, method: Method, batch: BatchOptions) -> list[Outlook]:
    """What will become of each target, said where something is there already."""
    found = [outlook(job, output / job.name, method, overwrite=batch.overwrite) for job in jobs]
    skipped = "would be skipped" if batch.dry_run else "skipped"
    plainly = [each.name for each in found if each.finished and each.remark is None]
    if len(plainly) > _MOST_LINES:
        tqdm.write(f"{len(plainly)} targets: finished before, {skipped} (--overwrite folds them again)")
    for each in found:
        if each.remark is not None and not each.finished:
            tqdm.write(f"{each.name}: {each.remark}")
        elif each.remark is not None or (each.finished and len(plainly) <= _MOST_LINES):
            tqdm.write(f"{each.name}: {each.remark or 'finished before'}, {skipped} (--overwrite folds it again)")
    return found


def _forecast(jobs: Sequence[Job], output: Path, method: Method, batch: BatchOptions) -> int:
    """Say what each target will take; 1 if some will not fit, or is wrong in itself."""
    forecasts: list[Forecast] = []
    failed, predictions = False, 0
    outlooks = _outlooks(jobs, output, method, batch)
    left = [(job, each) for job, each in zip(jobs, outlooks, strict=True) if not each.finished]
    for job, each in left:
        predictions += each.missing
        try:
            forecasts += job.forecast(output / job.name, method)
        except FAILURES as error:
            failed = True
            print(f"{job.name}: would fail: {type(error).__name__}: {error}", file=sys.stderr)
    for line in memory_plan.table(forecasts):
        print(line)
    seeds = "" if method.num_seeds == 1 else f" with {method.num_seeds} seeds each"
    print(
        f"{len(left)} of {len(jobs)} targets to fold: {predictions} prediction{'' if predictions == 1 else 's'} by "
        f"{', '.join(model.preset.name for model in method.models)}{seeds}, {method.num_recycles} recycles; "
        f"to relax: {method.to_relax}"
    )
    return SOME_FAILED if failed or not all(each.plan.fits for each in forecasts) else 0
