"""Describe the programs, device, databases and settings that made the predictions of a report."""

import shlex
from collections.abc import Mapping
from typing import Any

from data_pipeline.search.database import SearchedDatabase
from helixfold.folding.provenance import Provenance, provenance_entries
from helixfold.report.files import TargetFiles

# Display names of programs that are written differently in settings.json.
_PROGRAM_NAMES = {"python": "Python", "numpy": "NumPy", "torch": "PyTorch", "triton": "Triton", "cuda": "CUDA"}


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


def device_text(device: Mapping[str, str]) -> str:
    """Return a device's name, with its kind and capability in brackets."""
    details = ", ".join(filter(None, (device.get("kind"), device.get("capability"))))
    return f"{device.get('name') or 'an unknown device'} ({details})"


def databases_text(record: Provenance) -> str:
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
    return f"{programs[0] if programs else 'helixfold'}{others}, on {device_text(record.device)}"


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
        ("databases", databases_text(record) or "none"),
        ("templates", ", ".join(record.templates) or "none"),
    )
