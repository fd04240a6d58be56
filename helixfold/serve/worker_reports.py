"""Reports of workers about jobs, reduced to what pages and answers show: numbers, and short printable texts."""

import math
from collections.abc import Mapping
from typing import Any, Final

from data_pipeline.errors import printable
from helixfold.serve.queue.workers import PROVENANCES

_MOST_STAGES: Final = 200
_MOST_LINES: Final = 5
_SCORES: Final = ("plddt", "ptm", "iptm")


def checked_summary(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of a result, each a number or None, and the name and the provenance of its best prediction."""
    scores = {name: _number(content.get(name)) for name in _SCORES}
    if scores["plddt"] is None:
        return {}
    provenance = content.get("provenance")
    return {
        **scores,
        "model": printable(str(content.get("model") or ""), 100),
        "provenance": provenance if provenance in PROVENANCES else None,
    }


def checked_progress(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stages that have ended with their seconds, and the last lines that were printed."""
    stages, lines = content.get("stages"), content.get("lines")
    return {
        "stages": [
            {"name": printable(str(stage.get("name", "")), 100), "seconds": _number(stage.get("seconds")) or 0.0}
            for stage in (stages if isinstance(stages, list) else [])[:_MOST_STAGES]
            if isinstance(stage, dict)
        ],
        "lines": [printable(str(line), 300) for line in (lines if isinstance(lines, list) else [])[:_MOST_LINES]],
    }


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12
    return float(value) if is_number and math.isfinite(value) else None
