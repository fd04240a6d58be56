"""`helixfold predict`: from sequences and alignments to structures, one directory per target."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from data_pipeline.errors import InputError
from data_pipeline.search.plan import SearchPlan
from helixfold.cli.main import carry_out
from helixfold.execution import allocator
from helixfold.inference import DTYPES, FoldingOptions
from helixfold.parallel.launch import launch
from helixfold.parallel.worker_group import OtherRankError, join_workers
from helixfold.planning.memory import MemoryOptions
from helixfold.predict import compatibility, devices, presets
from helixfold.predict import options as predict_options
from helixfold.predict.batch import BatchOptions, Order, predict
from helixfold.predict.jobs import Job
from helixfold.predict.runner import close
from helixfold.predict.search import read_features
from helixfold.predict.sizes import positive
from helixfold.predict.targets import INPUT_SUFFIXES, check_names, read_targets
from helixfold.presets import PRESETS

_EXAMPLES = """examples:
  helixfold predict protein.fasta
      one protein, or all records of a file, into predictions/<name>/
  helixfold predict msas/ --preset monomer_ptm --num-seeds 2 --output results
      every a3m of a directory, by five models with two seeds each
  helixfold predict proteins.csv --databases /data/alphafold --dry-run
      what a batch will take, and whether it fits; nothing is done yet

Run the same command again to go on: what is there is not made twice.
"""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe `helixfold predict` to the command line."""
    usual = FoldingOptions()
    parser = commands.add_parser(
        "predict",
        help="from FASTA or a3m to PDB, mmCIF and confidences",
        usage="helixfold predict FILE... [--output DIR] [options]",
        description="Predict protein structures, each into a directory of its own: PDB, mmCIF,\n"
        "confidences, plots and a report. What is done otherwise stands in parentheses.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    what = parser.add_argument_group("what to fold")
    what.add_argument(
        "inputs",
        nargs="*",
        type=Path,
        default=[],
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
    what.add_argument("--overwrite", action="store_true", help="fold again what is finished")
    what.add_argument("--zip", action="store_true", help="pack every finished target into <target>.result.zip, too")
    what.add_argument(
        "--sort-queries-by",
        choices=get_args(Order),
        default="length",
        help="length: short ones first, on several devices long ones (%(default)s)",
    )
    what.add_argument(
        "--dry-run",
        action="store_true",
        help="only say what would be done, what each target will take and whether that fits; nothing is written, "
        "nothing searched",
    )

    predict_options.add_search_options(parser)

    model = parser.add_argument_group("by which models")
    words = "; ".join(f"{name}: {each.summary}" for name, each in presets.EFFORTS.items())
    model.add_argument(
        "--preset",
        choices=list(presets.EFFORTS),
        metavar="NAME",
        help=f"models and effort in one word; options given beside it go before it. {words}",
    )
    model.add_argument(
        "--models",
        nargs="+",
        default=[],
        choices=list(PRESETS),
        metavar="MODEL",
        help="one or several of model_1 to model_5, model_1_ptm to model_5_ptm, small (the demonstration model) and "
        "tiny (random parameters), ranked by their mean pLDDT (model_1_ptm, or what --weights holds)",
    )
    model.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help="parameter file (.npz, .pt, .safetensors) or a directory with params_<model>.npz (what `helixfold weights "
        "download` fetched, or else the demonstration model in the package)",
    )
    model.add_argument("--seed", type=int, default=usual.seed, metavar="N", help="of everything random (%(default)s)")
    model.add_argument(
        "--num-seeds",
        type=positive,
        default=1,
        metavar="N",
        help="predictions by each model, with the seed and those after it; all are ranked together (%(default)s)",
    )
    model.add_argument(
        "--stop-at-score",
        type=float,
        metavar="PLDDT",
        help="make no more passes, and no more predictions, once one has this mean pLDDT (never)",
    )
    how = parser.add_argument_group("with how much effort")
    how.add_argument(
        "--num-recycles",
        type=int,
        metavar="N",
        help="passes after the first (as the model is meant to be used: 3 for DeepMind's; or the preset's)",
    )
    how.add_argument(
        "--recycle-tolerance",
        type=float,
        metavar="ANGSTROM",
        help="stop recycling when distances change by less; 0 never stops early "
        f"({usual.recycle_tolerance:g}, or the preset's)",
    )
    how.add_argument(
        "--num-ensemble",
        type=int,
        metavar="N",
        help=f"draws of the alignment per pass ({usual.num_ensemble}, or the preset's)",
    )
    predict_options.add_relaxation_options(how)
    how.add_argument(
        "--save-logits",
        action="store_true",
        help="write the logits of all heads to logits_<model>.npz; for N residues 512 x N x N bytes of memory more",
    )
    how.add_argument(
        "--dtype", choices=list(DTYPES), default=usual.dtype, help="of the trunk's arithmetic (%(default)s)"
    )
    predict_options.add_device_options(parser.add_argument_group("on which devices"))
    predict_options.add_memory_options(parser)
    compatibility.add_options(parser)
    parser.set_defaults(defaults=vars(parser.parse_args([])))


def _run(options: argparse.Namespace) -> int:
    compatibility.resolve(options)
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
    return run.code if run.unclosed is None else close(run.unclosed, options.output)


def _run_here(options: argparse.Namespace) -> int:
    """In this process, with those that were started beside it."""
    allocator.keep_few_kernels()
    try:
        with join_workers(options.device, options.ranks_per_target) as workers, allocator.freed_memory_kept():
            jobs, chosen, plan, memory = workers.world.run_together(lambda: _read(options, tells=workers.mesh.is_first))
            return predict(
                jobs,
                output=options.output,
                plan=plan,
                models=chosen[0],
                weights=options.weights,
                options=chosen[1],
                workers=workers,
                memory=memory,
                batch=BatchOptions(
                    num_seeds=options.num_seeds,
                    order=options.sort_queries_by,
                    models_to_relax=options.models_to_relax,
                    overwrite=options.overwrite,
                    archive=options.zip,
                    dry_run=options.dry_run,
                ),
            )
    except OtherRankError:
        return 0  # the process where it went wrong says so, and has the exit code


def _read(
    options: argparse.Namespace, *, tells: bool
) -> tuple[list[Job], tuple[Sequence[str], FoldingOptions], SearchPlan, MemoryOptions]:
    """What the command line asks for."""
    models, folding = _folding(options)
    if options.features and not options.inputs:
        predict_options.refuse(
            options, predict_options.OPTIONS, "would do nothing: features are ready; give it the sequences"
        )
    plan = predict_options.plan_of(options, tells=tells)
    _refuse_an_output(options.inputs)
    targets = read_targets(options.inputs, options.msa, options.templates)
    targets = predict_options.as_asked(targets, options, tells=tells)
    ready = read_features(options.features)
    jobs = [*(Job(target=target) for target in targets), *(Job(features=features) for _, features in ready)]
    if not jobs:
        raise InputError("there is nothing to fold; name a FASTA file, an alignment, or --features")
    taken = {target.name: Path("the targets") for target in targets}
    check_names([*taken.items(), *((features.domain_name, path) for path, features in ready)])
    return jobs, (models, folding), plan, predict_options.memory_options(options)


def _folding(options: argparse.Namespace) -> tuple[Sequence[str], FoldingOptions]:
    """Models and presets, from the preset and what is given beside it."""
    given = {name: getattr(options, name) for name in ("num_recycles", "recycle_tolerance", "num_ensemble", "models")}
    if options.preset is not None and not options.models and options.weights is not None and options.weights.is_file():
        raise InputError(
            f"{options.weights} is one file of parameters and --preset names "
            f"{', '.join(presets.EFFORTS[options.preset].models)}; give --models, or a directory of weights"
        )
    found = presets.chosen(options.preset, given)
    return found.pop("models"), FoldingOptions(
        **found,
        logits=options.save_logits,
        seed=options.seed,
        dtype=options.dtype,
        stop_at_score=options.stop_at_score,
    )


def _refuse_an_output(inputs: Sequence[Path]) -> None:
    """Who comes from ColabFold names the output directory last, and it need not be there."""
    if len(inputs) > 1 and not inputs[-1].exists() and not inputs[-1].name.lower().endswith(INPUT_SUFFIXES):
        raise InputError.at(inputs[-1], f"there is no such file; to write results there, give --output {inputs[-1]}")
