"""`helixfold features --structures`: a training set's feature store, from structures and alignments."""

import argparse
import os
import sys
from pathlib import Path

from data_pipeline.datasets.build import FAILURES_FILE, REFUSED_FILE, BuildOptions, BuildReport, build_store
from data_pipeline.datasets.chains import ChainFilter
from data_pipeline.datasets.clustering import join_shards
from data_pipeline.datasets.layout import AlignmentDirectory, read_duplicates
from data_pipeline.datasets.recipe import Recipe, TemplateLibrary
from data_pipeline.errors import InputError
from data_pipeline.templates.filters import TemplateOptions
from data_pipeline.templates.source import StructureSource, read_obsolete
from helixfold.predict.options import calendar_date

SOME_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe what only training sets need to the command line."""
    defaults = ChainFilter()
    what = parser.add_argument_group("a training set: from what")
    what.add_argument(
        "--structures", type=Path, metavar="DIR", help="mmCIF or PDB files (.gz too), in one directory or divided"
    )
    what.add_argument(
        "--alignments",
        type=Path,
        metavar="DIR",
        help="a directory with one directory for each chain (1abc_A), as OpenProteinSet and OpenFold lay them out; "
        "without it, each chain has only its own sequence",
    )
    what.add_argument(
        "--duplicates", type=Path, metavar="FILE", help="chains that share one alignment (duplicate_pdb_chains.txt)"
    )
    what.add_argument("--require-alignments", action="store_true", help="leave out chains that have no alignment")
    what.add_argument(
        "--templates-from", type=Path, metavar="DIR", help="mmCIF files for the template hits (hhr) of each chain"
    )
    what.add_argument("--obsolete", type=Path, metavar="FILE", help="the PDB's obsolete.dat, for --templates-from")
    what.add_argument(
        "--clusters",
        type=Path,
        metavar="FILE",
        help="one cluster in each line, or a table of chain and cluster; without it, mmseqs2 clusters at 40%% identity",
    )
    what.add_argument(
        "--distillation", action="store_true", help="the structures are predictions, with pLDDT as B factors"
    )

    which = parser.add_argument_group("a training set: which chains")
    which.add_argument("--max-release-date", type=calendar_date, metavar="DATE", help="such as 2018-04-30")
    which.add_argument(
        "--resolution",
        type=float,
        default=defaults.below_resolution,
        metavar="ANGSTROM",
        help="below (%(default)s, as AlphaFold); NMR has none and passes",
    )
    which.add_argument(
        "--min-length", type=int, default=defaults.min_length, metavar="N", help="residues (%(default)s)"
    )

    how = parser.add_argument_group("a training set: how")
    how.add_argument("--join-shards", action="store_true", help="cluster the chains of all finished shards together")
    how.add_argument("--workers", type=int, metavar="N", help="processes (as many as there are CPUs)")


def run(options: argparse.Namespace) -> int:
    """Build the store; 0, or 1 if some chains failed."""
    if options.join_shards:
        return _join(options)
    if options.structures is None:
        raise InputError("give --structures DIR, the structures to train on")
    for given, needed, problem in (
        (options.duplicates, options.alignments, "--duplicates needs --alignments DIR, the alignments that are shared"),
        (options.require_alignments, options.alignments, "--require-alignments needs --alignments DIR"),
        (
            options.templates_from,
            options.alignments,
            "--templates-from needs --alignments DIR, where the template hits (hhr) lie",
        ),
        (options.obsolete, options.templates_from, "--obsolete needs --templates-from DIR"),
    ):
        if given and needed is None:
            raise InputError(problem)
    try:
        shard, shards = options.shard or (None, 1)
        build = BuildOptions(
            structures=options.structures,
            output=options.output,
            clusters=options.clusters,
            shard=shard,
            shards=shards,
            workers=_cpus() if options.workers is None else options.workers,
        )
        chain_filter = ChainFilter(
            below_resolution=options.resolution,
            latest_release=options.max_release_date,
            min_length=options.min_length,
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    duplicates = None if options.duplicates is None else read_duplicates(options.duplicates)
    obsolete = None if options.obsolete is None else read_obsolete(options.obsolete)
    recipe = Recipe(
        filter=chain_filter,
        alignments=None if options.alignments is None else AlignmentDirectory(options.alignments, duplicates),
        require_alignments=options.require_alignments,
        templates=None
        if options.templates_from is None
        else TemplateLibrary(
            source=StructureSource(options.templates_from, obsolete=obsolete), options=TemplateOptions()
        ),
        is_distillation=options.distillation,
    )
    report = build_store(build, recipe)
    _say(report)
    return SOME_FAILED if report.failed else 0


def _join(options: argparse.Namespace) -> int:
    store, notes = join_shards(options.output, options.clusters)
    for note in notes:
        print(f"helixfold: {note}", file=sys.stderr)
    clusters = len({entry.cluster for entry in store.entries})
    print(f"{options.output}: {len(store.entries)} chains in {clusters} clusters")
    return 0


def _say(report: BuildReport) -> None:
    for note in report.notes:
        print(f"helixfold: {note}", file=sys.stderr)
    print(f"{report.directory}: {report.chains} chains, {report.made} made now; {len(report.refused)} left out")
    if report.refused:
        print(f"helixfold: why chains were left out is in {report.directory / REFUSED_FILE}", file=sys.stderr)
    if report.failed:
        name, reason = next(iter(sorted(report.failed.items())))
        print(f"helixfold: {len(report.failed)} failed, see {report.directory / FAILURES_FILE}", file=sys.stderr)
        print(f"helixfold: the first of them, {name}: {reason}", file=sys.stderr)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
