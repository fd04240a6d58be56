"""The record of a target's inputs, options and predictions in `settings.json`.

A resumed run compares it with its own settings to decide which results to keep. The file also has the provenance of
each prediction (programs, device, command), which is not compared.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.feature_file import features_digest
from data_pipeline.features.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.io.errors import InputError
from data_pipeline.io.files import sha256_of
from data_pipeline.io.json_files import read_json
from helixfold import __version__
from helixfold.apps.options import PredictOptions
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.settings import PredictionRequest, RunSettings
from helixfold.apps.search_plan import recorded_searches, search_identities
from helixfold.folding.prediction import Prediction, PredictionIdentity
from helixfold.folding.provenance import Provenance, provenance_entries, read_provenance
from helixfold.folding.templates import templates_in
from helixfold.results.file_table import SETTINGS
from helixfold.results.json_object import AGAIN
from helixfold.results.mmcif import ModelOrigin
from helixfold.results.prediction import read_finished
from helixfold.results.record import RunRecord
from helixfold.results.writing import to_json, write_file
from helixfold.runtime.options import traits_of
from helixfold.weights.provenance import WEIGHTS_PROVENANCES, WeightsProvenance

_PARAMETERS_DESCRIPTIONS: dict[WeightsProvenance, str] = {
    "untrained": "untrained parameters",
    "demonstration": "the demonstration model",
    "trained": "trained parameters",
}
# Maximum number of clusters of an alignment; a larger number means that the file is damaged.
_MAX_CLUSTERS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ClusterRecord:
    """How the MSA rows of a target were clustered: settings, number of clusters, and DBSCAN's eps.

    `count` and `eps` are None before the alignment exists; `eps` is also None if no row could be clustered.
    """

    settings: str
    count: int | None = None
    eps: float | None = None

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "ClusterRecord":
        """Read the MSA clusters of settings.json; raise KeyError, TypeError or ValueError if it is damaged."""
        count, eps = entry["count"], entry["eps"]
        if count is not None and not 0 <= int(count) <= _MAX_CLUSTERS:
            raise ValueError(f"count must be 0 to {_MAX_CLUSTERS:,}, got {count}")
        return cls(
            settings=str(entry["settings"]),
            count=None if count is None else int(count),
            eps=None if eps is None else float(eps),
        )


@dataclass(frozen=True, kw_only=True)
class TargetRecord:
    """The inputs (as digests), the options that change results, and the predictions of one target.

    `clusters` are the clusters of its alignment, if each is a variant to predict from. `provenance` has the software
    and device of each finished prediction; it is not compared, because results of another machine are valid.
    """

    inputs: Mapping[str, Any]
    options: Mapping[str, Any]
    predictions: Mapping[str, PredictionIdentity]  # by name
    provenance: Mapping[str, Provenance] = field(default_factory=dict)  # by name, of finished predictions
    clusters: ClusterRecord | None = None
    description: str = ""  # of the target, for the report; not compared

    def differences(self, other: "TargetRecord") -> list[str]:
        """Return a phrase for each setting of `other` that differs from this record; new predictions do not count.

        Parameters of `other` that are less trustworthy count as a difference.
        """
        differences = self.run_record.differences(other.run_record)
        mine, theirs = self.clusters, other.clusters
        if mine is not None and theirs is not None and mine.settings != theirs.settings:
            differences.append(f"clusters by {mine.settings}, now by {theirs.settings}")
        for name, origin in other.predictions.items():
            earlier = self.predictions.get(name, origin)
            if earlier.seed != origin.seed:
                differences.append(f"seed {earlier.seed} of {name}, now {origin.seed}")
            elif earlier.alignment != origin.alignment:
                before, now = (each.alignment or "all rows" for each in (earlier, origin))
                differences.append(f"alignment of {name}: {before}, now {now}")
        if other.is_superseded_by(self):
            differences.append(other.made_with)
        return differences

    @property
    def run_record(self) -> RunRecord:
        """Return the inputs, the options and the digests of the models' parameters."""
        weights = {origin.model: origin.weights for origin in self.predictions.values()}
        return RunRecord(inputs=self.inputs, options=self.options, weights=weights)

    @property
    def weights_provenance(self) -> WeightsProvenance:
        """Return the least trustworthy provenance of parameters among the predictions."""
        all_provenance = (origin.weights_provenance for origin in self.predictions.values())
        return min(all_provenance, key=WEIGHTS_PROVENANCES.index, default="trained")

    @property
    def made_with(self) -> str:
        """Return a description of the parameters for messages, such as "the demonstration model"."""
        return _PARAMETERS_DESCRIPTIONS[self.weights_provenance]

    def is_superseded_by(self, other: "TargetRecord") -> bool:
        """Return whether `other` has more trustworthy parameters, so that these results may be replaced."""
        return WEIGHTS_PROVENANCES.index(self.weights_provenance) < WEIGHTS_PROVENANCES.index(other.weights_provenance)

    def extended(self, other: "TargetRecord") -> "TargetRecord":
        """Return `other` with the predictions and the provenance of this record added; these keep their names.

        A prediction of `other` that this record has under another name is left out. The clusters of this record are
        kept until `other` has counted clusters.
        """
        present_keys = {origin.key for origin in self.predictions.values()}
        new_predictions = {name: origin for name, origin in other.predictions.items() if origin.key not in present_keys}
        # Take inputs and options from `other`, because this record may come from a file, which is less reliable.
        return replace(
            other,
            predictions={**self.predictions, **new_predictions},
            provenance=self.provenance,
            clusters=self.clusters if other.clusters is None or other.clusters.count is None else other.clusters,
        )

    def name_of(self, prediction: PredictionRequest) -> str:
        """Return the name of a requested prediction in the record, or the requested name if it is not there."""
        return self._names.get(prediction.identity.key, prediction.name)

    @cached_property
    def _names(self) -> dict[tuple[str, int, str], str]:
        """The names of the recorded predictions by key; the first of several names of a key."""
        return {origin.key: name for name, origin in reversed([*self.predictions.items()])}

    def finished(self, directory: Path, residues: int) -> dict[str, Prediction]:
        """Read the recorded predictions whose files are complete and undamaged, by name.

        Predictions with another number of residues than `residues` are left out.
        """
        predictions = {name: read_finished(directory, name) for name in self.predictions}
        return {
            name: prediction
            for name, prediction in predictions.items()
            if prediction is not None and len(prediction.plddt) == residues
        }

    def write(self, directory: Path, notes: Sequence[str]) -> None:
        """Write settings.json into the target's directory, with notes for all readers of the results."""
        # The order of the predictions does not depend on the order in which they were made.
        provenance = {name: self.provenance[name] for name in self.predictions if name in self.provenance}
        content = {
            "helixfold": __version__,
            **({"description": self.description} if self.description else {}),
            "inputs": self.inputs,
            "options": self.options,
            "predictions": {name: origin.to_dict() for name, origin in self.predictions.items()},
            **({} if self.clusters is None else {"clusters": vars(self.clusters)}),
            "provenance": provenance_entries(provenance),
            "notes": list(notes),
        }
        write_file(SETTINGS.path(directory), to_json(content, indent=2))


def record_for(
    job: Job, settings: RunSettings, predictions: Iterable[PredictionRequest], clusters: ClusterRecord | None = None
) -> TargetRecord:
    """Return the record of a target with these settings and requested predictions, without provenance.

    Raise `InputError` if an input file cannot be read.
    """
    inputs: dict[str, Any] = {"sequence": hashlib.sha256(job.sequence.encode()).hexdigest()}
    if job.target is None:
        inputs["features"] = features_digest(job.ready_features)
    else:
        if any(fragments := _fragments(job.target)):
            inputs["fragments"] = fragments
        inputs["alignments"] = [_file(path) for path in job.target.alignments]
        inputs["searches"] = list(settings.search_identities)
        if isinstance(job.target, ComplexInput):
            inputs["paired_alignments"] = [_file(path) for path in job.target.paired_alignments]
            # In the order of the sequences above, in which chains with the same sequence are neighbours.
            searches = recorded_searches(job.target, settings.searches)
            pair_searches = [search.search for search in searches if search.purpose == "pairs"]
            inputs["searches"] = [*search_identities(settings.searches.of_chains()), *pair_searches]
            if paths := job.target.cross_chain_templates:
                inputs["cross-chain templates"] = [_file(path) for path in paths]
            inputs["chain_IDs"] = [chain for entity in job.target.target.entities for chain in entity.chain_ids]
        inputs["templates"] = [_file(file) for path in job.target.templates for file in _files(path)]
        latest_template = job.target.latest_template
        if job.target.templates:
            latest_template = job.target.template_date(settings.searches.user_templates.latest_release)
        if latest_template is not None and (job.target.templates or settings.searches.templates is not None):
            inputs["latest template"] = latest_template.isoformat()
    if job.initial_guess is not None:
        inputs["initial guess"] = _file(job.initial_guess)
    if job.restraints is not None:
        inputs["restraints"] = _file(job.restraints)
    return TargetRecord(
        inputs=inputs,
        options={
            **_recorded_options(settings),
            **({"pair_mode": job.target.pair_mode} if isinstance(job.target, ComplexInput) else {}),
        },
        predictions={prediction.name: prediction.identity for prediction in predictions},
        clusters=clusters,
        description="" if job.target is None else job.target.description,
    )


def _recorded_options(settings: RunSettings) -> dict[str, Any]:
    """Return the options that change results: some always, with their resolved values, others if not the default."""
    recorded: dict[str, Any] = {
        "num_recycles": settings.num_recycles,
        "recycle_tolerance": settings.recycle_tolerance,
        "num_ensemble": settings.folding.num_ensemble,
        "stop_at_score": settings.folding.stop_at_score,
        "dtype": settings.folding.dtype,
        "max_msa_rows": settings.memory.max_msa_rows,
        "max_extra_rows": settings.memory.max_extra_rows,
    }
    defaults = PredictOptions()
    for name, traits in traits_of(PredictOptions).items():
        value = getattr(settings.options, name)
        if traits.recorded == "options" and name not in recorded and value != getattr(defaults, name):
            recorded[name] = list(value) if isinstance(value, tuple) else value
    return recorded


def read_record(directory: Path) -> TargetRecord | None:
    """Read settings.json of a target; return None if it is missing or damaged."""
    try:
        return record_of(read_json(SETTINGS.path(directory), AGAIN))
    except InputError:
        return None


def record_of(content: Any) -> TargetRecord | None:
    """Return the record from the content of settings.json; None if it is damaged or a name is unsafe in file names."""
    try:
        predictions = {str(name): PredictionIdentity.from_dict(entry) for name, entry in content["predictions"].items()}
        record = TargetRecord(
            inputs=dict(content["inputs"]),
            options=dict(content["options"]),
            predictions=predictions,
            provenance=read_provenance(content.get("provenance")),
            clusters=None if content.get("clusters") is None else ClusterRecord.from_dict(content["clusters"]),
            description=str(content.get("description", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    # Names become parts of file names.
    has_safe_names = all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name) for name in predictions)
    return record if has_safe_names else None


def model_origin(record: TargetRecord, name: str, features: TargetFeatures) -> ModelOrigin:
    """Return the origin of a prediction for its mmCIF file, from the record of its target and its features."""
    origin, provenance = record.predictions[name], record.provenance.get(name)
    settings = {key: value for key, value in record.options.items() if isinstance(value, str | int | float)}
    model = ModelOrigin(
        parameters=origin.model, parameters_digest=origin.weights, settings={"seed": origin.seed, **settings}
    )
    if provenance is None:
        return model
    templates = (each for each in templates_in(alignment_of(features)) if each.label in provenance.templates)
    return replace(model, software=provenance.software, searches=provenance.searches, templates=tuple(templates))


def _fragments(target: AnyTarget) -> list[str]:
    """Return the residues of a longer chain that each chain has, such as 1-100; "" for a whole chain."""
    return list(target.target.fragments) if isinstance(target, ComplexInput) else [target.fragment]


def _files(path: Path) -> Iterable[Path]:
    """Return the files of a directory, or the file itself."""
    return sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]


def _file(path: Path) -> dict[str, str]:
    """Return the name and the SHA-256 of an input file, as recorded."""
    try:
        status = path.stat()
        return {"file": path.name, "sha256": _digest(path, status.st_size, status.st_mtime_ns)}
    except OSError as error:
        raise InputError.at(path, f"cannot be read: {error.strerror}") from error


@cache
def _digest(path: Path, size: int, modified: int) -> str:
    """Return the SHA-256 digest of a file, cached because many targets share templates."""
    return sha256_of(path)
