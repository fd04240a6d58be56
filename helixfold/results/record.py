"""What identifies the results of a run, and how an earlier run's settings differ from those of this one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError, printable


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The inputs, the options that change results, and the weights from which results are made.

    Inputs are digests, objects with a digest such as `{"sha256": ..., "file": ...}`, or lists of these. Names of files
    do not count, because files may be moved. Options may be objects of options.
    """

    inputs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)  # digest of the parameters by model

    def differences(self, now: "RunRecord") -> list[str]:
        """Describe how `now` differs from this earlier record; models that only one of them has do not count."""
        inputs = [
            _another(name, self.inputs.get(name), now.inputs.get(name))
            for name in sorted({*self.inputs, *now.inputs})
            if _digests(self.inputs.get(name)) != _digests(now.inputs.get(name))
        ]
        mine, theirs = _flat(self.options), _flat(now.options)
        options = [
            f"{printable(name, 50)} {_as_text(mine.get(name))}, now {_as_text(theirs.get(name))}"
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name)
        ]
        models = [name for name, digest in now.weights.items() if self.weights.get(name, digest) != digest]
        return [*inputs, *options, *(f"other weights of {printable(name, 50)}" for name in models)]


def require_same_settings(
    path: Path,
    differences: Sequence[str],
    *,
    verb: str = "made",
    remedy: str = "pass --overwrite, or another --output",
    error: type[InputError] = InputError,
) -> None:
    """Raise `error` if results at `path` were made with other settings; `remedy` says what the user can do."""
    if differences:
        raise error.at(path, f"{verb} before with other settings ({'; '.join(differences)}); {remedy}")


def _another(name: str, *values: Any) -> str:
    shown = printable(name.replace("_", " "), 50)
    is_plural = any(isinstance(value, list) for value in values) or re.search("[^s]s$", shown)
    return f"{shown}: other ones" if is_plural else f"another {shown}"


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the options of nested objects under names such as "losses.con"."""
    flat = dict[str, Any]()
    for name, value in options.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _digests(value: Any) -> Any:
    """Leave out the names of files, which may be moved."""
    if isinstance(value, list):
        return [_digests(entry) for entry in value] or None
    return value.get("sha256") if isinstance(value, dict) else value


def _as_text(value: Any) -> str:
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return "not given" if value is None else printable(str(value), 50)
