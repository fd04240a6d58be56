"""The workers that have spoken to the server: what each offers, and when it was heard last."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from helixfold.serve.queue.database import Database

# Origins of a model's parameters, the least trustworthy first: random, the demonstration model in the package or
# training that began with it, any other training.
PROVENANCES: Final = ("untrained", "demonstration", "trained")
_SILENT_SECONDS = 120.0  # after which a worker does not count
_FORGOTTEN_SECONDS = 7 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class WorkerOffers:
    """Abilities of a worker: models by name with their forecasts, whether it searches databases, its device."""

    device: str = ""
    models: tuple[str, ...] = ()
    databases: bool = False
    templates: bool = False
    alignments: bool = False  # searches for other programs, by the interface of ColabFold's server
    relaxes: bool = False
    forecasts: Mapping[str, Any] = field(default_factory=dict)  # of each model, see `forecast_curve`
    provenance: Mapping[str, str] = field(default_factory=dict)  # of each model's parameters, one of `PROVENANCES`

    @property
    def best_provenance(self) -> str:
        """Return the provenance of the most trustworthy model; "trained" of a worker that does not send any."""
        found = set(self.provenance.values())
        return next((each for each in reversed(PROVENANCES) if each in found), PROVENANCES[-1])

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "WorkerOffers":
        """Return the offers that a worker sent, without what this version does not know."""
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        return cls(**{**known, "models": tuple(map(str, known.get("models", ())))})


@dataclass(frozen=True)
class Workers:
    """The workers of the service, kept in its database so that a server that starts again knows what they offer."""

    database: Database
    clock: Callable[[], float] = time.time

    def heard(self, name: str, offers: Mapping[str, Any] | None = None) -> None:
        """Keep that a worker was heard, and what it offers if it said so."""
        now = self.clock()
        with self.database.transaction() as connection:
            if offers is None:
                connection.execute("UPDATE workers SET seen = ? WHERE name = ?", (now, name))
                return
            connection.execute("DELETE FROM workers WHERE seen < ?", (now - _FORGOTTEN_SECONDS,))
            connection.execute(
                "INSERT INTO workers VALUES (?, ?, ?) ON CONFLICT (name) "
                "DO UPDATE SET offers = excluded.offers, seen = excluded.seen",
                (name, json.dumps(offers), now),
            )

    def offers(self, *, within: float = _FORGOTTEN_SECONDS) -> dict[str, WorkerOffers]:
        """Return what each worker offers that was heard within so many seconds."""
        rows = self.database.rows(
            "SELECT name, offers FROM workers WHERE seen >= ? ORDER BY seen DESC", (self.clock() - within,)
        )
        return {row["name"]: WorkerOffers.of(json.loads(row["offers"])) for row in rows}

    def present(self) -> dict[str, WorkerOffers]:
        """Return what each worker offers that is not silent."""
        return self.offers(within=_SILENT_SECONDS)
