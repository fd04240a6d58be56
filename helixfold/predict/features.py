"""Make the features of targets, for prediction at another time or on another machine."""

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
    """Search and featurise every target into `output/<target>/`, and return 0, or 1 if some target failed.

    Results of searches from an earlier run are used again. A target that fails is recorded in `failures.json` and does
    not stop the others. `part` (i, n) is for n machines that share the work and the output directory: every n-th target
    from the i-th on, with a record of failures of its own.
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
