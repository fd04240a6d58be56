"""Run `helixfold predict --cluster`: predict a batch on a cluster, or estimate its time with --dry-run."""

import sys
from collections.abc import Sequence
from contextlib import closing

from data_pipeline.features.complexes.complex_input import AnyTarget
from data_pipeline.io.claims import Claims
from data_pipeline.io.extras import require
from helixfold.apps.cluster.batch import read_batch
from helixfold.apps.cluster.schedule import Schedule
from helixfold.apps.options import PredictOptions
from helixfold.apps.predict.runner import close_batch
from helixfold.apps.search import check_earlier
from helixfold.report.page import counted
from helixfold.report.pulldown import write_entries
from helixfold.results.failures import SOME_FAILED
from helixfold.results.file_table import CLUSTER_LOCK
from helixfold.results.lock import locked_directory, only_run
from helixfold.runtime.screen import format_duration, format_estimate, logged_screen
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary


def run(options: PredictOptions, targets: Sequence[AnyTarget] | None = None) -> int:
    """Predict `targets`, or the targets of the options' files, on a cluster.

    Return the exit code: 0, or 1 or 3 if a target failed. All state is in the output directory, so that the same
    command continues after any process has ended. Raise `InputError` for invalid input, and `PoolError` if the nodes of
    a pool are unavailable.
    """
    with logged_screen(options.log_file):
        batch = read_batch(options, targets)
        for note in batch.notes:
            print_note(note)
        sequences = {name: target.sequence for name, target in zip(batch.names, batch.targets, strict=True)}
        if options.dry_run:
            check_earlier(batch.output, sequences)
            return _print_estimate(batch.schedule()) or (SOME_FAILED if batch.invalid else 0)
        require("cluster", "parsl", action="--cluster")
        from helixfold.apps.cluster.driver import Driver  # noqa: PLC0415 (Parsl is an extra)

        schedule = batch.schedule()
        check_earlier(batch.output, sequences)
        with (
            optional_output(),
            locked_directory(batch.output, is_shared=True),
            only_run(batch.output, CLUSTER_LOCK.name()),
            closing(Claims.in_directory(batch.output)) as claims,
        ):
            if batch.pulldown:
                write_entries(batch.output, batch.pulldown)
            if schedule.already_finished:
                print_summary(f"{counted(len(schedule.already_finished), 'target')} finished before, skipped")
            driver = Driver(batch, schedule, claims)
            if schedule.open:
                driver.run()
            status = driver.write_status("ended")
            print_summary(f"{status.finished:,} of {counted(status.targets, 'target')} done")
            return close_batch(batch.failures(schedule), len(batch.targets) + len(batch.invalid), batch.output)


def _print_estimate(schedule: Schedule) -> int:
    """Print the number of targets and the estimated time of each pool. Return the exit code."""
    if schedule.search is not None:
        waiting = counted(len(schedule.to_search), "target")
        print(f"search: {waiting}, {format_estimate(schedule.search_seconds())}")
    print(f"{'pool':20} {'tasks at a time':>15} {'residues':>12} {'targets':>9} {'time of one worker':>18}")
    lengths = [schedule.residues[target] for target in schedule.open]
    # Each target is counted for the smallest pool into which it fits.
    smallest_pools = [
        min(schedule.folding, key=lambda pool: (not pool.fits(length), pool.longest)) for length in lengths
    ]
    for pool in schedule.folding:
        own_lengths = [length for length, each in zip(lengths, smallest_pools, strict=True) if each is pool]
        seconds = format_duration(sum(map(pool.seconds, own_lengths)))
        print(f"{pool.name:20} {pool.slots:15,} {f'<= {pool.longest:,}':>12} {len(own_lengths):9,} {seconds:>18}")
    print(
        f"{counted(len(schedule.open), 'target')} to fold, {len(schedule.already_finished):,} finished before; all in "
        f"{format_estimate(schedule.seconds())}, if all nodes are available"
    )
    for index in schedule.unfit:
        print(f"target {index + 1}: would fail: {schedule.failures[index]}", file=sys.stderr)
    return SOME_FAILED if schedule.unfit else 0
