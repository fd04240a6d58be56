"""The workers of the service: the models and searches that each offers, and the time of its last message."""

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
_CONNECTED_SECONDS = 120.0  # after its last message, a worker counts as connected
_MAX_AGE_SECONDS = 7 * 86_400.0  # after its last message, a worker is deleted
_MAX_WORKERS: Final = 500  # for each user; workers with the oldest messages are deleted first
# Strings and points of curves in messages of workers.
Text = Annotated[str, Field(max_length=100), AfterValidator(printable)]
Point = tuple[
    Annotated[int, Field(ge=1, le=2**40)],  # residues
    Annotated[float, Field(gt=0, le=1e12)],  # seconds of a recycling iteration
    Annotated[float, Field(gt=0, le=2**60)],  # bytes at the peak
]


class _Message(BaseModel):
    """A validated part of a worker's message, which cannot be changed."""

    model_config = ConfigDict(frozen=True)


class ForecastCurve(_Message):
    """Estimated time and memory of a model at increasing numbers of residues, and the longest chain that fits.

    `available` is the worker's memory for tensors in bytes, `longest` a number of residues; 0 if unknown. `recycles` is
    the model's default number of recycles.
    """

    points: Annotated[tuple[Point, ...], Field(max_length=8)] = ()
    available: Annotated[int, Field(ge=0, le=2**60)] = 0
    longest: Annotated[int, Field(ge=0, le=2**40)] = 0
    recycles: Annotated[int, Field(ge=0, le=1_000)] = 3

    @field_validator("points")
    @classmethod
    def _increase(cls, points: tuple[Point, ...]) -> tuple[Point, ...]:
        """Check that the numbers of residues increase from point to point."""
        if any(first[0] >= second[0] for first, second in pairwise(points)):
            raise ValueError("the numbers of residues must increase from point to point")
        return points


class WorkerOffers(_Message):
    """Capabilities of a worker: device, models with estimates of time and memory, databases, relaxation.

    `databases` and `templates` are true if the worker can search for alignments and for templates.
    """

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
        """Return the provenance of the most trustworthy model; "trained" for a worker that does not send any."""
        provenances = set(self.provenance.values())
        return next((each for each in reversed(PROVENANCES) if each in provenances), PROVENANCES[-1])


@dataclass(frozen=True)
class Workers:
    """The workers of the service, stored in its database so that a restarted server still has their offers."""

    database: Database
    clock: Callable[[], float] = time.time
    _unreadable: set[str] = field(default_factory=set)  # names of rows that were already logged

    def record_message(self, name: str, offers: WorkerOffers | None = None) -> None:
        """Record the time of a message from a worker, and its offers if the message contains them.

        `name` begins with the user of the worker's token and a slash. New offers also delete workers without a message
        for a week, and the oldest of a user's workers above 500. A message without offers adds no worker.
        """
        now = self.clock()
        with self.database.transaction() as connection:
            if offers is None:
                connection.execute("UPDATE workers SET seen = ? WHERE name = ?", (now, name))
                return
            connection.execute("DELETE FROM workers WHERE seen < ?", (now - _MAX_AGE_SECONDS,))
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

    def offers(self, *, within: float = _MAX_AGE_SECONDS) -> dict[str, WorkerOffers]:
        """Return the offers of each worker whose last message is at most `within` seconds old, the newest first.

        Offers that cannot be read are left out, with one warning in the log for each worker.
        """
        rows = self.database.rows(
            "SELECT name, offers FROM workers WHERE seen >= ? ORDER BY seen DESC", (self.clock() - within,)
        )
        offers = {}
        for row in rows:
            try:
                offers[row["name"]] = WorkerOffers.model_validate_json(row["offers"])
            except ValidationError:
                if row["name"] in self._unreadable:
                    continue
                self._unreadable.add(row["name"])
                line = {"event": "stored offers of a worker are unreadable", "worker": printable(row["name"])}
                _LOGGER.warning(json.dumps(line))
        return offers

    def present(self) -> dict[str, WorkerOffers]:
        """Return the offers of each worker that counts as connected: its last message is at most two minutes old."""
        return self.offers(within=_CONNECTED_SECONDS)
