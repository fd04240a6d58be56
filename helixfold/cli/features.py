"""`helixfold features`: from sequences or structures to features, for prediction or training elsewhere."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from data_pipeline.errors import InputError
from data_pipeline.pipeline import Target
from data_pipeline.search.plan import SearchPlan
from helixfold.cli import feature_store
from helixfold.predict import options as predict_options
from helixfold.predict import search
from helixfold.predict.targets import read_targets
from helixfold.write.results import FAILURES_FILE, write_failures

FOR_TRAINING_SETS = (
    *("alignments", "duplicates", "require_alignments", "templates_from", "obsolete", "clusters", "distillation"),
    *("max_release_date", "resolution", "min_length", "workers"),
)
SOME_FAILED = 1


def make_features(
    targets: Sequence[Target], *, output: Path, plan: SearchPlan, part: tuple[int, int] | None = None
) -> int:
    """Search and featurise every target, into `output/<target>/`; 0, or 1 if some target failed.

    A search whose result is there from an earlier run is not made again. A target that fails is recorded in
    `failures.json` and never stops the others. `part` (i, n) is for n machines that share the work and the output
    directory: every n-th target from the i-th on, and a record of failures of its own.
    """
    failures_file = FAILURES_FILE
    if part is not None:
        targets = targets[part[0] :: part[1]]
        failures_file = f"failures-{part[0]:04d}-of-{part[1]:04d}.json"
    search.check_output(output, {target.name: target.sequence for target in targets})
    search.search_for_all(targets, plan, output)
    failures: dict[str, str] = {}
    for target in tqdm(targets, desc="targets", unit="target", disable=None):
        try:
            prepared = search.prepare_in(output / target.name, target, plan)
            tqdm.write(f"{target.name}: {search.summary(prepared)} -> {output / target.name}")
        except (RuntimeError, MemoryError, OSError, ValueError) as error:
            failures[target.name] = f"{type(error).__name__}: {error}"
            tqdm.write(f"{target.name}: failed: {failures[target.name]}", file=sys.stderr)
    write_failures(output, failures, failures_file)
    return SOME_FAILED if failures else 0


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe `helixfold features` to the command line."""
    parser = commands.add_parser(
        "features",
        help="features without prediction: of targets to fold, or a training set from structures and alignments",
        description="Search and featurise targets for `helixfold predict --features`; or, with --structures, make a "
        "training set's feature store. Run the same command again to finish or extend it: nothing is made twice.",
    )
    parser.set_defaults(run=_run)
    parser.add_argument(
        "inputs", nargs="*", type=Path, metavar="FILE", help="targets, as for `helixfold predict`: FASTA, CSV, a3m"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("features"), metavar="DIR", help="(%(default)s)")
    parser.add_argument(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="only part I of N, counted from 0, for several machines; parts of a training set are read as one store",
    )
    predict_options.add_search_options(parser)
    feature_store.add_arguments(parser)
    parser.set_defaults(defaults=vars(parser.parse_args([])))


def _run(options: argparse.Namespace) -> int:
    if options.structures is not None or options.join_shards:
        if options.inputs:
            raise InputError("targets and --structures exclude each other; run the command once for each")
        predict_options.refuse(options, predict_options.OPTIONS, "is for targets to fold, not for a training set")
        return feature_store.run(options)
    predict_options.refuse(options, FOR_TRAINING_SETS, "is for a training set; give --structures DIR")
    targets = predict_options.as_asked(read_targets(options.inputs, options.msa, options.templates), options)
    if not targets:
        raise InputError("there is nothing to do; name a FASTA file, or --structures DIR for a training set")
    if options.shard is not None and not options.shard[0] < options.shard[1]:
        raise InputError(f"a shard is i/n with i from 0 to n - 1, got {options.shard[0]}/{options.shard[1]}")
    return make_features(targets, output=options.output, plan=predict_options.plan_of(options), part=options.shard)


def _shard(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isascii() and number.isdigit() and count.isascii() and count.isdigit()):
        raise argparse.ArgumentTypeError(f"'{text}' is no part such as 0/10")
    return int(number), int(count)
