"""Search for some targets of a batch, or fold them: the two tasks that a worker on a node of a cluster is given.

Both functions share the output directory with all other workers by claims, as `--shared` does, so nothing is made twice
and nothing is lost, whichever of them are killed.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_pipeline.complexes.complex_input import AnyTarget
from data_pipeline.errors import InputError, SearchError
from data_pipeline.json_files import read_json
from helixfold.apps.predict.options import PredictOptions, SearchOptions
from helixfold.apps.predict.run import run
from helixfold.apps.predict.search import make_part_of_features
from helixfold.apps.predict.search_plan import plan_of
from helixfold.results.json_object import AGAIN


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a task ended: why which of its targets failed, by name, or why it could not begin."""

    failures: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    seconds: float = 0.0


def search(here: Path, targets: Sequence[AnyTarget], options: SearchOptions, output: Path) -> Outcome:
    """Search for targets and make their features, each in its directory below `output`; paths are seen from `here`."""
    return _tried(here, lambda: make_part_of_features(targets, output=output, plan=plan_of(options)))


def fold(here: Path, targets: Sequence[AnyTarget], options: PredictOptions) -> Outcome:
    """Fold targets whose searches are done; paths are seen from `here`."""
    failures = options.failures_file
    assert failures is not None

    def folded() -> dict[str, str]:
        failures.unlink(missing_ok=True)
        run(options, targets)
        found = read_json(failures, AGAIN) if failures.is_file() else {}
        failures.unlink(missing_ok=True)
        return dict(found) if isinstance(found, dict) else {}

    return _tried(here, folded)


def _tried(here: Path, action: Callable[[], dict[str, str]]) -> Outcome:
    """Return the failures that an action finds; what concerns all of its targets, such as missing weights, is told."""
    start = time.monotonic()
    try:
        os.chdir(here)
        found = action()
    except (InputError, SearchError, OSError) as error:
        print(f"helixfold: error: {error}", file=sys.stderr)
        return Outcome(problem=str(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return Outcome(failures=found, seconds=time.monotonic() - start)
