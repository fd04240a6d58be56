"""`helixfold predict`: from sequences and alignments to structures, one directory per target."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tqdm import tqdm

from data_pipeline.errors import InputError
from data_pipeline.search.plan import SearchPlan
from helixfold.cli import devices, plans, searching
from helixfold.cli.folding import fold_target
from helixfold.cli.jobs import Job, Method
from helixfold.cli.main import carry_out
from helixfold.cli.plans import Forecast, MemoryOptions
from helixfold.cli.searching import check_earlier, check_output, read_features, search_for_all
from helixfold.cli.sizes import positive
from helixfold.cli.targets import check_names, read_targets
from helixfold.device import pick_device
from helixfold.execution import allocator
from helixfold.inference import DTYPES, FoldingOptions
from helixfold.parallel.crew import Crew, ElsewhereError, assembled, sharers
from helixfold.parallel.launch import launch
from helixfold.parallel.queue import Queue
from helixfold.presets import PRESETS
from helixfold.stages import Stages
from helixfold.weights.find import find_models
from helixfold.write.ranking import Finished, read_finished
from helixfold.write.results import RANKING_FILE, write_failures

SOME_FAILED = 1
# What goes wrong with one target and leaves the others alone.
_FAILURES = (RuntimeError, MemoryError, OSError, ValueError)


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
    num_seeds: int = 1,
    overwrite: bool = False,
    dry_run: bool = False,
) -> int:
    """Fold every target with every model, into `output/<target>/`; 0, or 1 if some target failed.

    All input is read and checked before anything is written: wrong input is an `InputError`. Finished targets are
    skipped unless `overwrite`; a target that fails is recorded in `failures.json` and never stops the others. With
    `dry_run` nothing is written or searched, only said; 1 then says that some target will not fit into memory.

    All processes of a `crew` call this. Each group of them takes the longest target that is left when it is free, and
    the first process returns for all.
    """
    options, crew = options or FoldingOptions(), crew or Crew.alone(pick_device())
    several = crew.mesh.layout.dp > 1
    jobs = sorted(jobs, key=lambda job: len(job.sequence), reverse=several)
    loading = Stages(crew.mesh.device)

    def ready() -> Method:
        limits = memory or MemoryOptions()
        with loading.stage("load parameters"):
            found = [limits.limited(model) for model in find_models(models, weights, seed=options.seed)]
            for model in found:
                model.network.to(crew.mesh.device)
        check = check_earlier if dry_run else check_output
        check(output, {job.name: job.sequence for job in jobs})
        limits = limits.shared(sharers(), crew.mesh.device)
        return Method(
            searches=plan or SearchPlan(),
            models=tuple(found),
            options=options,
            memory=limits,
            crew=crew,
            num_seeds=num_seeds,
        )

    method = crew.world.together(ready)
    names = [wanted.name for wanted in method.wanted]
    # As the first process finds it, for others may begin to write before the last one has looked.
    finished = crew.world.exchange(
        [job.name for job in jobs if not overwrite and _is_complete(output / job.name, names)]
    )[0]
    left = [job for job in jobs if job.name not in finished]
    if crew.mesh.is_first:
        for note in (note for model in method.models for note in model.notes):
            print(f"helixfold: {note}", file=sys.stderr)
        remark = "would be skipped" if dry_run else "skipped"
        for name in finished:
            tqdm.write(f"{name}: finished before, {remark} (--overwrite folds it again)")
    if dry_run:
        return _forecast(left, output, method) if crew.mesh.is_first else 0

    def search() -> None:
        if crew.mesh.is_first:
            search_for_all([job.target for job in left if job.target is not None], method.searches, output)

    with loading.stage("searches for all targets"):
        crew.world.together(search)
    if crew.mesh.is_first:
        crew.queue.begin([job.name for job in left])
    bar = tqdm(crew.taken(len(left)), total=len(left), desc="targets", unit="target", disable=method.no_bars)
    for number in bar:
        job = left[number]
        bar.set_postfix_str(f"{job.name}, {len(job.sequence)} residues")
        failure = _failure_of(job, output / job.name, method, Stages(crew.mesh.device, loading.finished))
        if crew.leads:
            crew.queue.finished(number, failure)
    crew.leave()
    return _close(crew.queue, output) if crew.mesh.is_first else 0


def _failure_of(job: Job, directory: Path, method: Method, stages: Stages) -> str | None:
    """Fold a target; why it failed, if it did."""
    try:
        if order := fold_target(job, directory, method, stages):
            method.say(_summary(directory, order))
    except _FAILURES as error:
        failure = str(error) if isinstance(error, ElsewhereError) else f"{type(error).__name__}: {error}"
        method.say(f"{job.name}: failed: {failure}", file=sys.stderr)
        return failure
    return None


def _is_complete(directory: Path, names: Iterable[str]) -> bool:
    """Whether all these predictions of a target are there and ranked, so that it can be skipped."""
    return (directory / RANKING_FILE).is_file() and all(read_finished(directory, name) for name in names)


def _close(queue: Queue, output: Path) -> int:
    """Once for all processes: what failed, in a file and as the exit code."""
    failures = queue.failures()
    write_failures(output, failures)
    if failures:
        print(f"helixfold: {len(failures)} of {len(queue)} targets failed, see {output}", file=sys.stderr)
    return SOME_FAILED if failures else 0


def _forecast(jobs: Iterable[Job], output: Path, method: Method) -> int:
    """Say what each target will take; 1 if some will not fit, or is wrong in itself."""
    forecasts: list[Forecast] = []
    failed = False
    for job in jobs:
        try:
            forecasts += job.forecast(output / job.name, method)
        except _FAILURES as error:
            failed = True
            print(f"{job.name}: would fail: {type(error).__name__}: {error}", file=sys.stderr)
    for line in plans.table(forecasts):
        print(line)
    return SOME_FAILED if failed or not all(each.plan.fits for each in forecasts) else 0


def _summary(directory: Path, order: Sequence[Finished]) -> str:
    best = order[0]
    ptm = "" if best.ptm is None else f", pTM {best.ptm:.2f}"
    plural = "" if best.num_recycles == 1 else "s"
    recycles = f"{best.num_recycles} recycle{plural}{' (settled)' if best.converged else ''}"
    return f"{directory.name}: mean pLDDT {best.ranking_confidence:.1f}{ptm}, {best.name}, {recycles} -> {directory}"


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe `helixfold predict` to the command line."""
    defaults = FoldingOptions()
    parser = commands.add_parser(
        "predict",
        help="from FASTA or a3m to PDB, mmCIF and confidences",
        description="Predict protein structures; every target gets a directory with PDB, mmCIF, confidences and plots.",
    )
    parser.set_defaults(run=_run)
    what = parser.add_argument_group("what to fold")
    what.add_argument(
        "inputs",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="FASTA (all records), CSV (id,sequence), a3m alignments (.gz too), or directories of them",
    )
    what.add_argument(
        "--features",
        nargs="+",
        type=Path,
        default=[],
        metavar="PATH",
        help="what `helixfold features` made: features.npz files or its output directory",
    )
    what.add_argument(
        "-o", "--output", type=Path, default=Path("predictions"), metavar="DIR", help="where to write (%(default)s)"
    )
    what.add_argument("--overwrite", action="store_true", help="fold finished targets again")

    searching.add_options(parser)

    model = parser.add_argument_group("with which model")
    model.add_argument(
        "--models",
        nargs="+",
        default=[],
        choices=list(PRESETS),
        metavar="MODEL",
        help=f"one or several of {', '.join(PRESETS)}",
    )
    model.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help="parameter file (.npz, .pt, .safetensors) or a directory with params_<model>.npz; "
        "without it, downloaded ones are used, or else the small untrained model",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--num-recycles",
        type=int,
        default=defaults.num_recycles,
        metavar="N",
        help="passes after the first (%(default)s)",
    )
    how.add_argument(
        "--recycle-tolerance",
        type=float,
        default=defaults.recycle_tolerance,
        metavar="ANGSTROM",
        help="stop recycling when distances change by less; 0 never stops early (%(default)s)",
    )
    how.add_argument(
        "--num-ensemble",
        type=int,
        default=defaults.num_ensemble,
        metavar="N",
        help="draws of the alignment per pass (%(default)s)",
    )
    how.add_argument(
        "--save-logits",
        action="store_true",
        help="write the logits of all heads to logits_<model>.npz; for N residues 512 x N x N bytes of memory more",
    )
    how.add_argument(
        "--num-seeds",
        type=positive,
        default=1,
        metavar="N",
        help="predictions by each model, with the seed and those after it; all are ranked together (%(default)s)",
    )
    how.add_argument(
        "--stop-at-score",
        type=float,
        metavar="PLDDT",
        help="make no more passes, and no more predictions, once one has this mean pLDDT (never)",
    )
    how.add_argument("--seed", type=int, default=defaults.seed, metavar="N", help="of everything random (%(default)s)")
    how.add_argument(
        "--dtype", choices=list(DTYPES), default=defaults.dtype, help="of the trunk's arithmetic (%(default)s)"
    )
    devices.add_options(how)
    plans.add_options(parser)
    parser.set_defaults(defaults=vars(parser.parse_args([])))


def _run(options: argparse.Namespace) -> int:
    several = devices.processes(options.devices, options.device, options.ranks_per_target)
    if several is None:
        return _run_here(options)
    run = launch(
        carry_out,
        argparse.Namespace(**{**vars(options), "devices": None}),
        count=several.count,
        ranks_per_task=options.ranks_per_target,
        environment=several.environment,
    )
    return run.code if run.unclosed is None else _close(run.unclosed, options.output)


def _run_here(options: argparse.Namespace) -> int:
    """In this process, with those that were started beside it."""
    allocator.keep_few_kernels()
    try:
        with assembled(options.device, options.ranks_per_target) as crew, allocator.freed_memory_kept():
            jobs, folding, plan, memory = crew.world.together(lambda: _read(options))
            return predict(
                jobs,
                output=options.output,
                plan=plan,
                models=options.models,
                weights=options.weights,
                options=folding,
                crew=crew,
                memory=memory,
                num_seeds=options.num_seeds,
                overwrite=options.overwrite,
                dry_run=options.dry_run,
            )
    except ElsewhereError:
        return 0  # the process where it went wrong says so, and has the exit code


def _read(options: argparse.Namespace) -> tuple[list[Job], FoldingOptions, SearchPlan, MemoryOptions]:
    """What the command line asks for."""
    folding = FoldingOptions(
        num_recycles=options.num_recycles,
        recycle_tolerance=options.recycle_tolerance,
        num_ensemble=options.num_ensemble,
        logits=options.save_logits,
        seed=options.seed,
        dtype=options.dtype,
        stop_at_score=options.stop_at_score,
    )
    if options.features and not options.inputs:
        searching.refuse(options, searching.OPTIONS, "would do nothing: features are ready; give it the sequences")
    targets = read_targets(options.inputs, options.msa, options.templates)
    ready = read_features(options.features)
    jobs = [*(Job(target=target) for target in targets), *(Job(features=features) for _, features in ready)]
    if not jobs:
        raise InputError("there is nothing to fold; name a FASTA file, an alignment, or --features")
    taken = {target.name: Path("the targets") for target in targets}
    check_names([*taken.items(), *((features.domain_name, path) for path, features in ready)])
    return jobs, folding, searching.plan_of(options), plans.memory_options(options)
