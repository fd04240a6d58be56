"""The work of a worker on a node of a cluster: claim targets of a batch, and search or fold them.

Workers share the output directory by claims, as with `--shared`, so that no target is computed twice or lost if workers
are killed. The claims also record which targets ran out of memory or lost their worker.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from data_pipeline.features.complexes.complex_input import AnyTarget
from data_pipeline.io.claims import Claims
from data_pipeline.io.errors import InputError, SearchError
from helixfold.apps.options import PredictOptions, SearchOptions
from helixfold.apps.predict.run import run
from helixfold.apps.predict.settings import Part
from helixfold.apps.search import make_part_of_features
from helixfold.apps.search_plan import plan_of
from helixfold.results.writing import write_file

# Maximum number of retries of a target that ran out of memory or whose worker was lost.
MAX_RETRIES = 2
_OUT_OF_MEMORY_PREFIXES = ("NotEnoughMemoryError: ", "OutOfMemoryError: ", "MemoryError: ", "MemoryError")
_LOST_WORKER = "its worker was lost"
_SECONDS_TO_END = 5.0  # after SIGTERM
# The minimum time of a lot as a share of the maximum, and the number of candidates from which a worker selects it.
_MIN_LOT_SHARE, _MAX_LOOKED_AT = 0.0125, 256
# The loaded models, which the next lot of this worker uses again.
_loaded_models: dict[Any, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A target that a worker may claim, with the name of its claim and its estimated time."""

    target: AnyTarget
    claim: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """The input of a task. A worker searches if `options` are search options, else it folds.

    Relative paths refer to `working_directory`. A lot is a number of targets that a worker claims at a time.
    """

    working_directory: Path
    output: Path
    options: PredictOptions | SearchOptions
    candidates: Sequence[Candidate]  # in the order in which they are claimed
    share: float  # of the remaining work that a lot contains
    max_seconds: float  # of a lot
    has_max_memory: bool  # whether no pool has more memory
    began: float  # start time of the batch, by the file server's clock
    lot_file: Path  # to which the worker writes the number of targets in its lot


@dataclass(frozen=True)
class Standing:
    """The state of a target according to its claims.

    "open" means that a worker may claim it, and "held" that a worker has claimed it. `failure` is the reason if it has
    ended with an error. `tries` is the number of attempts that ran out of memory or lost their worker.
    """

    state: Literal["open", "held", "ended"]
    failure: str | None = None
    tries: int = 0
    needs_max_memory: bool = False  # whether only a pool with the most memory may retry it

    @classmethod
    def of(cls, target: str, claims: Claims) -> "Standing":
        """Return the state of the target, or of its search, with the claim `target` since the start of the batch."""
        history = claims.history(target)
        if not history:
            return cls("open")
        latest, history_of_batch = history[-1], [claim for claim in history if claim.time >= claims.began]
        if latest.state == "held" and not claims.is_dead(latest):
            return cls("held")
        if latest.state == "finished" and latest in history_of_batch:
            return cls("ended")
        lost_count = sum(claim.state == "held" for claim in history_of_batch)
        out_of_memory = [
            claim for claim in history_of_batch if (claim.failure or "").startswith(_OUT_OF_MEMORY_PREFIXES)
        ]
        if latest.state == "failed" and latest in history_of_batch and latest not in out_of_memory:
            return cls("ended", latest.failure or "for an unknown reason")
        tries = lost_count + len(out_of_memory)
        if tries > MAX_RETRIES:
            return cls("ended", f"{latest.failure or _LOST_WORKER} (tried {tries} times)")
        return cls("open", tries=tries, needs_max_memory=bool(out_of_memory) or lost_count > 1)


def work(task: Work) -> str | None:
    """Claim lots of the candidates, and search or fold them, until no candidate is free.

    Return an error message if this fails, for example because weights are missing, else None. On SIGTERM, release the
    claims and end.
    """
    signal.signal(signal.SIGTERM, _end)
    candidates = list(task.candidates)
    try:
        os.chdir(task.working_directory)
        with closing(Claims.in_directory(task.output, task.began)) as claims:
            while lot := claim_lot(task, candidates, claims):
                write_file(task.lot_file, str(len(lot)))
                _do(task, [each.target for each in lot], claims)
                for each in lot:
                    claims.end(each.claim, "finished")  # targets that were already done
    except (InputError, SearchError, OSError) as error:
        print(f"helixfold: error: {error}", file=sys.stderr)
        return str(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return None


def claim_lot(task: Work, candidates: list[Candidate], claims: Claims) -> list[Candidate]:
    """Claim a lot from the first free candidates, and return it; remove ended targets from `candidates`.

    The lot is empty if no candidate is free.

    The time of a lot decreases with the remaining work, so that all workers end at about the same time. Equal sequences
    stay in one lot because they are searched once. A target that is retried is the only one in its lot.
    """
    free_candidates: list[Candidate] = []
    for each in list(candidates):
        standing = Standing.of(each.claim, claims)
        if standing.state == "ended":
            candidates.remove(each)
        elif standing.state == "open" and (task.has_max_memory or not standing.needs_max_memory):
            if standing.tries and claims.take(each.claim, retry=True) == "taken":
                return [each]
            free_candidates += [] if standing.tries else [each]
        if len(free_candidates) == _MAX_LOOKED_AT:
            break
    remaining_seconds = sum(
        each.seconds for each in (candidates if len(free_candidates) == _MAX_LOOKED_AT else free_candidates)
    )
    seconds = min(task.max_seconds, max(_MIN_LOT_SHARE * task.max_seconds, task.share * remaining_seconds))
    lot: list[Candidate] = []
    for each in free_candidates:
        if lot and seconds <= 0 and each.target.sequence != lot[-1].target.sequence:
            break
        if claims.take(each.claim) == "taken":
            lot.append(each)
            seconds -= each.seconds
    return lot


def _end(*_: object) -> NoReturn:
    """End the worker at SIGTERM: release its claims, or exit by force after some seconds."""
    timer = threading.Timer(_SECONDS_TO_END, os._exit, (1,))
    timer.daemon = True
    timer.start()
    sys.exit(1)


def _do(task: Work, targets: Sequence[AnyTarget], claims: Claims) -> None:
    """Fold the claimed targets, or search for them, by the options of the task."""
    if isinstance(task.options, PredictOptions):
        run(task.options, targets, Part(claims=claims, loaded=_loaded_models))
    else:
        make_part_of_features(targets, output=task.output, plan=plan_of(task.options), claims=claims)
