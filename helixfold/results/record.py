"""Record of the inputs and settings that determine a run's results, and its comparison with an earlier run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError, printable


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Inputs, options that change results, and weights that determine a run's results.

    Inputs are digests, objects with a digest such as `{"sha256": ..., "file": ...}`, or lists of these. File names are
    not compared, because files may be moved. Options may be nested.
    """

    inputs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)  # digests of the parameters, by model

    def differences(self, now: "RunRecord") -> list[str]:
        """Return a phrase, for the user, for each difference of `now` from this earlier record.

        Models that only one of the records has are not compared.
        """
        inputs = [
            _difference_text(name, self.inputs.get(name), now.inputs.get(name))
            for name in sorted({*self.inputs, *now.inputs})
            if _digests(self.inputs.get(name)) != _digests(now.inputs.get(name))
        ]
        before, after = _flat(self.options), _flat(now.options)
        options = [
            f"{printable(name, 50)} {_as_text(before.get(name))}, now {_as_text(after.get(name))}"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]
        models = [name for name, digest in now.weights.items() if self.weights.get(name, digest) != digest]
        return [*inputs, *options, *(f"other weights of {printable(name, 50)}" for name in models)]


def require_same_settings(
    path: Path,
    differences: Sequence[str],
    *,
    verb: str = "made",
    remedy: str = "pass --overwrite or another --output",
    error: type[InputError] = InputError,
) -> None:
    """Raise `error` if there are differences between the settings of results at `path` and of this run.

    `verb` ("made" or "begun") and `remedy`, which tells the user what to do, are parts of the message.
    """
    if differences:
        raise error.at(path, f"{verb} before with other settings ({'; '.join(differences)}); {remedy}")


def _difference_text(name: str, *values: Any) -> str:
    words = printable(name.replace("_", " "), 50)
    is_plural = any(isinstance(value, list) for value in values) or re.search("[^s]s$", words)
    return f"other {words}" if is_plural else f"another {words}"


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the options of nested objects under names such as "losses.con"."""
    flat = dict[str, Any]()
    for name, value in options.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _digests(value: Any) -> Any:
    """Return an input's digests without file names, because files may be moved."""
    if isinstance(value, list):
        return [_digests(entry) for entry in value] or None
    return value.get("sha256") if isinstance(value, dict) else value


def _as_text(value: Any) -> str:
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return "not set" if value is None else printable(str(value), 50)
