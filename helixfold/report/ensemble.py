"""Write the page and tables of an ensemble: many predictions of one target, grouped into conformations.

Predictions are read from the target's directory and may come from several runs. `MIN_SAMPLES` is the minimum number of
predictions without references.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import read_file
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER
from helixfold.analysis.ensemble import (
    SAME_CONFORMATION,
    PairScores,
    conformations,
    fluctuations,
    medoid,
    nearest,
    scores_to,
    tm_map,
)
from helixfold.folding.prediction import CONFIDENCE_BANDS, Prediction
from helixfold.report.files import TargetFiles, read_order, read_target, structures_of
from helixfold.report.page import VIEWER, VIEWER_LICENCE, Blobs, asset, packed, packed_asset, page
from helixfold.report.provenance import made_by
from helixfold.report.structures import MAX_BYTES, Superposer, alphas_of
from helixfold.report.tables import band_of, headed, mark_of, notes_of
from helixfold.report.target_page import chains_in
from helixfold.results.file_table import ENSEMBLE_PAGE, ENSEMBLE_TABLE, FLUCTUATIONS_TABLE, REPORT
from helixfold.results.prediction import best_structure
from helixfold.results.writing import rounded, tab_separated, write_file

# All pairs of some samples are compared. These limits of samples and work keep that within some seconds.
_MAX_COMPARED = 200
_MAX_WORK = 1_500_000  # pairs times residues
_CA: Final = ATOM_ORDER["CA"]


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Samples of one target, the best first, with their conformations and comparisons.

    `to_best` and `references` have the scores of all samples against the best sample and against each reference, by its
    name. `tm_scores` has the TM-scores of all pairs of the samples `compared`, in that order. Every other sample is
    assigned to the conformation of the most similar representative. `refused` has the names of references that cannot
    be compared, with the reasons.
    """

    samples: Sequence[Prediction]
    structures: Sequence[Path]  # of the samples, PDB or mmCIF
    to_best: PairScores
    references: Sequence[tuple[str, PairScores]]
    refused: Sequence[tuple[str, str]]
    compared: Int[np.ndarray, " m"]  # indices of samples, with similar ones next to each other
    tm_scores: Float[np.ndarray, "m m"]
    conformation: Int[np.ndarray, " n"]  # of each sample, from 0, which is the largest
    representatives: Int[np.ndarray, " k"]  # for each conformation, the sample that is most similar to the others
    rmsf: Float[np.ndarray, " r"]  # Å; NaN for unknown residues, which have no C-alpha atom


def read_ensemble(target: TargetFiles, references: Sequence[Path] = ()) -> Ensemble:
    """Read and compare the structures of a target's predictions, and group them into conformations.

    `references` are paths of structure files or directories to compare with. Raise `InputError` for damaged files.
    """
    structures = _structures(target)
    # Unknown residues have no C-alpha atom in any structure.
    has_alpha = np.concatenate([chain.atom_mask[:, _CA] > 0 for chain in read_structure(structures[0]).chains])
    if len(has_alpha) != len(target.best.plddt):
        problem = f"it has {len(has_alpha)} residues; expected {len(target.best.plddt)}; fold the target again"
        raise InputError.at(structures[0], problem)
    length = int(has_alpha.sum())
    points = np.empty((len(structures), length, 3), np.float32)
    for index, structure in enumerate(structures):
        alphas = alphas_of(structure, read_file(structure, MAX_BYTES))
        if len(alphas) != length:
            problem = f"it has {len(alphas)} C-alpha atoms; expected {length}; fold the target again"
            raise InputError.at(structure, problem)
        points[index] = alphas
    limit = max(2, min(int(np.sqrt(2 * _MAX_WORK / length)), _MAX_COMPARED))
    compared = np.unique(np.linspace(0, len(points) - 1, min(len(points), limit)).round().astype(int))
    scores = tm_map(points[compared])
    labels, order = conformations(scores)
    groups = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
    representatives = np.array([compared[group[medoid(scores[np.ix_(group, group)])]] for group in groups])
    conformation = np.full(len(points), -1)
    conformation[compared] = labels
    if len(rest := np.flatnonzero(conformation < 0)):
        conformation[rest] = nearest(points[rest], points[representatives])[0]
    # Conformations are sorted again, because the largest of the compared samples need not be the largest of all.
    by_size = np.argsort(-np.bincount(conformation), kind="stable")
    conformation = np.argsort(by_size)[conformation]
    representatives = representatives[by_size]
    order = order[np.argsort(conformation[compared[order]], kind="stable")]
    reference_scores, refused = _references(structures[0], points, has_alpha, references)
    rmsf = np.full(len(has_alpha), np.nan)
    rmsf[has_alpha] = fluctuations(points)
    return Ensemble(
        samples=target.predictions,
        structures=structures,
        to_best=scores_to(points, points[0]),
        references=reference_scores,
        refused=refused,
        compared=compared[order],
        tm_scores=scores[np.ix_(order, order)],
        conformation=conformation,
        representatives=representatives,
        rmsf=rmsf,
    )


def _structures(target: TargetFiles) -> list[Path]:
    """Return the structure files of a target's predictions, the best first, unrelaxed if these exist.

    Raise `InputError` if a prediction has no structure file.
    """
    paths = []
    for rank, prediction in enumerate(target.predictions):
        # A slim target has only ranked structures.
        unrelaxed = structures_of(target.directory, prediction.name).get("unrelaxed")
        path = unrelaxed or best_structure(target.directory, rank)
        if path is None:
            raise InputError.at(target.directory, f"{prediction.name} has no structure file; fold the target again")
        paths.append(path)
    return paths


def _alignment_of(sample: Prediction) -> str:
    """Return the variant of the alignment of a sample: "all" for the whole alignment."""
    # The settings in brackets are left out, because they are the same for all clusters.
    return sample.identity.alignment.partition(" (")[0] or "all"


def _references(
    best: Path, points: Float[np.ndarray, "n a 3"], has_alpha: Bool[np.ndarray, " r"], paths: Sequence[Path]
) -> tuple[list[tuple[str, PairScores]], list[tuple[str, str]]]:
    """Return the scores against each reference by its name, and why references of other proteins are refused."""
    if not paths:
        return [], []
    # These modules are imported here, because they load slowly.
    from helixfold.analysis.matching import structure_files  # noqa: PLC0415
    from helixfold.analysis.residues import ComparisonError, best_pairing  # noqa: PLC0415

    scores, refused = list[tuple[str, PairScores]](), list[tuple[str, str]]()
    for file in (each for path in paths for each in structure_files(path)):
        predicted, reference = read_structure(best).chains, read_structure(file.path).chains
        try:
            pairing = best_pairing(predicted, reference)
        except ComparisonError as error:
            refused.append((file.name, str(error)))
            continue
        # Indices in the chain are converted to indices in all chains, and then among residues with a C-alpha atom.
        before = predicted[: [chain is pairing.predicted for chain in predicted].index(True)]
        indices = sum(len(chain.aatype) for chain in before) + pairing.place[pairing.both]
        indices = (np.cumsum(has_alpha) - 1)[indices]
        observed = pairing.reference.atom_positions[pairing.both, _CA]
        scores.append((file.name, scores_to(points[:, indices], observed, int(pairing.observed.sum()))))
    return scores, refused


# Minimum number of predictions of an ensemble; AlphaFold's five models do not count as one.
MIN_SAMPLES: Final = 6
_MAX_STRUCTURES = 12
_MAX_LISTED_SAMPLES = 20


def write_ensemble(directory: Path, order: Sequence[str] | None = None, references: Sequence[Path] = ()) -> bool:
    """Write ensemble.html, ensemble.tsv and ensemble_rmsf.tsv of a target with more than five predictions.

    `order` names the predictions, the best first; by default, it is the target's ranking. With `references`, structures
    such as two known conformations, two predictions are enough. Return False if there are too few predictions. Raise
    `InputError` for damaged files.
    """
    names = tuple(order or read_order(directory))
    if len(names) < (2 if references else MIN_SAMPLES):
        return False
    target = read_target(directory, names)
    ensemble = read_ensemble(target, references)
    write_file(ENSEMBLE_TABLE.path(directory), samples_table(ensemble))
    write_file(FLUCTUATIONS_TABLE.path(directory), rmsf_table(target, ensemble))
    write_file(ENSEMBLE_PAGE.path(directory), _page(target, ensemble))
    return True


def remove_ensemble(directory: Path) -> None:
    """Remove the page and tables of an earlier run from a target that no longer has enough predictions."""
    for kind in (ENSEMBLE_PAGE, ENSEMBLE_TABLE, FLUCTUATIONS_TABLE):
        kind.path(directory).unlink(missing_ok=True)


def samples_table(ensemble: Ensemble) -> str:
    """Return a table with a line for each sample, the best first; TM-scores are from 0 to 1, and RMSD is in Å."""
    columns = [*("rank", "prediction", "model", "seed", "alignment", "conformation", "mean_plddt", "ptm")]
    columns += [*("tm_to_best", "rmsd_to_best")]
    columns += [f"{score}_to_{name}" for name, _ in ensemble.references for score in ("tm", "rmsd")]
    pairs = [ensemble.to_best, *(scores for _, scores in ensemble.references)]
    lines = [
        [
            *(rank, each.name, each.model, each.seed, _alignment_of(each), int(ensemble.conformation[rank]) + 1),
            *(rounded(each.mean_plddt), rounded(each.ptm)),
            *(rounded(float(value[rank])) for pair in pairs for value in (pair.tm_score, pair.rmsd)),
        ]
        for rank, each in enumerate(ensemble.samples)
    ]
    return tab_separated(columns, lines)


def rmsf_table(target: TargetFiles, ensemble: Ensemble) -> str:
    """Return a table with the fluctuation (RMSF) of each residue in Å, and its pLDDT in the best sample."""
    chains = [name for name, residues in chains_in(target) for _ in range(residues)]
    lines = (
        [chain, residue, rounded(float(rmsf)), rounded(plddt)]
        for chain, residue, rmsf, plddt in zip(
            chains, target.best.residue_numbers, ensemble.rmsf, target.best.plddt.tolist(), strict=True
        )
    )
    return tab_separated(("chain", "residue", "rmsf", "plddt_of_best"), lines)


def _page(target: TargetFiles, ensemble: Ensemble) -> str:
    blobs = Blobs()
    data = {
        "name": target.name,
        "sequence": target.sequence,
        "numbers": target.best.residue_numbers,
        "chains": chains_in(target),
        "bands": [asdict(band) for band in CONFIDENCE_BANDS],
        "viewer": blobs.add(packed_asset(VIEWER)),
        "models": _models(target, ensemble, blobs),
        "samples": _samples(ensemble),
        "map": {
            "samples": ensemble.compared.tolist(),
            "data": blobs.add(packed(np.rint(ensemble.tm_scores * 250).astype(np.uint8).tobytes())),
        },
        "rmsf": [None if np.isnan(value) else round(float(value), 2) for value in ensemble.rmsf],
    }
    pairs = ensemble.tm_scores[np.triu_indices(len(ensemble.tm_scores), 1)]
    return page(
        "ensemble.html",
        styles=("page.css", "report.css", "ensemble.css"),
        scripts=("banner.js", "marks.js", "drawing.js", "structure.js", "ensemble.js", "ensemble_map.js"),
        inserted=(VIEWER,),
        made_by=made_by(target),
        target=target,
        ensemble=ensemble,
        conformations=_conformations(ensemble),
        best=ensemble.samples[:_MAX_LISTED_SAMPLES],
        alignment_of=_alignment_of,
        report=REPORT.name(),
        table=ENSEMBLE_TABLE.name(),
        mean_tm=float(pairs.mean()),
        same=SAME_CONFORMATION,
        bands=CONFIDENCE_BANDS,
        band=band_of,
        mark=mark_of(notes_of(target)),
        notes=[headed(note) for note in notes_of(target)],
        data=data,
        blobs=blobs.texts,
        licence=asset(VIEWER_LICENCE),
    )


def _models(target: TargetFiles, ensemble: Ensemble, blobs: Blobs) -> list[dict[str, Any]]:
    """Return the representative structures of the conformations in the format of the page's script."""
    superposer, models = Superposer(target.best.plddt, blobs), list[dict[str, Any]]()
    for index, rank in enumerate(ensemble.representatives[:_MAX_STRUCTURES].tolist()):
        structure = None if blobs.full else superposer.packed(ensemble.structures[rank])
        models.append(
            {
                "name": f"conformation {index + 1}: {ensemble.samples[rank].name}",
                "structures": {} if structure is None else {"unrelaxed": structure},
                "domains": [],
            }
        )
    return models


def _samples(ensemble: Ensemble) -> dict[str, Any]:
    """Return the values of all samples, by rank, for the plots."""
    axes = [
        {"title": f"{score} to {name}", "unit": unit, "values": [round(float(value), 3) for value in values]}
        for name, pair in [("best sample", ensemble.to_best), *ensemble.references]
        for score, unit, values in (("TM-score", "", pair.tm_score), ("RMSD", "Å", pair.rmsd))
    ]
    return {
        "names": [each.name for each in ensemble.samples],
        "alignments": [_alignment_of(each) for each in ensemble.samples],
        "conformation": ensemble.conformation.tolist(),
        "axes": [
            *axes,
            {"title": "Mean pLDDT", "unit": "", "values": [round(each.mean_plddt, 2) for each in ensemble.samples]},
        ],
    }


def _conformations(ensemble: Ensemble) -> list[dict[str, Any]]:
    """Return the lines of the table of conformations.

    `number` counts from 1. `samples` is the number of samples, and `share` their fraction of all, 0 to 1.
    `representative` names the sample that is most similar to the others. `best_plddt` is the largest mean pLDDT of the
    samples, and `tm_to_best` and `tm_to_references` are their mean TM-scores. `alignments` has the most frequent
    variants with their numbers of samples, and `model` the index of the structure among the structures in the page.
    """
    lines = []
    for index, representative in enumerate(ensemble.representatives.tolist()):
        members = np.flatnonzero(ensemble.conformation == index)
        samples = [ensemble.samples[rank] for rank in members.tolist()]
        lines.append(
            {
                "number": index + 1,
                "samples": len(samples),
                "share": len(samples) / len(ensemble.samples),
                "representative": ensemble.samples[representative].name,
                "best_plddt": max(sample.mean_plddt for sample in samples),
                "tm_to_best": float(ensemble.to_best.tm_score[members].mean()),
                "tm_to_references": [float(scores.tm_score[members].mean()) for _, scores in ensemble.references],
                "alignments": Counter(map(_alignment_of, samples)).most_common(3),
                "model": index if index < _MAX_STRUCTURES else None,
            }
        )

    return lines
