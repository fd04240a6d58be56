"""Define the command `helixfold features`, which makes features from sequences, or a training set from structures."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from data_pipeline.io.errors import InputError, input_problems
from helixfold.apps.options import TARGETS, ComplexOptions, PredictOptions, SearchOptions
from helixfold.cli.command import Command
from helixfold.runtime.options import (
    MOST_USED,
    File,
    Output,
    changed_options,
    option_group,
    part_of_all,
    reads,
    values_of,
)
from helixfold.runtime.standard_streams import print_summary
from helixfold.training.options import StoreOptions


@option_group(TARGETS)
@dataclass(frozen=True, kw_only=True)
class FeatureTargets:
    """Options for the inputs and the output of `helixfold features`.

    `shard` is a part and the number of parts, and `shared` lets several runs divide the targets by claims.
    `pulldown` are two FASTA files of baits and preys, and `from_pickle` are AlphaFold's features.pkl files.
    """

    output: Annotated[Output, Parameter(group=MOST_USED)] = Path("features")
    """Output directory for the features or the training set."""
    shard: Annotated[tuple[int, int] | None, reads(part_of_all, "I/N"), Parameter(n_tokens=1)] = None
    """Make only part I of N, counted from 0, to divide the work among machines. The shards of a training set are read
    as one store."""
    shared: bool = False
    """Share the output directory with other runs of the same targets, on any number of machines. Each run claims
    targets before it starts them, and takes over the targets of runs that have died."""
    fetch_inputs: bool = False
    """Also take UniProt accessions (P69905) and PDB ids (4HHB, or 4HHB_A for one chain) instead of files, and fetch
    them: sequences, and structures for --templates (AlphaFold DB's of a UniProt accession)."""
    as_protein: bool = False
    """Read every letter as a residue, even if the sequence looks like DNA, RNA or three-letter codes."""
    skip_invalid: bool = False
    """Leave out targets whose input has an error, and make the features of the others. The errors are printed and
    written to failures.json, and the exit code is 1. Without this, nothing is made."""
    pulldown: Annotated[tuple[File, File] | None, Parameter(metavar="BAITS PREYS")] = None
    """Make the features of every bait with every prey (the records of two FASTA files), searching each chain once.
    `helixfold predict --features` ranks the pairs."""
    pulldown_table: File | None = None
    """With --pulldown: make the complexes in this table (.csv, .tsv; columns bait and prey) instead of all pairs."""
    from_pickle: Annotated[tuple[Path, ...], Parameter(metavar="FILE...")] = ()
    """Convert features.pkl files of AlphaFold 2, one chain each. Only arrays are read; no code in them is run."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FeaturesOptions(StoreOptions, ComplexOptions, SearchOptions, FeatureTargets):
    """All options of `helixfold features`."""


_DEFAULT_OPTIONS = FeaturesOptions()
app = Command(
    name="features",
    usage="helixfold features FILE... [--output DIR] [options]\n"
    "       helixfold features --pulldown BAITS PREYS [--output DIR] [options]\n"
    "       helixfold features --from-pickle features.pkl [--output DIR]\n"
    "       helixfold features --structures DIR [--output DIR] [options]\n"
    "example: helixfold features proteins.fasta --databases /data/alphafold",
)


@app.default
def features(
    *inputs: Annotated[Path, Parameter(name="FILE", group=MOST_USED)],
    options: FeaturesOptions = _DEFAULT_OPTIONS,
) -> int:
    """Make the features of targets, for `helixfold predict --features`. With --structures, make a training set for
    `helixfold train`. Run the same command again to finish or extend the output; finished searches are not repeated,
    but the features of all targets are written again.

    Parameters
    ----------
    inputs
        Sequences to predict: FASTA files, tables (.csv, .tsv with columns id and sequence), a3m alignments, directories
        of such files, or sequences of at least ten residues typed here.
    """
    pairs = options.pulldown or options.pulldown_table
    if options.from_pickle:
        if inputs or set(changed_options(options)) - {"--from-pickle", "--output"}:
            raise InputError("--from-pickle can be combined only with --output")
        from helixfold.apps.search import convert_features

        return convert_features(options.from_pickle, options.output)
    searching = [name for name in changed_options(options, SearchOptions, ComplexOptions) if name != "--threads"]
    if options.from_predictions is not None and options.structures is not None:
        raise InputError("--from-predictions cannot be combined with --structures; pass one of them")
    if options.structures is not None or options.join_shards or options.from_predictions is not None:
        if inputs or pairs:
            raise InputError("targets cannot be combined with --structures; run the command once for each")
        if searching:
            raise InputError(f"{searching[0]} is for targets to fold, not for a training set")
        from helixfold.training.feature_store import make_store

        return make_store(_of_predictions(options), options.output, options.shard)
    if for_training := changed_options(options, StoreOptions):
        raise InputError(f"{for_training[0]} is for a training set; pass --structures DIR")

    from data_pipeline.parse.fasta import directory_name
    from helixfold.apps.fetched_inputs import with_fetched_inputs
    from helixfold.apps.search import make_features
    from helixfold.apps.search_plan import plan_of, with_site_sources
    from helixfold.apps.targets import advise_skipping, failures_of_skipped, requested_targets, skippable_problems

    requested = with_fetched_inputs(PredictOptions(**values_of(options, PredictOptions), inputs=inputs))
    with input_problems(skippable_problems(options.skip_invalid)) as problems:
        targets, entries = requested_targets(requested, announce=True, problems=problems)
        advise_skipping(problems, targets, inputs)
    if not targets and not problems:
        raise InputError("there is nothing to do; pass a FASTA file, or --structures DIR for a training set")
    plan = plan_of(with_site_sources(options, targets))
    invalid = failures_of_skipped(problems, {directory_name(target.name) for target in targets}, announce=True)
    return make_features(
        targets,
        output=options.output,
        plan=plan,
        part=options.shard,
        is_shared=options.shared,
        pulldown=entries,
        invalid=invalid,
    )


def _of_predictions(options: FeaturesOptions) -> StoreOptions:
    """Return the options with selected predictions as structures if `--from-predictions` is passed."""
    if options.from_predictions is None:
        return options
    from helixfold.report.page import counted
    from helixfold.training.finetune.distillation import select_predictions

    selection = select_predictions(options.from_predictions, options.output, options.min_plddt)
    selected = counted(selection.selected, "prediction")
    print_summary(f"{selection.structures}: {selected}, {selection.left_out} left out")
    return replace(
        options,
        structures=selection.structures,
        alignments=options.alignments or selection.alignments,
        distillation=True,
    )
