"""Read BindCraft's JSON files: target settings, advanced settings and filters; presets are files of this package.

`DEFAULT_PRESET` is the preset of advanced settings with the defaults. `NOT_COMPUTED` are values that only PyRosetta
computes, which are not filtered by.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from data_pipeline.io.errors import InputError, did_you_mean, printable
from data_pipeline.io.json_files import read_json

_PRESETS: Final = Path(str(resources.files("helixfold.apps.design") / "presets"))
# Preset of advanced settings whose values are the defaults.
DEFAULT_PRESET: Final = "default_4stage_multimer"
_ALGORITHMS: Final = ("4stage", "3stage")
_LABEL_PATTERN: Final = re.compile(r"(Average|[1-5])_(.+)")
# Values that only PyRosetta computes, so that their thresholds are not applied.
NOT_COMPUTED: Final = ("Binder_Energy_Score", "PackStat", "dG", "dG/dSASA")
_ADVICE: Final = "see docs/how-to/design-binders.md"


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A limit of one value of a binder: the value must be at least (`is_minimum`) or at most `limit`.

    `label` names the value and the model, or the mean of all models. For InterfaceAAs, counts by amino acid, `key` is
    the one-letter code of the counted amino acid; otherwise it is "".
    """

    label: str  # such as Average_pLDDT or 1_pLDDT
    limit: float
    is_minimum: bool
    key: str = ""

    @property
    def name(self) -> str:
        """Return BindCraft's name of the threshold: the label, and the amino acid if it is for one (label_key)."""
        return f"{self.label}_{self.key}" if self.key else self.label

    @property
    def metric(self) -> str:
        """Return the name of the value without the model or "Average", such as pLDDT for 1_pLDDT."""
        match = _LABEL_PATTERN.fullmatch(self.label)
        return self.label if match is None else match[2]

    @property
    def model(self) -> int | None:
        """Return the number, from 1, of the checking model whose value is limited; None for the mean of all models."""
        match = _LABEL_PATTERN.fullmatch(self.label)
        return int(match[1]) if match is not None and match[1].isdigit() else None

    def passes(self, values: Mapping[str, Any]) -> bool:
        """Return whether the value under this label in `values` keeps the limit; a missing value does not."""
        value = values.get(self.label)
        if self.key:
            value = (value or {}).get(self.key)
        return value is not None and (value >= self.limit if self.is_minimum else value <= self.limit)


@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """Content of BindCraft's settings file for a target; None or () for entries that the file does not have.

    `structure` is the path of the target's structure, and `output` the output directory. `chains` are the chains to
    bind, and `hotspots` words such as A5-20. `lengths` is the inclusive range of binder lengths. `name` is the name of
    the target in results, and `accepted` the number of binders to accept. `unused` names the entries that have no
    effect here.
    """

    structure: Path
    output: Path | None
    name: str | None
    chains: tuple[str, ...]
    hotspots: tuple[str, ...]
    lengths: tuple[int, int] | None
    accepted: int | None
    unused: tuple[str, ...]


def read_target(path: Path) -> TargetSettings:
    """Read BindCraft's settings file for a target. Raise `InputError` for values of the wrong type.

    A relative path of the structure is resolved in the working directory, or else in the directory of the file.
    """
    content = _object(path)
    text = {}
    for name in ("starting_pdb", "design_path", "binder_name", "chains", "target_hotspot_residues"):
        text[name] = content.get(name) or ""
        if not isinstance(text[name], str):
            raise InputError.at(path, f"{name} must be text, got {printable(str(text[name]), 60)}")
    lengths, accepted = content.get("lengths"), content.get("number_of_final_designs")
    if lengths is not None and not (
        isinstance(lengths, list) and lengths and all(type(each) is int and 2 <= each <= 2000 for each in lengths)
    ):
        raise InputError.at(path, "lengths must be a list of whole numbers from 2 to 2,000, such as [65, 150]")
    if accepted is not None and (type(accepted) is not int or accepted < 1):
        raise InputError.at(path, "number_of_final_designs must be a whole number of at least 1")
    if not text["starting_pdb"]:
        raise InputError.at(path, f"starting_pdb, the structure of the target, is missing; {_ADVICE}")
    structure = Path(text["starting_pdb"])
    beside = path.parent / structure
    return TargetSettings(
        structure=beside if not structure.is_file() and beside.is_file() else structure,
        output=Path(text["design_path"]) if text["design_path"] else None,
        name=text["binder_name"] or None,
        chains=_parts(text["chains"]),
        hotspots=_parts(text["target_hotspot_residues"]),
        lengths=None if lengths is None else (min(lengths), max(lengths)),
        accepted=accepted,
        unused=tuple(sorted(content.keys() - {*text, "lengths", "number_of_final_designs"})),
    )


def read_advanced(name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return BindCraft's advanced settings, and the names of entries that have no effect here.

    `name` is a file or a preset. Settings that it does not have get the values of `DEFAULT_PRESET`. Raise `InputError`
    for a value of the wrong kind, or for an algorithm other than 4stage and 3stage.
    """
    defaults, path = read_json(_PRESETS / f"{DEFAULT_PRESET}.json", _ADVICE), _path(name, "stage_multimer")
    content = _object(path)
    for key, value in content.items():
        if key in defaults and not _fits(value, defaults[key], key):
            raise InputError.at(path, f"{printable(key)} cannot be {printable(str(value), 60)}; {_ADVICE}")
    settings = {**defaults, **{key: value for key, value in content.items() if key in defaults}}
    if settings["design_algorithm"] not in _ALGORITHMS:
        algorithm = printable(str(settings["design_algorithm"]), 60)
        raise InputError.at(path, f"design_algorithm must be one of {', '.join(_ALGORITHMS)}, got {algorithm}")
    return settings, tuple(sorted(content.keys() - defaults.keys()))


def read_filters(name: str, changed: Sequence[str] = ()) -> list[Threshold]:
    """Return the thresholds of a file of BindCraft's filters or of a preset, both given as `name`.

    Entries without a limit are left out. `changed` are words such as i_pTM=0.3 or 1_pLDDT=none, which change or remove
    thresholds. A word with a label such as 1_pLDDT is for one threshold. A word with a metric such as pLDDT is for the
    mean and all models. Raise `InputError` if the file or a word is not valid.
    """
    path = _path(name, "_filters")
    thresholds: list[Threshold] = []
    for label, content in _object(path).items():
        entries = {"": content} if isinstance(content, dict) and "threshold" in content else content
        if not isinstance(entries, dict) or not all(isinstance(each, dict) for each in entries.values()):
            raise InputError.at(path, f"{printable(label)} must have threshold and higher; {_ADVICE}")
        for key, entry in entries.items():
            limit, higher = entry.get("threshold"), entry.get("higher")
            if limit is None:
                continue
            if not isinstance(limit, int | float) or not isinstance(higher, bool):
                raise InputError.at(path, f"{printable(label)} must have a number as threshold, and higher; {_ADVICE}")
            thresholds.append(Threshold(label=label, limit=float(limit), is_minimum=higher, key=key))
    for word in changed:
        thresholds = _changed(thresholds, word)
    return thresholds


def _changed(thresholds: Sequence[Threshold], word: str) -> list[Threshold]:
    name, equals, value = word.partition("=")
    try:
        limit = None if value == "none" else float(value)
    except ValueError:
        limit = float("nan")
    named = [each for each in thresholds if name in (each.label, each.metric, each.name)]
    if not equals or (limit is not None and not abs(limit) < 1e9) or not named:
        names = sorted({each.metric for each in thresholds})
        hint = did_you_mean(name, names) or f"; values with thresholds are {', '.join(names)}"
        raise InputError(f"--threshold takes a value and a limit, such as i_pTM=0.3, got {printable(word)!r}{hint}")
    unchanged = [each for each in thresholds if each not in named]
    if limit is None:
        return unchanged
    return [
        *unchanged,
        *(Threshold(label=each.label, limit=limit, is_minimum=each.is_minimum, key=each.key) for each in named),
    ]


def applied(thresholds: Sequence[Threshold], models: int) -> tuple[list[Threshold], list[Threshold]]:
    """Divide thresholds into a list to apply if `models` models check binders, and a list of others.

    The others limit values that only PyRosetta computes, or values of further models.
    """
    yes = [each for each in thresholds if each.metric not in NOT_COMPUTED and (each.model or 1) <= models]
    return yes, [each for each in thresholds if each not in yes]


def _path(name: str, ending: str) -> Path:
    """Return the path of a preset whose file name contains `ending`, or else of the file `name`.

    The endings of presets' names may be left out. Raise `InputError` if neither exists.
    """
    presets = {path.stem: path for path in sorted(_PRESETS.glob("*.json")) if ending in path.stem}
    for each in (name, f"{name}_filters", f"{name}_4stage_multimer"):
        if each in presets:
            return presets[each]
    path = Path(name)
    if not path.is_file():
        hint = did_you_mean(name, presets) or f"; presets are {', '.join(presets)}"
        raise InputError.at(path, f"no such file or preset{hint}")
    return path


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path, _ADVICE)
    if not isinstance(content, dict):
        raise InputError.at(path, f"settings are an object; {_ADVICE}")
    return content


def _fits(value: object, default: object, key: str) -> bool:
    if key == "max_trajectories":
        return value is False or (type(value) is int and value > 0)
    if key == "omit_AAs":
        return value is None or value is False or isinstance(value, str)
    if isinstance(default, bool | str):
        return type(value) is type(default)
    return type(value) in (int, float) and (isinstance(default, float) or value == int(float(str(value))))


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
