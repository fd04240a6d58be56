"""`helixfold predict`: from sequences and alignments to structures, one directory per target."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tqdm import tqdm

from data_pipeline.errors import InputError
from data_pipeline.search.plan import SearchPlan
from helixfold.cli import plans, searching
from helixfold.cli.jobs import Job, Method
from helixfold.cli.plans import Forecast, MemoryOptions
from helixfold.cli.searching import check_earlier, check_output, read_features, search_for_all
from helixfold.cli.targets import check_names, read_targets
from helixfold.device import pick_device
from helixfold.execution import allocator
from helixfold.inference import DTYPES, FoldingOptions
from helixfold.presets import PRESETS
from helixfold.stages import Stages
from helixfold.weights.find import find_models
from helixfold.write.results import Prediction, is_complete, write_failures

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
    device: str = "auto",
    memory: MemoryOptions | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
) -> int:
    """Fold every target with every model, into `output/<target>/`; 0, or 1 if some target failed.

    All input is read and checked before anything is written: wrong input is an `InputError`. Finished targets are
    skipped unless `overwrite`; a target that fails is recorded in `failures.json` and never stops the others. With
    `dry_run` nothing is written or searched, only said; 1 then says that some target will not fit into memory.
    """
    options, memory = options or FoldingOptions(), memory or MemoryOptions()
    jobs = sorted(jobs, key=lambda job: len(job.sequence))
    where = pick_device(device)
    loading = Stages(where)
    with loading.stage("load parameters"):
        ready = [memory.limited(model) for model in find_models(models, weights, seed=options.seed)]
        for model in ready:
            model.network.to(where)
    check = check_earlier if dry_run else check_output
    check(output, {job.name: job.sequence for job in jobs})
    for model in ready:
        for note in model.notes:
            print(f"helixfold: {note}", file=sys.stderr)

    method = Method(searches=plan or SearchPlan(), models=tuple(ready), options=options, memory=memory, device=where)
    names = [model.preset.name for model in ready]
    finished = {job.name for job in jobs if not overwrite and is_complete(output / job.name, names)}
    if dry_run:
        for name in sorted(finished):
            print(f"{name}: finished before, would be skipped (--overwrite folds it again)")
        return _forecast([job for job in jobs if job.name not in finished], output, method)
    left = [job.target for job in jobs if job.target is not None and job.name not in finished]
    with loading.stage("searches for all targets"):
        search_for_all(left, method.searches, output)
    failures: dict[str, str] = {}
    bar = tqdm(jobs, desc="targets", unit="target", disable=None)
    for job in bar:
        bar.set_postfix_str(f"{job.name}, {len(job.sequence)} residues")
        directory = output / job.name
        if job.name in finished:
            tqdm.write(f"{job.name}: finished before, skipped (--overwrite folds it again)")
            continue
        try:
            stages = Stages(where, loading.finished)
            predictions = job.fold(directory, method, stages)
            tqdm.write(_summary(directory, predictions))
        except _FAILURES as error:
            failures[job.name] = f"{type(error).__name__}: {error}"
            tqdm.write(f"{job.name}: failed: {failures[job.name]}", file=sys.stderr)
    write_failures(output, failures)
    if failures:
        print(f"helixfold: {len(failures)} of {len(jobs)} targets failed, see {output}", file=sys.stderr)
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


def _summary(directory: Path, predictions: Sequence[Prediction]) -> str:
    best = max(predictions, key=lambda prediction: prediction.ranking_confidence)
    ptm = "" if best.ptm is None else f", pTM {best.ptm:.2f}"
    plural = "" if best.num_recycles == 1 else "s"
    recycles = f"{best.num_recycles} recycle{plural}{' (settled)' if best.converged else ''}"
    return f"{directory.name}: mean pLDDT {best.ranking_confidence:.1f}{ptm}, {best.model}, {recycles} -> {directory}"


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
    how.add_argument("--seed", type=int, default=defaults.seed, metavar="N", help="of everything random (%(default)s)")
    how.add_argument(
        "--dtype", choices=list(DTYPES), default=defaults.dtype, help="of the trunk's arithmetic (%(default)s)"
    )
    how.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps (%(default)s)")
    plans.add_options(parser)
    parser.set_defaults(defaults=vars(parser.parse_args([])))


def _run(options: argparse.Namespace) -> int:
    folding = FoldingOptions(
        num_recycles=options.num_recycles,
        recycle_tolerance=options.recycle_tolerance,
        num_ensemble=options.num_ensemble,
        logits=options.save_logits,
        seed=options.seed,
        dtype=options.dtype,
    )
    if options.features and not options.inputs:
        searching.refuse(options, searching.OPTIONS, "would do nothing: features are ready; give it the sequences")
    jobs = [Job(target=target) for target in read_targets(options.inputs, options.msa, options.templates)]
    jobs += [Job(features=features) for _, features in read_features(options.features)]
    if not jobs:
        raise InputError("there is nothing to fold; name a FASTA file, an alignment, or --features")
    check_names([job.name for job in jobs])
    allocator.keep_few_kernels()
    with allocator.freed_memory_kept():
        return predict(
            jobs,
            output=options.output,
            plan=searching.plan_of(options),
            models=options.models,
            weights=options.weights,
            options=folding,
            device=options.device,
            memory=plans.memory_options(options),
            overwrite=options.overwrite,
            dry_run=options.dry_run,
        )
