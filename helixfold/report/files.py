"""Read and check the files of a finished target's directory for its report.

All files except the predictions' confidence files may be missing; the report then lacks that part.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.feature_file import load_features
from data_pipeline.features.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from helixfold.folding.prediction import ConfidenceSummary, Prediction, PredictionIdentity
from helixfold.folding.provenance import read_provenance
from helixfold.results.confidence import read_prediction
from helixfold.results.file_table import (
    FEATURES,
    RANKING,
    RELAXATION,
    RELAXED,
    SETTINGS,
    TEMPLATES,
    TIMINGS,
    UNRELAXED,
)
from helixfold.results.json_object import JsonObject

_PREDICTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True, kw_only=True)
class TargetFiles:
    """Content of a target's directory; a missing JSON file is an empty object.

    `name` is the name in the input file. `sequence` has the residues of all chains, without separators. `relaxation`
    and `settings` are relax_metrics.json and settings.json.
    """

    directory: Path
    name: str
    sequence: str
    predictions: tuple[Prediction, ...]  # the best first
    features: Features | ComplexFeatures | None  # for a complex, the features of multimer models; None without the file
    templates: JsonObject
    relaxation: JsonObject
    timings: JsonObject
    settings: JsonObject

    @property
    def best(self) -> Prediction:
        """The prediction with the best rank, the first one."""
        return self.predictions[0]

    @property
    def rows(self) -> int | None:
        """The number of rows of the alignment, from the features or else the confidence file; None if unknown."""
        return self.summary.rows if self.features is None else len(self.features.msa)

    @property
    def rows_read(self) -> int | None:
        """The number of MSA rows that the best prediction's model used in each recycling iteration.

        None if it used all rows, or if the number is unknown.
        """
        rows = self.timings.child("models").child(self.best.name).optional_number("msa_rows_read")
        return int(rows) if rows and self.rows and rows < self.rows else None

    @property
    def protein(self) -> str:
        """The protein's name, with its organism, from the description in its input file; "" if it has none.

        UniProt writes `Hemoglobin subunit alpha OS=Homo sapiens OX=9606 ...`, the PDB
        `A, C|HEMOGLOBIN|Homo sapiens (1)`.
        """
        description = self.settings.get("description", str, "")
        name, _, rest = description.partition(" OS=")
        organism = re.split(r" [A-Z]{2}=", rest, maxsplit=1)[0]
        if not rest and description.count("|") == 2:
            _, name, organism = description.split("|")
            organism = re.sub(r" \([0-9]+\)$", "", organism)
        return f"{name}, {organism}" if organism else name

    @property
    def summary(self) -> ConfidenceSummary:
        """The confidence summary of the best prediction."""
        return summary_of(self.best)


def read_target(directory: Path, order: Sequence[str] | None = None) -> TargetFiles:
    """Read a target's directory; `order` names its predictions, the best first, by default as in its ranking.

    Raise `InputError` if a file is damaged, or if files disagree about the number of residues.
    """
    settings = read_record(SETTINGS.path(directory))
    unlabelled = (read_prediction(directory, name) for name in order or read_order(directory))
    predictions = tuple(_with_record(prediction, settings) for prediction in unlabelled)
    length = len(predictions[0].plddt)
    for prediction in predictions:
        if len(prediction.plddt) != length:
            raise InputError.at(
                directory,
                f"{prediction.name} has {len(prediction.plddt)} residues, but others have {length}; fold the target "
                "again",
            )
    features = load_features(FEATURES.path(directory)) if FEATURES.path(directory).is_file() else None
    if features is not None and len(_residues(features)) != length:
        problem = f"its sequence has {len(_residues(features))} residues; expected {length}; fold the target again"
        raise InputError.at(FEATURES.path(directory), problem)
    return TargetFiles(
        directory=directory,
        name=summary_of(predictions[0]).target,
        sequence=_sequence(directory, predictions[0], features),
        predictions=tuple(replace(prediction, features=features) for prediction in predictions),
        features=None if features is None else alignment_of(features),
        templates=read_record(TEMPLATES.path(directory)),
        relaxation=read_record(RELAXATION.path(directory)),
        timings=read_record(TIMINGS.path(directory)),
        settings=settings,
    )


def read_order(directory: Path) -> tuple[str, ...]:
    """Read the names of a finished target's predictions from its ranking, the best first.

    Raise `InputError` if the ranking is missing, damaged or empty, or if a name cannot be part of a file name.
    """
    order = JsonObject.read(RANKING.path(directory)).list_of("order", str)
    if not all(map(_PREDICTION_NAME.fullmatch, order)):
        problem = "a prediction's name cannot be part of a file name; fold the target again"
        raise InputError.at(RANKING.path(directory), problem)
    if not order:
        raise InputError.at(RANKING.path(directory), "it has no predictions; fold the target again")
    return order


def _residues(features: TargetFeatures) -> str:
    """Return the residues of all chains."""
    return features.sequence.replace(CHAIN_SEPARATOR, "")


def _sequence(directory: Path, prediction: Prediction, features: TargetFeatures | None) -> str:
    """Return the sequence from the features, or else from a structure file, or else an X for each residue."""
    if features is not None:
        return _residues(features)
    for path in structures_of(directory, prediction.name).values():
        letters = "".join(chain.sequence for chain in read_structure(path).chains)
        if len(letters) == len(prediction.plddt):
            return letters
    return "X" * len(prediction.plddt)


def read_record(path: Path) -> JsonObject:
    """Read the object in a JSON file; it is empty if the file does not exist. Raise `InputError` if it is damaged."""
    return JsonObject.read(path) if path.is_file() else JsonObject(path, {})


def _with_record(prediction: Prediction, settings: JsonObject) -> Prediction:
    """Add the identity and provenance that settings.json records to a prediction."""
    identity = prediction.identity
    with suppress(KeyError, TypeError, ValueError):
        identity = PredictionIdentity.from_dict(settings.content["predictions"][prediction.name])
    provenance = read_provenance(settings.content.get("provenance")).get(prediction.name)
    return replace(prediction, identity=identity, provenance=provenance)


def summary_of(prediction: Prediction) -> ConfidenceSummary:
    """Return the `summary` of a prediction that was read from its files, which is never None there."""
    assert prediction.summary is not None
    return prediction.summary


def structures_of(directory: Path, name: str) -> dict[str, Path]:
    """Return a prediction's structure files, PDB or else mmCIF, by the keys "relaxed" and "unrelaxed" if they exist."""
    files: dict[str, Path] = {}
    for title, kind in (("relaxed", RELAXED), ("unrelaxed", UNRELAXED)):
        paths = (present(kind.path(directory, suffix, prediction=name)) for suffix in kind.suffixes)
        if (path := next(filter(None, paths), None)) is not None:
            files[title] = path
    return files


def present(path: Path) -> Path | None:
    """Return the path if it is a file and not a symbolic link, else None."""
    # A page contains whole files and may be sent to others, so it must not include the target of a symbolic link.
    return path if path.is_file() and not path.is_symlink() else None
