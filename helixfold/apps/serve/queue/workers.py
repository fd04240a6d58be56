"""The workers that have contacted the server: what each offers, and when it was last heard from."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from data_pipeline.io.errors import printable
from helixfold.apps.serve.queue.database import Database

# Origins of a model's parameters, the least trustworthy first: random, the demonstration model in the package or
# training that began with it, any other training.
Provenance = Literal["untrained", "demonstration", "trained"]
PROVENANCES: Final[tuple[Provenance, ...]] = get_args(Provenance)
_LOGGER = logging.getLogger("helixfold.apps.serve")
_SILENT_SECONDS = 120.0  # after which a worker does not count
_FORGOTTEN_SECONDS = 7 * 86_400.0
_MAX_WORKERS: Final = 500  # of one user; those that were silent longest are forgotten first
Text = Annotated[str, Field(max_length=100), AfterValidator(printable)]
Point = tuple[
    Annotated[int, Field(ge=1, le=2**40)],  # residues
    Annotated[float, Field(gt=0, le=1e12)],  # seconds of a recycling iteration
    Annotated[float, Field(gt=0, le=2**60)],  # bytes at the peak
]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class ForecastCurve(_Message):
    """Time and memory of a model at some numbers of residues, which increase, and the longest chain that fits."""

    points: Annotated[tuple[Point, ...], Field(max_length=8)] = ()
    available: Annotated[int, Field(ge=0, le=2**60)] = 0
    longest: Annotated[int, Field(ge=0, le=2**40)] = 0
    recycles: Annotated[int, Field(ge=0, le=1_000)] = 3

    @field_validator("points")
    @classmethod
    def _increase(cls, points: tuple[Point, ...]) -> tuple[Point, ...]:
        if any(first[0] >= second[0] for first, second in pairwise(points)):
            raise ValueError("the numbers of residues must increase from point to point")
        return points


class WorkerOffers(_Message):
    """What a worker offers: models by name with their forecasts, whether it searches databases, its device."""

    device: Text = ""
    models: Annotated[tuple[Text, ...], Field(max_length=50)] = ()
    databases: bool = False
    templates: bool = False
    alignments: bool = False  # searches for other programs, through the interface of ColabFold's server
    relaxes: bool = False
    forecasts: Annotated[dict[Text, ForecastCurve], Field(max_length=50)] = Field(default_factory=dict)
    provenance: Annotated[dict[Text, Provenance], Field(max_length=50)] = Field(default_factory=dict)  # of each model

    @property
    def best_provenance(self) -> Provenance:
        """Return the provenance of the most trustworthy model; "trained" of a worker that does not send any."""
        found = set(self.provenance.values())
        return next((each for each in reversed(PROVENANCES) if each in found), PROVENANCES[-1])


@dataclass(frozen=True)
class Workers:
    """The workers of the service, kept in its database so that a server that starts again has their offers."""

    database: Database
    clock: Callable[[], float] = time.time
    _unreadable: set[str] = field(default_factory=set)  # the names of rows that the log mentions already

    def heard(self, name: str, offers: WorkerOffers | None = None) -> None:
        """Record that a worker sent a message, and its offers if the message has them."""
        now = self.clock()
        with self.database.transaction() as connection:
            if offers is None:
                connection.execute("UPDATE workers SET seen = ? WHERE name = ?", (now, name))
                return
            connection.execute("DELETE FROM workers WHERE seen < ?", (now - _FORGOTTEN_SECONDS,))
            connection.execute(
                "INSERT INTO workers VALUES (?, ?, ?) ON CONFLICT (name) "
                "DO UPDATE SET offers = excluded.offers, seen = excluded.seen",
                (name, offers.model_dump_json(), now),
            )
            user = f"{name.partition('/')[0]}/"
            connection.execute(
                "DELETE FROM workers WHERE name IN (SELECT name FROM workers WHERE substr(name, 1, ?) = ? "
                "ORDER BY seen DESC LIMIT -1 OFFSET ?)",
                (len(user), user, _MAX_WORKERS),
            )

    def offers(self, *, within: float = _FORGOTTEN_SECONDS) -> dict[str, WorkerOffers]:
        """Return the offers of each worker that was heard from within so many seconds; unreadable rows are skipped."""
        rows = self.database.rows(
            "SELECT name, offers FROM workers WHERE seen >= ? ORDER BY seen DESC", (self.clock() - within,)
        )
        found = {}
        for row in rows:
            try:
                found[row["name"]] = WorkerOffers.model_validate_json(row["offers"])
            except ValidationError:
                if row["name"] in self._unreadable:
                    continue
                self._unreadable.add(row["name"])
                line = {"event": "stored offers of a worker are unreadable", "worker": printable(row["name"])}
                _LOGGER.warning(json.dumps(line))
        return found

    def present(self) -> dict[str, WorkerOffers]:
        """Return the offers of each worker that is not silent."""
        return self.offers(within=_SILENT_SECONDS)
