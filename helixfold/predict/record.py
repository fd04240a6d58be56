"""What a target's files were made from, in `settings.json` beside them: no run takes old results for new ones."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

from data_pipeline.errors import InputError, printable
from data_pipeline.search.plan import SearchPlan
from helixfold import __version__
from helixfold.predict.jobs import Job, Method, Wanted
from helixfold.weights.find import Standing
from helixfold.write.ranking import Finished, read_finished
from helixfold.write.records import read_json
from helixfold.write.results import RANKING_FILE, TIMINGS_FILE, to_json, write_file

SETTINGS_FILE = "settings.json"
_ORDER: tuple[Standing, ...] = get_args(Standing)
_STANDINGS: dict[Standing, str] = {
    "untrained": "untrained parameters",
    "demonstration": "the demonstration model",
    "trained": "trained parameters",
}
# What a run writes, but for its features and the results of its searches; longer names of others are left alone.
_OURS = re.compile(
    r"(ranked_\d+|(un)?relaxed_.+)\.(pdb|cif)|(confidence|pae)_.+\.json|(distances|logits)_.+\.npz"
    r"|.+_(plddt|pae|ptm|msa)\.tsv|(plddt|pae|coverage)\.png|report\.html"
    rf"|(relax_metrics|templates|{re.escape(TIMINGS_FILE[:-5])}|{re.escape(SETTINGS_FILE[:-5])})\.json"
)


@dataclass(frozen=True, kw_only=True)
class Made:
    """One prediction that was asked for: which model with which parameters, and the seed of its draws."""

    model: str
    seed: int
    weights: str  # digest of the parameters
    standing: Standing


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a target is made from: its inputs by their digests, the options that change results, the predictions."""

    inputs: Mapping[str, Any]
    options: Mapping[str, Any]
    predictions: Mapping[str, Made]

    def differences(self, other: "Record") -> list[str]:
        """What `other` asks for that is not so here, in a person's words; more predictions are no difference."""
        found = [
            f"{name.replace('_', ' ')}: other ones" if isinstance(self.inputs.get(name), list) else f"another {name}"
            for name in sorted({*self.inputs, *other.inputs})
            if _digests(self.inputs.get(name)) != _digests(other.inputs.get(name))
        ]
        found += [
            f"{name} {_shown(self.options.get(name))}, now {_shown(other.options.get(name))}"
            for name in sorted({*self.options, *other.options})
            if self.options.get(name) != other.options.get(name)
        ]
        by_model = {made.model: made.weights for made in self.predictions.values()}
        for name, made in other.predictions.items():
            mine = self.predictions.get(name)
            if by_model.get(made.model, made.weights) != made.weights:
                found.append(f"other weights of {made.model}")
            elif mine is not None and mine.seed != made.seed:
                found.append(f"seed {mine.seed} of {name}, now {made.seed}")
        if other.gives_way_to(self):
            found.append(other.made_with)
        return list(dict.fromkeys(found))

    @property
    def standing(self) -> Standing:
        """That of the prediction which deserves the least trust."""
        return min((made.standing for made in self.predictions.values()), key=_ORDER.index, default="trained")

    @property
    def made_with(self) -> str:
        """The parameters, in a person's words."""
        return _STANDINGS[self.standing]

    def gives_way_to(self, other: "Record") -> bool:
        """Whether this is only there until better parameters are."""
        return _ORDER.index(self.standing) < _ORDER.index(other.standing)

    def with_more(self, other: "Record") -> "Record":
        """The other one and the predictions that are there already, which keep their names."""
        there = {(made.model, made.seed) for made in self.predictions.values()}
        more = {name: made for name, made in other.predictions.items() if (made.model, made.seed) not in there}
        # Not this one's other entries, which come out of a file: they are equal, or as good as.
        return replace(other, predictions={**self.predictions, **more})

    def name_of(self, wanted: Wanted) -> str:
        """What a prediction is called here."""
        asked = wanted.model.preset.name, wanted.seed
        return next((name for name, made in self.predictions.items() if (made.model, made.seed) == asked), wanted.name)

    def finished(self, directory: Path, residues: int) -> dict[str, Finished]:
        """The predictions whose files are there, whole."""
        found = {name: read_finished(directory, name) for name in self.predictions}
        return {name: each for name, each in found.items() if each is not None and len(each.plddt) == residues}

    def write(self, directory: Path, notes: Sequence[str]) -> None:
        """Into the target's directory, with what every reader must know."""
        content = {
            "helixfold": __version__,
            "inputs": self.inputs,
            "options": self.options,
            "predictions": {name: vars(made) for name, made in self.predictions.items()},
            "notes": list(notes),
        }
        write_file(directory / SETTINGS_FILE, to_json(content, indent=2))


def record_of(job: Job, method: Method) -> Record:
    """What a run is about to make a target from."""
    options = method.options
    inputs: dict[str, Any] = {"sequence": hashlib.sha256(job.sequence.encode()).hexdigest()}
    if job.target is None:
        inputs["features"] = job.features_digest
    else:
        inputs["alignments"] = [_file(path) for path in job.target.alignments]
        inputs["templates"] = [_file(file) for path in job.target.templates for file in _files(path)]
        inputs["searches"] = list(method.search_identities)
        if job.target.templates and (latest := method.searches.own_templates.latest_release) is not None:
            inputs["latest template"] = latest.isoformat()
    return Record(
        inputs=inputs,
        options={
            "num_recycles": method.num_recycles,
            "recycle_tolerance": options.recycle_tolerance,
            "num_ensemble": options.num_ensemble,
            "stop_at_score": options.stop_at_score,
            "dtype": options.dtype,
            "max_msa_rows": method.memory.max_msa_rows,
            "max_extra_rows": method.memory.max_extra_rows,
        },
        predictions={
            wanted.name: Made(
                model=wanted.model.preset.name,
                seed=wanted.seed,
                weights=wanted.model.digest,
                standing=wanted.model.standing,
            )
            for wanted in method.wanted
        },
    )


def read_record(directory: Path) -> Record | None:
    """What a target was made from; None if that is not there, or damaged."""
    try:
        content: Any = read_json(directory / SETTINGS_FILE)
        predictions = {
            str(name): Made(
                model=str(made["model"]),
                seed=int(made["seed"]),
                weights=str(made["weights"]),
                standing=_ORDER[_ORDER.index(made["standing"])],
            )
            for name, made in content["predictions"].items()
        }
        record = Record(inputs=dict(content["inputs"]), options=dict(content["options"]), predictions=predictions)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    # Names become names of files.
    safe = all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name) for name in predictions)
    return record if safe else None


def clear(directory: Path) -> None:
    """Remove what an earlier run made, first the mark that it is finished; searches' results stay."""
    if not directory.is_dir():
        return
    (directory / RANKING_FILE).unlink(missing_ok=True)
    for path in directory.iterdir():
        if _OURS.fullmatch(path.name) and not path.is_dir():
            path.unlink()


def search_identities(plan: SearchPlan) -> tuple[str, ...]:
    """Every search that is made for a target, each in the one line that says what determines its result."""
    steps = [step.tool.identity() for step in plan.alignments]
    if (templates := plan.templates) is not None:
        latest = templates.options.latest_release
        steps.append(templates.tool.identity() + (f" until {latest.isoformat()}" if latest else ""))
    return tuple(steps)


def _digests(value: Any) -> Any:
    """Without the names of files, which may be moved."""
    if isinstance(value, list):
        return [each.get("sha256") if isinstance(each, dict) else each for each in value] or None
    return value


def _shown(value: Any) -> str:
    return "not given" if value is None else f"{value:g}" if isinstance(value, float) else printable(str(value), 50)


def _files(path: Path) -> Iterable[Path]:
    return sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]


def _file(path: Path) -> dict[str, str]:
    try:
        status = path.stat()
        return {"file": path.name, "sha256": _digest(path, status.st_size, status.st_mtime_ns)}
    except OSError as error:
        raise InputError.at(path, f"cannot be read: {error.strerror}") from error


@cache
def _digest(path: Path, size: int, modified: int) -> str:
    """Read once in a run; many targets share their templates."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
