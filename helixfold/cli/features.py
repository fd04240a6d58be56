"""Define the command `helixfold features`, which makes features from sequences, or a training set from structures."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from data_pipeline.errors import InputError, input_problems
from helixfold.apps.predict.options import TARGETS, ComplexOptions, PredictOptions, SearchOptions
from helixfold.cli.command import Command
from helixfold.options import MOST_USED, File, Output, given, part_of_all, reads
from helixfold.standard_streams import print_summary
from helixfold.training.options import StoreOptions

_SEARCH, _COMPLEXES, _STORE = SearchOptions(), ComplexOptions(), StoreOptions()
_STORES = Group.create_ordered("Training sets")
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
    output: Annotated[Output, Parameter(group=MOST_USED)] = Path("features"),
    shard: Annotated[tuple[int, int] | None, reads(part_of_all, "I/N"), Parameter(n_tokens=1, group=TARGETS)] = None,
    shared: Annotated[bool, Parameter(group=TARGETS)] = False,
    as_protein: Annotated[bool, Parameter(group=TARGETS)] = False,
    skip_invalid: Annotated[bool, Parameter(group=TARGETS)] = False,
    pulldown: Annotated[tuple[File, File] | None, Parameter(metavar="BAITS PREYS", group=TARGETS)] = None,
    pulldown_table: Annotated[File | None, Parameter(group=TARGETS)] = None,
    from_pickle: Annotated[tuple[Path, ...], Parameter(metavar="FILE...", group=TARGETS)] = (),
    search: SearchOptions = _SEARCH,
    complexes: ComplexOptions = _COMPLEXES,
    store: Annotated[StoreOptions, Parameter(group=_STORES)] = _STORE,
) -> int:
    """Make the features of targets, for `helixfold predict --features`. With --structures, make a training set for
    `helixfold train`. Run the same command again to finish or extend the output.

    Parameters
    ----------
    inputs
        Sequences to predict: FASTA files, tables (.csv, .tsv with columns id and sequence), a3m alignments, directories
        of such files, or sequences typed here.
    output
        Output directory for the features or the training set.
    shard
        Make only part I of N, counted from 0, to divide the work among machines. The shards of a training set are read
        as one store.
    shared
        Share the output directory with other runs of the same targets, on any number of machines. Each run claims
        targets before it starts them, and takes over the targets of runs that have died.
    as_protein
        Read every letter as a residue, even if the sequence looks like DNA, RNA or three-letter codes.
    skip_invalid
        Leave out targets whose input has an error, and make the features of the others. The errors are printed and
        written to failures.json, and the exit code is 1. Without this, nothing is made.
    pulldown
        Make the features of every bait with every prey (the records of two FASTA files), searching each chain once.
        `helixfold predict --features` ranks the pairs.
    pulldown_table
        With --pulldown: make the complexes in this table (.csv, .tsv; columns bait and prey) instead of all pairs.
    from_pickle
        Convert features.pkl files of AlphaFold 2, one chain each. Only arrays are read; no code in them is run.
    """
    pairs = pulldown or pulldown_table
    if from_pickle:
        if inputs or shard or shared or skip_invalid or pairs or given(search) or given(complexes) or given(store):
            raise InputError("--from-pickle converts ready features, and only --output goes with it")
        from helixfold.apps.predict.search import convert_features

        return convert_features(from_pickle, output)
    searching = [name for name in (*given(search), *given(complexes)) if name != "--threads"]
    if store.from_predictions is not None and store.structures is not None:
        raise InputError("--from-predictions stands in place of --structures; name one of them")
    if store.structures is not None or store.join_shards or store.from_predictions is not None:
        if inputs or pairs:
            raise InputError("targets and --structures exclude each other; run the command once for each")
        if searching:
            raise InputError(f"{searching[0]} is for targets to fold, not for a training set")
        from helixfold.training.feature_store import make_store

        return make_store(_of_predictions(store, output), output, shard)
    if for_training := given(store):
        raise InputError(f"{for_training[0]} is for a training set; give --structures DIR")

    from data_pipeline.parse.fasta import directory_name
    from helixfold.apps.predict.search import make_features
    from helixfold.apps.predict.search_plan import plan_of, with_site_sources
    from helixfold.apps.predict.targets import left_out_failures, requested_targets, skippable_problems

    options = PredictOptions(
        **vars(search),
        **vars(complexes),
        inputs=inputs,
        pulldown=pulldown,
        pulldown_table=pulldown_table,
        output=output,
        as_protein=as_protein,
    )
    with input_problems(skippable_problems(skip_invalid)) as problems:
        targets, entries = requested_targets(options, announce=True, problems=problems)
    if not targets and not problems:
        raise InputError("there is nothing to do; name a FASTA file, or --structures DIR for a training set")
    if shard is not None and not shard[0] < shard[1]:
        raise InputError(f"a shard is i/n with i from 0 to n - 1, got {shard[0]}/{shard[1]}")
    plan = plan_of(with_site_sources(search, targets))
    invalid = left_out_failures(problems, {directory_name(target.name) for target in targets}, announce=True)
    return make_features(
        targets, output=output, plan=plan, part=shard, is_shared=shared, pulldown=entries, invalid=invalid
    )


def _of_predictions(store: StoreOptions, output: Path) -> StoreOptions:
    """Return the options for a training set of chosen predictions, which are copied, if they ask for one."""
    if store.from_predictions is None:
        return store
    from helixfold.finetune.distillation import select_predictions

    chosen = select_predictions(store.from_predictions, output, store.min_plddt)
    print_summary(f"{chosen.structures}: {chosen.taken} predictions, {chosen.left_out} left out")
    return replace(
        store, structures=chosen.structures, alignments=store.alignments or chosen.alignments, distillation=True
    )
