"""Provenance of a prediction in settings.json: the programs, device, searches and command that produced it.

It has no times or other values that change: the same command on the same machine gives the same record.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from data_pipeline.search.database import SearchedDatabase

SearchPurpose = Literal["alignment", "pairs", "templates"]
# User name and password of a URL, before the @, and its query after the question mark, which may contain a key.
_NAME_AND_PASSWORD = re.compile(r"([a-z][a-z0-9+.-]*://)[^/?#\s]*@", re.IGNORECASE)
_URL_QUERY = re.compile(r"([a-z][a-z0-9+.-]*://[^?\s]*)\?\S*", re.IGNORECASE)
_SECRET_REPLACEMENT = "***"  # replaces secrets
# Maximum number of recorded characters of a command, because a shell may expand a star to thousands of words.
_MAX_COMMAND_CHARACTERS = 4000


@dataclass(frozen=True, kw_only=True)
class RecordedSearch:
    """A database search whose results a prediction used: for its alignment, for paired rows, or for templates.

    `search` has the program, its options and the databases in one line.
    """

    purpose: SearchPurpose
    search: str
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
    """Software, device, searches and command that produced a prediction.

    The inputs and options of the target, and the model, weights and seed of the prediction, are recorded elsewhere.

    `threads` are CPU threads of PyTorch. `ranks` is the number of processes that folded the target together, and
    `targets_at_once` the number of targets in its batch. `slab_budget` is the maximum bytes of a slab's temporaries;
    None is the executor's default. `backends` has the backends that were used, by operator. `features` is the SHA-256
    digest of the target's features. `searches` is empty for features from a file. `templates` has the labels of the
    templates that the network read, and `command` the words of the command line, without secrets.
    """

    # Versions by program: helixfold, python, numpy and torch; on a GPU also triton, cuda and driver.
    software: Mapping[str, str] = field(default_factory=dict)
    # "kind" (cpu, cuda, mps), "name" and "capability".
    device: Mapping[str, str] = field(default_factory=dict)
    threads: int
    ranks: int = 1
    targets_at_once: int = 1
    executor: str
    slab_budget: int | None = None
    backends: Mapping[str, tuple[str, ...]]
    features: str = ""
    searches: tuple[RecordedSearch, ...] = ()
    templates: tuple[str, ...] = ()
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
    """Convert provenance by prediction name to the list in settings.json.

    Predictions with equal provenance share an entry, which has their names as "predictions".
    """
    groups: list[tuple[list[str], Provenance]] = []
    for name, record in provenance.items():
        names = next((names for names, other in groups if other == record), None)
        if names is None:
            groups.append(([name], record))
        else:
            names.append(name)
    return [{"predictions": names, **asdict(record)} for names, record in groups]


def read_provenance(entries: object) -> dict[str, Provenance]:
    """Return provenance by prediction name from the list in settings.json, without damaged entries.

    Files of earlier versions have None instead of the list.
    """
    records: dict[str, Provenance] = {}
    for entry in entries if isinstance(entries, list) else []:
        try:
            record = Provenance.from_dict(entry)
            records |= {str(name): record for name in entry["predictions"]}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
    return records


def recorded_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command for the record, with secrets in URLs replaced by "***".

    Secrets are the user name and password of a URL, and its query. Words after 4,000 characters are replaced by a last
    word with their number.
    """
    recorded: list[str] = []
    characters = 0
    for index, word in enumerate(words):
        characters += len(word)
        if characters > _MAX_COMMAND_CHARACTERS:
            return (*recorded, f"... and {len(words) - index} more words")
        recorded.append(
            _URL_QUERY.sub(rf"\1?{_SECRET_REPLACEMENT}", _NAME_AND_PASSWORD.sub(rf"\1{_SECRET_REPLACEMENT}@", word))
        )
    return tuple(recorded)


def without_output(command: Iterable[str]) -> list[str]:
    """Return the words of a command without the option `--output` and its value, which do not change results."""
    words = [word for word in command if not word.startswith("--output=")]
    indices = [index for index, word in enumerate(words) if word == "--output"]
    return [word for index, word in enumerate(words) if index not in indices and index - 1 not in indices]


def _database(entry: Mapping[str, Any]) -> SearchedDatabase:
    """Read the entry of a searched database in settings.json."""
    version, size, url = (entry[name] for name in ("version", "size", "url"))
    return SearchedDatabase(
        name=str(entry["name"]),
        version=None if version is None else str(version),
        size=None if size is None else int(size),
        url=None if url is None else str(url),
    )


def _texts(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys and values of a mapping as strings."""
    return {str(name): str(value) for name, value in entry.items()}
