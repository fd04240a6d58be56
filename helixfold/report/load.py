"""Read results of helixfold, ColabFold, AlphaFold 2 and AlphaFold DB, and write reports on other programs' results.

Structures, scores, PAE and alignments are read; logits, representations and earlier recycling iterations are not.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.features.complexes.feature_file import save_features
from data_pipeline.features.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.features.complexes.target_files import read_targets
from data_pipeline.io.errors import InputError
from data_pipeline.io.files import read_file
from data_pipeline.io.json_files import MAX_JSON_BYTES
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import protein_from_chains
from helixfold.folding.prediction import Prediction, PredictionIdentity
from helixfold.report.files import read_order, read_target, structures_of
from helixfold.report.target_page import write_report
from helixfold.results.file_table import (
    COLABFOLD_ALIGNMENT,
    COLABFOLD_CONFIG,
    COLABFOLD_RELAXED,
    COLABFOLD_SCORES,
    COLABFOLD_UNRELAXED,
    CONFIDENCE,
    FEATURES,
    OTHERS_REPORT,
    PAE,
    RANKING,
    REPORT,
    SETTINGS,
)
from helixfold.results.json_object import JsonObject
from helixfold.results.prediction import best_structure, read_pae, read_pair_json, write_prediction, write_ranking
from helixfold.results.writing import write_file

_DATABASE_FILE_NAME = re.compile(r"(?P<name>.+)-model_(?P<version>v[0-9]+)\.(cif|pdb)(\.gz)?")
_NO_PAE_PROBLEM: Final = "holds no PAE of this structure in the format of AlphaFold DB"
_SEED_SUFFIX = re.compile(r"_seed_([0-9]+)$")


def load_results(directory: str | Path, target: str | None = None) -> list[Prediction]:
    """Load the predictions of a target from files of helixfold, ColabFold, AlphaFold 2 or AlphaFold DB, best first.

    `directory` has the files of one target, or of several, of which `target` names one. Structures are relaxed where
    possible, coordinates and PAE are in Å, and pLDDT is from 0 to 100, as in predictions of `helixfold.predict`.
    AlphaFold 2 writes pTM only into pickle files, which are not read. Raise `InputError` if there are no results, or if
    they are damaged.
    """
    targets = results_in(Path(directory))
    if target is None and len(targets) > 1:
        names = ", ".join([*targets][:5]) + (", ..." if len(targets) > 5 else "")
        raise InputError.at(directory, f"has {len(targets)} targets; pass one of them as target: {names}")
    if target is not None and target not in targets:
        raise InputError.at(directory, f"has no target {target!r}; it has {', '.join([*targets][:5])}")
    (load,) = targets.values() if target is None else (targets[target],)
    return load()


def results_in(directory: Path) -> Mapping[str, partial[list[Prediction]]]:
    """Return, by the names of the targets in a directory, functions that load their predictions, the best first.

    Results of one program are returned: of helixfold and AlphaFold 2 in the directory or its subdirectories, else of
    ColabFold, else of AlphaFold DB. Raise `InputError` if there are no targets.
    """
    loaders: dict[str, partial[list[Prediction]]] = {}
    for ranking in [RANKING.path(directory), *sorted(directory.glob(f"*/{RANKING.name()}"))]:
        if ranking.is_file():
            load = _of_helixfold if _is_from_helixfold(ranking.parent) else _of_alphafold
            loaders[ranking.parent.resolve().name] = partial(load, ranking.parent)
    if not loaders:
        structures: dict[str, dict[int, tuple[Path, str]]] = {}
        for kind in (COLABFOLD_RELAXED, COLABFOLD_UNRELAXED):
            for path, fields in kind.files(directory):
                structures.setdefault(fields["target"], {}).setdefault(int(fields["rank"]), (path, fields["tag"]))
        loaders = {name: partial(_of_colabfold, name, ranks) for name, ranks in structures.items()}
    if not loaders:
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            if (match := _DATABASE_FILE_NAME.fullmatch(path.name)) is not None:
                loaders.setdefault(match["name"], partial(_of_database, path, match))
    if not loaders:
        problem = "there are no results of helixfold, ColabFold, AlphaFold 2 or AlphaFold DB here or one level below"
        raise InputError.at(directory, problem)
    return loaders


def _is_from_helixfold(directory: Path) -> bool:
    """Return whether helixfold wrote a target, which has files that AlphaFold 2 does not write."""
    has_own_files = SETTINGS.path(directory).is_file() or FEATURES.path(directory).is_file()
    return has_own_files or any(
        b'"ranking_confidence"' in read_file(path, MAX_JSON_BYTES) for path, _ in CONFIDENCE.files(directory)
    )


def _of_helixfold(directory: Path) -> list[Prediction]:
    predictions = []
    for rank, each in enumerate(read_target(directory).predictions):
        structure, errors = _structure(directory, each.name, rank), PAE.path(directory, prediction=each.name)
        pae, largest = read_pae(errors, len(each.plddt)) if errors.is_file() else (None, None)
        protein = protein_from_chains(read_structure(structure).chains)
        values = {"structure": protein, "pae": pae, "max_pae": largest, "file": structure}
        predictions.append(_checked(structure, replace, each, **values))
    return predictions


def _structure(directory: Path, name: str, rank: int) -> Path:
    structures = structures_of(directory, name)
    path = structures.get("relaxed") or structures.get("unrelaxed") or best_structure(directory, rank)
    if path is None:
        raise InputError.at(directory, f"{name} has no structure file")
    return path


def _of_alphafold(directory: Path) -> list[Prediction]:
    ranking = JsonObject.read(RANKING.path(directory))
    confidences = ranking.child("iptm+ptm" if "iptm+ptm" in ranking.content else "plddts")
    return [
        _read(
            _structure(directory, name, rank),
            name=name,
            program="AlphaFold 2",
            errors=PAE.path(directory, prediction=name),
            ranking_confidence=confidences.get(name, float),
        )
        for rank, name in enumerate(read_order(directory))
    ]


def _of_colabfold(target: str, structures: Mapping[int, tuple[Path, str]]) -> list[Prediction]:
    directory = next(iter(structures.values()))[0].parent
    alignment, config = (kind.path(directory, target=target) for kind in (COLABFOLD_ALIGNMENT, COLABFOLD_CONFIG))
    features = target_features(read_targets([alignment])[0]) if alignment.is_file() else None
    version = JsonObject.read(config).get("version", str, "") if config.is_file() else ""
    return [
        _read(
            path,
            name=tag,
            program="helixfold" if version.startswith("helixfold") else "ColabFold",
            scores=COLABFOLD_SCORES.path(directory, target=target, rank=rank, tag=tag),
            features=features,
        )
        for rank, (path, tag) in sorted(structures.items())
    ]


def _of_database(path: Path, match: re.Match[str]) -> list[Prediction]:
    name, version = match["name"], match["version"]
    errors = path.with_name(f"{name}-predicted_aligned_error_{version}.json")
    return [_read(path, name=f"{name}-model_{version}", program="AlphaFold DB", errors=errors)]


def _read(
    path: Path,
    *,
    name: str,
    program: str,
    scores: Path | None = None,
    errors: Path | None = None,
    ranking_confidence: float | None = None,
    features: TargetFeatures | None = None,
) -> Prediction:
    """Read a prediction of another program: its structure, and PAE and scores from these files if they exist.

    pLDDT is read from the B-factors of the structure. `scores` is ColabFold's scores file, and `errors` a PAE file in
    AlphaFold DB's format.
    """
    chains = read_structure(path).chains
    if not chains:
        raise InputError.at(path, "has no protein")
    protein = protein_from_chains(chains)
    plddt = protein.b_factors.max(1)
    pae: Float[np.ndarray, "r r"] | None = None
    max_pae, values = None, JsonObject(path, {})
    if errors is not None and errors.is_file():
        pae, max_pae = read_pae(errors, len(plddt), _NO_PAE_PROBLEM)
    if scores is not None and scores.is_file():
        values = JsonObject(scores, read_pair_json(scores, len(plddt)))
        max_pae = values.optional_number("max_pae")
        pae = None if max_pae is None else _checked(scores, np.array, values.get("pae", list), dtype=np.float32)
    ptm, iptm = values.optional_number("ptm"), values.optional_number("iptm")
    if ranking_confidence is None:
        ranking_confidence = float(plddt.mean()) if ptm is None or iptm is None else 0.8 * iptm + 0.2 * ptm
    seed = _SEED_SUFFIX.search(name)
    identity = PredictionIdentity(
        model=_SEED_SUFFIX.sub("", name), seed=int(seed[1]) if seed else 0, weights_provenance="trained"
    )
    note = () if program == "helixfold" else (f"made by {program}, and read by helixfold from {path.name}",)
    return _checked(
        path,
        Prediction,
        name=name,
        identity=identity,
        plddt=plddt,
        ptm=ptm,
        iptm=iptm,
        ranking_confidence=ranking_confidence,
        num_recycles=-1,
        converged=False,
        notes=(*note, *values.list_of("notes", str, [])),
        chain_ids=tuple(chain.name for chain in chains),
        structure=protein,
        pae=pae,
        max_pae=max_pae,
        features=features,
        program=program,
        file=path,
    )


def _checked(path: Path, create: Callable[..., Any], *arguments: Any, **values: Any) -> Any:
    """Call `create`, and replace its `ValueError` with an `InputError` that names the path."""
    try:
        return create(*arguments, **values)
    except InputError:
        raise
    except ValueError as error:
        raise InputError.at(path, str(error)) from error


def write_reports_of_others(directory: Path) -> list[Path]:
    """Write a report for each target of another program in a directory, and return the paths of the reports.

    The report is named report.html for a single target, and <target>_report.html for several, in that directory.
    Targets of helixfold are skipped. Return an empty list if the directory has no results.
    """
    try:
        targets = results_in(directory)
    except InputError:
        return []
    pages = []
    for name, load in targets.items():
        if load.func is _of_helixfold:
            continue
        predictions = load()
        page = REPORT.path(directory) if len(targets) == 1 else OTHERS_REPORT.path(directory, target=name)
        with TemporaryDirectory() as temporary:
            copy = Path(temporary) / name
            copy.mkdir()
            depth = None
            if (features := predictions[0].features) is not None:
                save_features(FEATURES.path(copy), features)
                depth = alignment_depth(alignment_of(features).msa)
            for each in predictions:
                write_prediction(copy, each, depth, name)
            write_ranking(copy, predictions)
            write_report(copy)
            write_file(page, REPORT.path(copy).read_bytes())
        pages.append(page)
    return pages
