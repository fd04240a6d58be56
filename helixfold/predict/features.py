"""Search and make the features of targets, for prediction at another time or on another machine."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from data_pipeline.pipeline import Target
from data_pipeline.search.plan import SearchPlan
from helixfold.predict.search import check_output, prepare_in, search_for_all, summary
from helixfold.write.results import FAILURES_FILE, write_failures

SOME_FAILED = 1


def make_features(
    targets: Sequence[Target], *, output: Path, plan: SearchPlan, part: tuple[int, int] | None = None
) -> int:
    """Search and make features for every target into `output/<target>/`; return 0, or 1 if some target failed.

    Results of earlier searches are used again. A target that fails is recorded in `failures.json` and does not stop the
    others. With `part` (i, n), n machines divide the targets and use one output directory: this one makes every n-th
    target from the i-th on, and records failures in a file of its own.
    """
    failures_file = FAILURES_FILE
    if part is not None:
        targets = targets[part[0] :: part[1]]
        failures_file = f"failures-{part[0]:04d}-of-{part[1]:04d}.json"
    check_output(output, {target.name: target.sequence for target in targets})
    search_for_all(targets, plan, output)
    failures: dict[str, str] = {}
    for target in tqdm(targets, desc="targets", unit="target", disable=None):
        try:
            prepared = prepare_in(output / target.name, target, plan)
            tqdm.write(f"{target.name}: {summary(prepared)} -> {output / target.name}")
        except (RuntimeError, MemoryError, OSError, ValueError) as error:
            failures[target.name] = f"{type(error).__name__}: {error}"
            tqdm.write(f"{target.name}: failed: {failures[target.name]}", file=sys.stderr)
    write_failures(output, failures, failures_file)
    return SOME_FAILED if failures else 0
