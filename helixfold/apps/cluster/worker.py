"""Claim targets of a batch and search for them or fold them: what a worker on a node of a cluster does.

Workers share the output directory by claims, as `--shared` does, so nothing is made twice and nothing is lost,
whichever of them are killed. The claims also say which targets ran out of memory or lost their worker.
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

# A target that ran out of memory, or whose worker was lost, is tried again so often.
MOST_RETRIES = 2
_OUT_OF_MEMORY = ("NotEnoughMemoryError: ", "OutOfMemoryError: ", "MemoryError: ", "MemoryError")
_LOST = "its worker was lost"
_SECONDS_TO_END = 5.0  # after SIGTERM
# The shortest lot, as a share of the longest, and how many candidates a worker looks at for one.
_SHORTEST_LOT, _LOOKAHEAD = 0.0125, 256
# The models, which stay for the next lot of this worker.
_loaded: dict[Any, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A target that a worker may claim, by the name of its claim, and how long it takes."""

    target: AnyTarget
    claim: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a worker needs to know; with options of searches, it searches, else it folds. Paths are seen from `here`."""

    here: Path
    output: Path
    options: PredictOptions | SearchOptions
    candidates: Sequence[Candidate]  # in the order in which they are claimed
    share: float  # of the rest that makes a lot
    most_seconds: float  # of a lot
    has_most_room: bool  # whether no pool has more memory
    began: float  # when the batch began, by the file server's clock
    lot_file: Path  # for the number of targets that are claimed at a time


@dataclass(frozen=True)
class Standing:
    """What the claims say of a target; `tries` have run out of memory or lost their worker."""

    state: Literal["open", "held", "ended"]
    failure: str | None = None
    tries: int = 0
    needs_room: bool = False  # only a pool with the most memory tries it again

    @classmethod
    def of(cls, target: str, claims: Claims) -> "Standing":
        """Return what happened to a target since the batch began."""
        past = claims.history(target)
        if not past:
            return cls("open")
        latest, since = past[-1], [claim for claim in past if claim.time >= claims.began]
        if latest.state == "held" and not claims.is_dead(latest):
            return cls("held")
        if latest.state == "finished" and latest in since:
            return cls("ended")
        lost = sum(claim.state == "held" for claim in since)
        too_large = [claim for claim in since if (claim.failure or "").startswith(_OUT_OF_MEMORY)]
        if latest.state == "failed" and latest in since and latest not in too_large:
            return cls("ended", latest.failure or "for an unknown reason")
        tries = lost + len(too_large)
        if tries > MOST_RETRIES:
            return cls("ended", f"{latest.failure or _LOST} (tried {tries} times)")
        return cls("open", tries=tries, needs_room=bool(too_large) or lost > 1)


def work(given: Work) -> str | None:
    """Claim lots of the candidates, and search for them or fold them, until others have the rest.

    Return what prevents that, such as missing weights, if anything does. On SIGTERM, release the claims and end.
    """
    signal.signal(signal.SIGTERM, _end)
    candidates = list(given.candidates)
    try:
        os.chdir(given.here)
        with closing(Claims.in_directory(given.output, given.began)) as claims:
            while lot := claim_lot(given, candidates, claims):
                write_file(given.lot_file, str(len(lot)))
                _do(given, [each.target for each in lot], claims)
                for each in lot:
                    claims.end(each.claim, "finished")  # what was done before
    except (InputError, SearchError, OSError) as error:
        print(f"helixfold: error: {error}", file=sys.stderr)
        return str(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return None


def claim_lot(given: Work, candidates: list[Candidate], claims: Claims) -> list[Candidate]:
    """Claim the first candidates that are free, as many as make a lot; those that have ended are removed.

    A lot is short if not much is left for all workers. Equal sequences stay together, which are searched once. What is
    tried again is alone in its lot.
    """
    free: list[Candidate] = []
    for each in list(candidates):
        standing = Standing.of(each.claim, claims)
        if standing.state == "ended":
            candidates.remove(each)
        elif standing.state == "open" and (given.has_most_room or not standing.needs_room):
            if standing.tries and claims.take(each.claim, retry=True) == "taken":
                return [each]
            free += [] if standing.tries else [each]
        if len(free) == _LOOKAHEAD:
            break
    rest = sum(each.seconds for each in (candidates if len(free) == _LOOKAHEAD else free))
    seconds = min(given.most_seconds, max(_SHORTEST_LOT * given.most_seconds, given.share * rest))
    lot: list[Candidate] = []
    for each in free:
        if lot and seconds <= 0 and each.target.sequence != lot[-1].target.sequence:
            break
        if claims.take(each.claim) == "taken":
            lot.append(each)
            seconds -= each.seconds
    return lot


def _end(*_: object) -> NoReturn:
    timer = threading.Timer(_SECONDS_TO_END, os._exit, (1,))
    timer.daemon = True
    timer.start()
    sys.exit(1)


def _do(given: Work, targets: Sequence[AnyTarget], claims: Claims) -> None:
    if isinstance(given.options, PredictOptions):
        run(given.options, targets, Part(claims=claims, loaded=_loaded))
    else:
        make_part_of_features(targets, output=given.output, plan=plan_of(given.options), claims=claims)
