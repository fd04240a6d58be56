"""Describe the programs, device, databases and settings that made predictions, and compare them for two results."""

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError, printable
from data_pipeline.search.database import SearchedDatabase
from helixfold.folding.provenance import Provenance, provenance_entries, read_provenance, without_output
from helixfold.report.files import TargetFiles
from helixfold.report.page import counted
from helixfold.results.file_table import SETTINGS
from helixfold.results.json_object import JsonObject

# Display names of programs that are written differently in settings.json.
_PROGRAM_NAMES = {"python": "Python", "numpy": "NumPy", "torch": "PyTorch", "triton": "Triton", "cuda": "CUDA"}
_NONE, _NOT_RECORDED = "none", "not recorded"
_ADVICE = "pass the directory of a target that `helixfold predict` wrote, or its settings.json"
_MAX_VALUE_LENGTH = 70  # of a value on the screen
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
_OPERATOR_PREFIX = "operator "  # prefix of the titles of operators' backends
_PREDICTION_FIELDS = {"model": "model", "seed": "seed", "weights": "weights", "standing": "training of the weights"}


def made_by(target: TargetFiles) -> list[dict[str, Any]]:
    """Return the provenance of a target's predictions, one for each group of predictions with the same provenance.

    `predictions` has the names of the group, or is empty for all. `sentence` is on programs and device, and `facts` are
    pairs of name and value for a table. The list is empty if no provenance is recorded.
    """
    records = {each.name: each.provenance for each in target.predictions if each.provenance is not None}
    groups = [tuple(entry["predictions"]) for entry in provenance_entries(records)]
    is_one = len(groups) == 1 and len(groups[0]) == len(target.predictions)
    return [
        {
            "predictions": () if is_one else names,
            "sentence": _sentence(records[names[0]]),
            "facts": _facts(records[names[0]]),
        }
        for names in groups
    ]


def _device_text(device: Mapping[str, str]) -> str:
    """Return a device's name, with its kind and capability in brackets."""
    details = ", ".join(filter(None, (device.get("kind"), device.get("capability"))))
    return f"{device.get('name') or 'an unknown device'} ({details})"


def _databases_text(record: Provenance) -> str:
    """Return a list, as text, of the searched databases, each with its address or size and the purposes of searches."""
    purposes: dict[SearchedDatabase, dict[str, None]] = {}
    for search in record.searches:
        for database in search.databases:
            purposes.setdefault(database, {})[search.purpose] = None
    return ", ".join(
        f"{each.name} ({each.url or f'{each.size or 0:,} bytes'}; {' and '.join(words)})"
        for each, words in purposes.items()
    )


def _sentence(record: Provenance) -> str:
    programs = [f"{_PROGRAM_NAMES.get(name, name)} {version}" for name, version in record.software.items()]
    others = f" with {', '.join(programs[1:])}" if programs[1:] else ""
    return f"{programs[0] if programs else 'helixfold'}{others}, on {_device_text(record.device)}"


def _facts(record: Provenance) -> tuple[tuple[str, str], ...]:
    processes = "" if record.ranks == 1 else f" of each of {record.ranks} processes"
    budget = "" if record.slab_budget is None else f", slabs of {record.slab_budget / 2**20:,.0f} MiB"
    together = "" if record.targets_at_once == 1 else f", {record.targets_at_once} targets at once"
    return (
        ("command", shlex.join(record.command)),
        ("threads", f"{record.threads}{processes}"),
        ("executor", f"{record.executor}{budget}{together}"),
        ("operators", ", ".join(f"{name}: {' and '.join(backends)}" for name, backends in record.backends.items())),
        ("features", f"SHA-256 {record.features}"),
        ("searches", "; ".join(search.search for search in record.searches) or "none"),
        ("databases", _databases_text(record) or "none"),
        ("templates", ", ".join(record.templates) or "none"),
    )


@dataclass(frozen=True, kw_only=True)
class ProvenanceComparison:
    """Comparison of two results: properties that differ, with both values, and properties that are the same.

    Keys are the titles of properties, and values are texts. If a property is not the same for all predictions of a
    result, its value names the predictions. `recorded` is whether each of the two results has a record of the programs,
    device and command that made it.
    """

    differences: Mapping[str, tuple[str, str]]
    same: Mapping[str, str]
    recorded: tuple[bool, bool]

    def lines(self) -> Iterator[str]:
        """Yield a table as text: two lines for each difference, then the names of all equal properties."""
        width = max(map(len, self.differences), default=0)
        for name, values in self.differences.items():
            first, second = _different_words(*values) if name == "command" else values
            yield f"{name:{width}}  first   {_short(first)}"
            yield f"{'':{width}}  second  {_short(second)}"
        if not any(self.recorded):
            yield "programs, device and command: recorded in neither"
        names = [name for name in self.same if not name.startswith(_OPERATOR_PREFIX)]
        if operators := len(self.same) - len(names):
            names.append(counted(operators, "operator"))
        yield f"the same: {', '.join(names) or 'nothing'}"


def compare_provenance(first: Path, second: Path) -> ProvenanceComparison:
    """Compare the inputs, options, predictions and provenance of two results.

    Each path is the directory of a target, or its settings.json. The names of input files, and the output directory in
    the command, are ignored. Predictions that only one result has count as one difference; the others are compared by
    name. Raise `InputError` for a path that is not a result of `helixfold predict`.
    """
    settings = [_read(first), _read(second)]
    names = [list(each.child("predictions").content) for each in settings]
    shown = [[name for name in each if name in names[0] and name in names[1]] or each for each in names]
    records = [read_provenance(each.content.get("provenance")) for each in settings]
    recorded = (any(name in records[0] for name in shown[0]), any(name in records[1] for name in shown[1]))
    targets = map(_target_fields, settings, shown)
    makers = map(_maker_fields, settings, records, shown)
    unknown = [_NONE if each else _NOT_RECORDED for each in recorded]
    pairs = _pairs(*targets, absent=[_NONE, _NONE]) | _pairs(*makers, absent=unknown)
    return ProvenanceComparison(
        differences={title: values for title, values in pairs.items() if values[0] != values[1]},
        same={title: values[0] for title, values in pairs.items() if values[0] == values[1]},
        recorded=recorded,
    )


def _pairs(one: Mapping[str, str], other: Mapping[str, str], *, absent: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return both results' values of each title; `absent` has the values for titles that a result lacks."""
    return {title: (one.get(title, absent[0]), other.get(title, absent[1])) for title in [*one, *other]}


def _read(path: Path) -> JsonObject:
    """Read the settings.json of a result, or of the only result in a directory."""
    file = SETTINGS.path(path) if path.is_dir() else path
    if not file.is_file():
        files = sorted(path.glob(f"*/{SETTINGS.name()}")) if path.is_dir() else []
        if len(files) > 1:
            raise InputError.at(path, f"has {len(files)} results; pass one of them, such as {files[0].parent}")
        if not files:
            raise InputError.at(path, f"not a result; {_ADVICE}")
        file = files[0]
    if file.suffix.lower() != ".json":
        raise InputError.at(file, f"not a result; {_ADVICE}; to compare structures, use `helixfold evaluate`")
    settings = JsonObject.read(file)
    if not settings.child("predictions").content:
        raise InputError.at(file, f"has no predictions; {_ADVICE}")
    return settings


def _target_fields(settings: JsonObject, names: Collection[str]) -> dict[str, str]:
    """Return the inputs and options of a target's predictions with these names, as texts."""
    fields = {
        "features given" if name == "features" else name: _words(value)
        for name, value in settings.child("inputs").content.items()
    }
    fields |= {name.replace("_", " "): _words(value) for name, value in settings.child("options").content.items()}
    predictions = settings.child("predictions")
    fields["predictions"] = ", ".join(sorted(predictions.content))
    for key, title in _PREDICTION_FIELDS.items():
        fields[title] = _of_all({name: _words(predictions.child(name).content.get(key)) for name in names})
    return fields


def _maker_fields(settings: JsonObject, records: Mapping[str, Provenance], names: Collection[str]) -> dict[str, str]:
    """Return the provenance of the predictions with these names, as texts.

    For results of earlier versions, this is only the version.
    """
    by_name = {name: _record_fields(records[name]) for name in names if name in records}
    if not by_name:
        version = settings.get("helixfold", str, "")
        return {"helixfold": version} if version else {}
    titles = dict.fromkeys(title for fields in by_name.values() for title in fields)
    return {
        title: _of_all({name: by_name[name].get(title, _NONE) if name in by_name else _NOT_RECORDED for name in names})
        for title in titles
    }


def _record_fields(record: Provenance) -> dict[str, str]:
    return {
        **record.software,
        "device": _device_text(record.device),
        "threads": str(record.threads),
        "processes": str(record.ranks),
        "targets at once": str(record.targets_at_once),
        "executor": record.executor,
        "slab budget": _words(record.slab_budget),
        "features": record.features,
        "databases": _databases_text(record) or _NONE,
        "templates read": ", ".join(record.templates) or _NONE,
        "command": shlex.join(without_output(record.command)),
        **{f"{_OPERATOR_PREFIX}{name}": " and ".join(backends) for name, backends in record.backends.items()},
    }


def _of_all(values: Mapping[str, str]) -> str:
    """Return the common value of all predictions, or each prediction's name and value."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _words(value: Any) -> str:
    if isinstance(value, list):
        return (
            ", ".join(_words(item["sha256"] if isinstance(item, dict) and "sha256" in item else item) for item in value)
            or _NONE
        )
    if value is None:
        return _NONE
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _short(text: str) -> str:
    """Shorten a value for the screen: digests to their first digits, and long texts to the limit."""
    return printable(_DIGEST.sub(r"\1", text), _MAX_VALUE_LENGTH)


def _different_words(first: str, second: str) -> tuple[str, str]:
    """Return the words of each of two commands that the other command does not have."""
    one, other = (shlex.split(command) for command in (first, second))
    return (
        shlex.join(word for word in one if word not in other) or _NONE,
        shlex.join(word for word in other if word not in one) or _NONE,
    )
