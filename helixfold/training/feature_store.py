"""Build the feature store of a training set from structures and alignments, or join its shards."""

import sys
from pathlib import Path

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.processors import available_processors
from data_pipeline.residues import RESTYPES_WITH_X
from data_pipeline.templates.filters import TemplateOptions
from data_pipeline.templates.structure_directory import StructureDirectory, read_obsolete
from data_pipeline.training_sets.assembly_record import SKIPPED_ASSEMBLIES_FILE
from data_pipeline.training_sets.build import FAILURES_FILE, REFUSED_FILE, BuildOptions, BuildReport, build_store
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.cluster_split import (
    nearest_chains,
    split_by_cluster,
    with_joined_clusters,
    write_split,
)
from data_pipeline.training_sets.clustering import join_shards
from data_pipeline.training_sets.record_builder import RecordBuilder, TemplateLibrary
from data_pipeline.training_sets.source_files import AlignmentDirectory, read_chain_names, read_duplicates
from data_pipeline.training_sets.store import FeatureStore
from helixfold.report.page import counted
from helixfold.results.failures import SOME_FAILED
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary
from helixfold.training.options import StoreOptions


@optional_output()
def make_store(options: StoreOptions, output: Path, shard: tuple[int, int] | None = None) -> int:
    """Build a feature store in `output`, or join its finished shards. Return 0, or 1 if some chains failed.

    `shard` is (index, count) to build one shard only. A summary is printed. With `options.hold_out`, lists of held-out
    chains are written, too, unless one shard is built. Raise `InputError` for options that cannot be combined, and for
    files that cannot be read.
    """
    if options.join_shards:
        return _join(output, options)
    if options.structures is None:
        raise InputError("pass --structures DIR, the structures to train on")
    for option, required, problem in (
        (options.duplicates, options.alignments, "--duplicates needs --alignments DIR, the alignments that are shared"),
        (options.require_alignments, options.alignments, "--require-alignments needs --alignments DIR"),
        (
            options.templates_from,
            options.alignments,
            "--templates-from needs --alignments DIR, which has the template hits (hhr)",
        ),
        (options.obsolete, options.templates_from, "--obsolete needs --templates-from DIR"),
        (
            options.templates_of_any_date,
            options.templates_from,
            "--templates-of-any-date needs --templates-from DIR",
        ),
    ):
        if option and required is None:
            raise InputError(problem)
    try:
        index, count = shard or (None, 1)
        build = BuildOptions(
            structures=options.structures,
            output=output,
            clusters=options.clusters,
            shard=index,
            shards=count,
            workers=available_processors() if options.workers is None else options.workers,
        )
        chain_filter = ChainFilter(
            below_resolution=options.max_resolution,
            latest_release=options.max_release_date,
            min_length=options.min_length,
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    duplicates = None if options.duplicates is None else read_duplicates(options.duplicates)
    obsolete = None if options.obsolete is None else read_obsolete(options.obsolete)
    builder = RecordBuilder(
        filter=chain_filter,
        alignments=None if options.alignments is None else AlignmentDirectory(options.alignments, duplicates),
        require_alignments=options.require_alignments,
        templates=None
        if options.templates_from is None
        else TemplateLibrary(
            source=StructureDirectory(options.templates_from, obsolete=obsolete),
            options=TemplateOptions(),
            any_date=options.templates_of_any_date,
        ),
        is_distillation=options.distillation,
        assemblies=options.assemblies,
        only=None if options.chains is None else read_chain_names(options.chains),
    )
    report = build_store(build, builder)
    _print_report(report)
    # Chains of unreadable files and of other shards have no known names.
    if builder.only is not None and shard is None and not report.failed:
        names = {entry.name for entry in FeatureStore.open(output).entries} | report.refused.keys()
        if missing := sorted(builder.only - names):
            rest = f" and {len(missing) - 5:,} more" if len(missing) > 5 else ""
            problem = f"no structure has the chains {', '.join(map(printable, missing[:5]))}{rest}"
            raise InputError(f"{options.chains}: {problem}; correct the names or leave them out")
    if options.hold_out is not None and shard is None:
        _hold_out(FeatureStore.open(output), output, options.hold_out)
    return SOME_FAILED if report.failed else 0


def _join(output: Path, options: StoreOptions) -> int:
    """Join the finished shards of a store and print a summary."""
    store, notes = join_shards(output, options.clusters)
    for note in notes:
        print_note(note)
    count = len({entry.cluster for entry in store.entries})
    print_summary(f"{output}: {counted(len(store.entries), 'chain')} in {counted(count, 'cluster')}")
    if options.hold_out is not None:
        _hold_out(store, output, options.hold_out)
    return 0


def _hold_out(store: FeatureStore, output: Path, fraction: float) -> None:
    """Write the list of held-out chains, and their similarity to the other chains."""
    held_out = split_by_cluster(with_joined_clusters(store.entries, store.assemblies), fraction)
    assemblies = [each.name for each in store.assemblies if not set(held_out).isdisjoint(each.chains)]
    sequences = {
        entry.name: "".join(RESTYPES_WITH_X[residue] for residue in store.load(entry.name)[0].aatype)
        for entry in store.entries
    }
    nearest = list(nearest_chains(sequences, held_out))
    write_split(output, held_out, nearest, assemblies, sequences)
    closest = max(nearest, key=lambda each: each.identity * each.coverage)
    similarity = "no training chain resembles a held-out one"
    if closest.nearest:
        similarity = (
            f"the most similar, {closest.name}, has {closest.identity:.0%} identity over {closest.coverage:.0%} of its "
            f"residues to {closest.nearest}"
        )
    verb = "is" if len(held_out) == 1 else "are"
    print_summary(f"{output}: {len(held_out)} of {len(store.entries)} chains {verb} held out; {similarity}")
    if store.assemblies:
        verb = "is" if len(assemblies) == 1 else "are"
        print_summary(f"{output}: {len(assemblies)} of {len(store.assemblies)} assemblies {verb} held out with them")


def _print_report(report: BuildReport) -> None:
    """Print a summary of a build, and where the reasons for chains that were left out or failed are written."""
    for note in report.notes:
        print_note(note)
    left_out = len(report.refused)
    chains = counted(report.chains, "chain")
    print_summary(f"{report.directory}: {chains}, {report.made} of them new; {left_out} left out")
    if report.assemblies or report.skipped_assemblies:
        assemblies = counted(report.assemblies, "assembly", "assemblies")
        print_summary(f"{report.directory}: {assemblies}; {len(report.skipped_assemblies)} left out")
    if report.skipped_assemblies:
        place = report.directory / SKIPPED_ASSEMBLIES_FILE
        print_note(f"the reasons why assemblies were left out are in {place}")
    if report.refused:
        print_note(f"the reasons why chains were left out are in {report.directory / REFUSED_FILE}")
    if report.failed:
        name, reason = next(iter(sorted(report.failed.items())))
        print(f"helixfold: {len(report.failed)} failed, see {report.directory / FAILURES_FILE}", file=sys.stderr)
        print(f"helixfold: the first failure, {name}: {reason}", file=sys.stderr)
