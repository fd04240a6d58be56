"""Write the page and the tables of an ensemble: many predictions of one target, grouped into conformations.

They are made from the files in the target's directory, whichever run made them.
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
from helixfold import __version__
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
from helixfold.folding.prediction import CONFIDENCE_BANDS
from helixfold.report.files import TargetFiles, read_order, read_target, structures_of
from helixfold.report.page import VIEWER, VIEWER_LICENCE, asset, packed, packed_asset, page
from helixfold.report.provenance import made_by
from helixfold.report.structures import MOST_BYTES, Superposer, alphas_of
from helixfold.report.tables import band_of, headed, mark_of, notes_of
from helixfold.report.target_page import Blobs, chains_in
from helixfold.results.file_table import ENSEMBLE_PAGE, ENSEMBLE_TABLE, FLUCTUATIONS_TABLE, REPORT
from helixfold.results.prediction import best_structure
from helixfold.results.text_tables import rounded, tab_separated
from helixfold.results.writing import write_file

# Samples of which all pairs are compared: as many as take some seconds, and at most so many.
_MOST_COMPARED = 200
_MOST_WORK = 1_500_000  # pairs times residues
_CA: Final = ATOM_ORDER["CA"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One prediction of an ensemble: what it was made from, and its confidence."""

    name: str
    model: str
    seed: int | None
    alignment: str  # the variant of the alignment, "all" for the whole one
    mean_plddt: float
    ptm: float | None
    structure: Path  # PDB or mmCIF


@dataclass(frozen=True, kw_only=True)
class ReferenceScores:
    """The scores of all samples against a structure; the TM-score is normalised by its residues."""

    name: str
    residues: int
    scores: PairScores


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Samples of one target, the best first, and how they compare.

    All pairs of the samples `compared` have a TM-score in `tm_scores`, in that order; every other sample has the
    conformation of the representative that it is most like. `refused` tells why a reference is not compared.
    """

    samples: Sequence[Sample]
    to_best: PairScores
    references: Sequence[ReferenceScores]
    refused: Sequence[tuple[str, str]]
    compared: Int[np.ndarray, " m"]  # like ones side by side
    tm_scores: Float[np.ndarray, "m m"]
    conformation: Int[np.ndarray, " n"]  # from 0, the largest
    representatives: Int[np.ndarray, " k"]  # of each conformation, the sample that is most like the others
    rmsf: Float[np.ndarray, " r"]  # Angstrom; NaN for residues without a C-alpha atom, which are unknown ones

    def members(self, conformation: int) -> Int[np.ndarray, " n"]:
        """Return the samples of a conformation, the best first."""
        return np.flatnonzero(self.conformation == conformation)


def read_ensemble(target: TargetFiles, references: Sequence[Path] = ()) -> Ensemble:
    """Read the structures of a target's predictions and compare them; raise `InputError` for damaged files."""
    samples = read_samples(target)
    has_alpha = _with_alphas(samples[0].structure, len(target.best.plddt))
    length = int(has_alpha.sum())
    points = np.empty((len(samples), length, 3), np.float32)
    for number, sample in enumerate(samples):
        found = alphas_of(sample.structure, read_file(sample.structure, MOST_BYTES))
        if len(found) != length:
            raise InputError.at(sample.structure, f"{len(found)} C-alpha atoms, not {length}; fold the target again")
        points[number] = found
    compared = np.unique(np.linspace(0, len(samples) - 1, _count_compared(len(samples), length)).round().astype(int))
    scores = tm_map(points[compared])
    labels, order = conformations(scores)
    groups = [np.flatnonzero(labels == number) for number in range(labels.max() + 1)]
    representatives = np.array([compared[group[medoid(scores[np.ix_(group, group)])]] for group in groups])
    conformation = np.full(len(samples), -1)
    conformation[compared] = labels
    if len(rest := np.flatnonzero(conformation < 0)):
        conformation[rest] = nearest(points[rest], points[representatives])[0]
    # The largest with all samples is first, as it need not be with those that were compared.
    by_size = np.argsort(-np.bincount(conformation), kind="stable")
    conformation = np.argsort(by_size)[conformation]
    representatives = representatives[by_size]
    order = order[np.argsort(conformation[compared[order]], kind="stable")]
    scored, refused = _references(samples[0].structure, points, has_alpha, references)
    rmsf = np.full(len(has_alpha), np.nan)
    rmsf[has_alpha] = fluctuations(points)
    return Ensemble(
        samples=samples,
        to_best=scores_to(points, points[0]),
        references=scored,
        refused=refused,
        compared=compared[order],
        tm_scores=scores[np.ix_(order, order)],
        conformation=conformation,
        representatives=representatives,
        rmsf=rmsf,
    )


def _with_alphas(structure: Path, length: int) -> Bool[np.ndarray, " r"]:
    """Return which of the target's residues have a C-alpha atom: unknown ones have none, in any of its structures."""
    chains = read_structure(structure).chains
    has_alpha = np.concatenate([chain.atom_mask[:, _CA] > 0 for chain in chains])
    if len(has_alpha) != length:
        raise InputError.at(structure, f"{len(has_alpha)} residues, not {length}; fold the target again")
    return has_alpha


def read_samples(target: TargetFiles) -> list[Sample]:
    """Return the predictions of a target with what each was made from; raise `InputError` if a structure is missing."""
    found = []
    for rank, prediction in enumerate(target.predictions):
        identity = prediction.identity
        # A slim target has ranked structures alone.
        structures = structures_of(target.directory, prediction.name)
        structure = structures.get("unrelaxed") or best_structure(target.directory, rank)
        if structure is None:
            raise InputError.at(target.directory, f"{prediction.name} has no structure file; fold the target again")
        found.append(
            Sample(
                name=prediction.name,
                model=identity.model,
                seed=identity.seed,
                # Without the settings, which are the same for all clusters.
                alignment=identity.alignment.partition(" (")[0] or "all",
                mean_plddt=prediction.mean_plddt,
                ptm=prediction.ptm,
                structure=structure,
            )
        )
    return found


def _count_compared(samples: int, residues: int) -> int:
    """Return of how many samples all pairs are compared."""
    most = int(np.sqrt(2 * _MOST_WORK / residues))
    return min(samples, max(2, min(most, _MOST_COMPARED)))


def _references(
    best: Path, points: Float[np.ndarray, "n a 3"], has_alpha: Bool[np.ndarray, " r"], paths: Sequence[Path]
) -> tuple[list[ReferenceScores], list[tuple[str, str]]]:
    """Return the scores against each structure, and the names of those that are of another protein, with the reason."""
    if not paths:
        return [], []
    # They take long to import.
    from helixfold.analysis.matching import structure_files  # noqa: PLC0415
    from helixfold.analysis.residues import ComparisonError, best_pairing  # noqa: PLC0415

    found, refused = list[ReferenceScores](), list[tuple[str, str]]()
    for file in (each for path in paths for each in structure_files(path)):
        predicted, reference = read_structure(best).chains, read_structure(file.path).chains
        try:
            pairing = best_pairing(predicted, reference)
        except ComparisonError as error:
            refused.append((file.name, str(error)))
            continue
        # Places in the chain, in all chains, and then among the residues that have a C-alpha atom.
        before = predicted[: [chain is pairing.predicted for chain in predicted].index(True)]
        places = sum(len(chain.aatype) for chain in before) + pairing.place[pairing.both]
        places = (np.cumsum(has_alpha) - 1)[places]
        observed = pairing.reference.atom_positions[pairing.both, _CA]
        length = int(pairing.observed.sum())
        found.append(
            ReferenceScores(name=file.name, residues=length, scores=scores_to(points[:, places], observed, length))
        )
    return found, refused


# The five models of AlphaFold are no ensemble yet.
LEAST_SAMPLES: Final = 6
_MOST_STRUCTURES = 12
_MOST_LISTED = 20
_SCRIPTS = ("banner.js", "marks.js", "drawing.js", "structure.js", "ensemble.js", "ensemble_map.js")


@dataclass(frozen=True, kw_only=True)
class Conformation:
    """A line of the table of conformations."""

    number: int  # from 1
    samples: int
    share: float
    representative: str
    best_plddt: float
    tm_to_best: float
    tm_to_references: tuple[float, ...]
    alignments: tuple[tuple[str, int], ...]  # the most frequent, with their samples
    model: int | None  # place of its structure among those in the page


def write_ensemble(directory: Path, order: Sequence[str] | None = None, references: Sequence[Path] = ()) -> bool:
    """Write ensemble.html, ensemble.tsv and ensemble_rmsf.tsv of a target of more than five predictions.

    `order` names the predictions, the best first, else the target's ranking does. With `references`, structures such as
    two known conformations, two predictions are enough. Return False if there are too few. Raise `InputError` for files
    that are damaged.
    """
    names = tuple(order or read_order(directory))
    if len(names) < (2 if references else LEAST_SAMPLES):
        return False
    target = read_target(directory, names)
    ensemble = read_ensemble(target, references)
    write_file(ENSEMBLE_TABLE.path(directory), samples_table(ensemble))
    write_file(FLUCTUATIONS_TABLE.path(directory), rmsf_table(target, ensemble))
    write_file(ENSEMBLE_PAGE.path(directory), _page(target, ensemble))
    return True


def remove_ensemble(directory: Path) -> None:
    """Remove the page and the tables that an earlier run wrote of a target that is no ensemble any more."""
    for kind in (ENSEMBLE_PAGE, ENSEMBLE_TABLE, FLUCTUATIONS_TABLE):
        kind.path(directory).unlink(missing_ok=True)


def samples_table(ensemble: Ensemble) -> str:
    """Return a table with a line for each sample, the best first; TM-scores are from 0 to 1, RMSD is in Angstrom."""
    columns = [*("rank", "prediction", "model", "seed", "alignment", "conformation", "mean_plddt", "ptm")]
    columns += [*("tm_to_best", "rmsd_to_best")]
    columns += [f"{score}_to_{each.name}" for each in ensemble.references for score in ("tm", "rmsd")]
    pairs = [ensemble.to_best, *(each.scores for each in ensemble.references)]
    lines = [
        [
            *(rank, each.name, each.model, each.seed, each.alignment, int(ensemble.conformation[rank]) + 1),
            *(rounded(each.mean_plddt), rounded(each.ptm)),
            *(rounded(float(value[rank])) for pair in pairs for value in (pair.tm_score, pair.rmsd)),
        ]
        for rank, each in enumerate(ensemble.samples)
    ]
    return tab_separated(columns, lines)


def rmsf_table(target: TargetFiles, ensemble: Ensemble) -> str:
    """Return a table with the fluctuation of each residue in Angstrom, and its pLDDT in the best sample."""
    chains = [name for name, residues in chains_in(target) for _ in range(residues)]
    lines = (
        [chain, number, rounded(float(rmsf)), rounded(plddt)]
        for chain, number, rmsf, plddt in zip(
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
        scripts=_SCRIPTS,
        inserted=(VIEWER,),
        version=__version__,
        made_by=made_by(target),
        target=target,
        ensemble=ensemble,
        conformations=_conformations(ensemble),
        best=ensemble.samples[:_MOST_LISTED],
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
    """Return the structures that stand for the conformations, as the page's script reads them."""
    superposer, models = Superposer(target.best.plddt), list[dict[str, Any]]()
    for number, rank in enumerate(ensemble.representatives[:_MOST_STRUCTURES].tolist()):
        sample = ensemble.samples[rank]
        structure = None if blobs.full else superposer.packed(sample.structure)
        packed_structure = None if structure is None else {**asdict(structure), "data": blobs.add(structure.data)}
        models.append(
            {
                "name": f"conformation {number + 1}: {sample.name}",
                "structures": {} if packed_structure is None else {"unrelaxed": packed_structure},
                "domains": [],
            }
        )
    return models


def _samples(ensemble: Ensemble) -> dict[str, Any]:
    """Return the numbers of all samples, by rank, for the plots."""
    axes = [
        {"title": f"{score} to {name}", "unit": unit, "values": [round(float(value), 3) for value in values]}
        for name, pair in [
            ("best sample", ensemble.to_best),
            *((each.name, each.scores) for each in ensemble.references),
        ]
        for score, unit, values in (("TM-score", "", pair.tm_score), ("RMSD", "Å", pair.rmsd))
    ]
    return {
        "names": [each.name for each in ensemble.samples],
        "alignments": [each.alignment for each in ensemble.samples],
        "conformation": ensemble.conformation.tolist(),
        "axes": [
            *axes,
            {"title": "Mean pLDDT", "unit": "", "values": [round(each.mean_plddt, 2) for each in ensemble.samples]},
        ],
    }


def _conformations(ensemble: Ensemble) -> list[Conformation]:
    found = []
    for number, representative in enumerate(ensemble.representatives.tolist()):
        members = ensemble.members(number)
        alignments = Counter(ensemble.samples[rank].alignment for rank in members.tolist())
        found.append(
            Conformation(
                number=number + 1,
                samples=len(members),
                share=len(members) / len(ensemble.samples),
                representative=ensemble.samples[representative].name,
                best_plddt=max(ensemble.samples[rank].mean_plddt for rank in members.tolist()),
                tm_to_best=float(ensemble.to_best.tm_score[members].mean()),
                tm_to_references=tuple(float(each.scores.tm_score[members].mean()) for each in ensemble.references),
                alignments=tuple(alignments.most_common(3)),
                model=number if number < _MOST_STRUCTURES else None,
            )
        )
    return found
