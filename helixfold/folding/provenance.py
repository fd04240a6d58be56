"""The record, in settings.json, of the programs, the device and the command that made a prediction.

Nothing in it changes from run to run: the same command on the same machine gives the same record, byte for byte.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from data_pipeline.search.database import SearchedDatabase

SearchPurpose = Literal["alignment", "pairs", "templates"]
# A URL's name and password, which stand before the @, and what follows its question mark, which may be a key.
_NAME_AND_PASSWORD = re.compile(r"([a-z][a-z0-9+.-]*://)[^/?#\s]*@", re.IGNORECASE)
_URL_QUERY = re.compile(r"([a-z][a-z0-9+.-]*://[^?\s]*)\?\S*", re.IGNORECASE)
_HIDDEN = "***"
# Characters of a command that are recorded: the shell may have made thousands of words of one with a star in it.
_MOST_CHARACTERS = 4000


@dataclass(frozen=True, kw_only=True)
class RecordedSearch:
    """A search for what a prediction was made from: relatives, relatives that are paired, or templates."""

    purpose: SearchPurpose
    search: str  # its program, options and databases in one line
    databases: tuple[SearchedDatabase, ...]

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "RecordedSearch":
        """Read an entry of settings.json; raise KeyError, TypeError, ValueError or AttributeError if it is damaged."""
        purposes: tuple[SearchPurpose, ...] = get_args(SearchPurpose)
        return cls(
            purpose=purposes[purposes.index(entry["purpose"])],
            search=str(entry["search"]),
            databases=tuple(_database(each) for each in entry["databases"]),
        )


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What made a prediction, beside its target's inputs and options and its own model, weights and seed.

    Nothing in it changes from run to run.
    """

    # Versions by program: helixfold, python, numpy, torch; of a GPU also triton, cuda and driver.
    software: Mapping[str, str] = field(default_factory=dict)
    # Its "kind" (cpu, cuda, mps), its "name" and its "capability".
    device: Mapping[str, str] = field(default_factory=dict)
    threads: int
    ranks: int = 1  # processes that folded the target together
    targets_at_once: int = 1  # targets that were folded in the same passes
    executor: str
    slab_budget: int | None = None  # bytes that temporaries of a slab might take; None: the executor's own choice
    backends: Mapping[str, tuple[str, ...]]  # by operator, those that computed it
    features: str = ""  # SHA-256 digest
    searches: tuple[RecordedSearch, ...] = ()  # none of features that were made before
    templates: tuple[str, ...] = ()  # the labels of those that the network read
    command: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "Provenance":
        """Read an entry of settings.json; raise KeyError, TypeError, ValueError or AttributeError if it is damaged."""
        budget = entry["slab_budget"]
        return cls(
            software=_texts(entry["software"]),
            device=_texts(entry["device"]),
            threads=int(entry["threads"]),
            ranks=int(entry["ranks"]),
            targets_at_once=int(entry["targets_at_once"]),
            executor=str(entry["executor"]),
            slab_budget=None if budget is None else int(budget),
            backends={str(name): tuple(map(str, used)) for name, used in entry["backends"].items()},
            features=str(entry["features"]),
            searches=tuple(map(RecordedSearch.from_dict, entry["searches"])),
            templates=tuple(map(str, entry["templates"])),
            command=tuple(map(str, entry["command"])),
        )


def provenance_entries(provenance: Mapping[str, Provenance]) -> list[dict[str, Any]]:
    """Return the list of settings.json: each record once, with the names of its predictions."""
    groups: list[tuple[list[str], Provenance]] = []
    for name, record in provenance.items():
        names = next((names for names, other in groups if other == record), None)
        if names is None:
            groups.append(([name], record))
        else:
            names.append(name)
    return [{"predictions": names, **asdict(record)} for names, record in groups]


def read_provenance(entries: object) -> dict[str, Provenance]:
    """Return the records by the names of predictions from the list of settings.json; damaged ones are left out.

    The list is None in files of earlier versions.
    """
    found: dict[str, Provenance] = {}
    for entry in entries if isinstance(entries, list) else []:
        try:
            record = Provenance.from_dict(entry)
            found |= {str(name): record for name in entry["predictions"]}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
    return found


def recorded_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command as they were given, without secrets in URLs and without the end of a long one."""
    kept: list[str] = []
    characters = 0
    for number, word in enumerate(words):
        characters += len(word)
        if characters > _MOST_CHARACTERS:
            return (*kept, f"... and {len(words) - number} more words")
        kept.append(_URL_QUERY.sub(rf"\1?{_HIDDEN}", _NAME_AND_PASSWORD.sub(rf"\1{_HIDDEN}@", word)))
    return tuple(kept)


def without_output(command: Iterable[str]) -> list[str]:
    """Return the words of a command but for those that say where its results go, on which no result depends."""
    words = [word for word in command if not word.startswith("--output=")]
    places = [place for place, word in enumerate(words) if word == "--output"]
    return [word for place, word in enumerate(words) if place not in places and place - 1 not in places]


def _database(entry: Mapping[str, Any]) -> SearchedDatabase:
    version, size, url = (entry[name] for name in ("version", "size", "url"))
    return SearchedDatabase(
        name=str(entry["name"]),
        version=None if version is None else str(version),
        size=None if size is None else int(size),
        url=None if url is None else str(url),
    )


def _texts(entry: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in entry.items()}
