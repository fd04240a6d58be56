"""Read the samples of an ensemble from a target's directory, and compare them with each other and with references."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.errors import InputError
from data_pipeline.files import read_file
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER
from helixfold.analysis.ensemble import (
    PairScores,
    conformations,
    fluctuations,
    medoid,
    nearest,
    scores_to,
    tm_map,
)
from helixfold.report.files import MMCIF, SETTINGS, TargetFiles, read_record
from helixfold.report.structures import MOST_BYTES, alphas_of

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
    settings = target.settings or read_record(target.directory / SETTINGS)
    found = []
    for rank, prediction in enumerate(target.predictions):
        origin = None if settings is None else settings.child("predictions").child(prediction.name)
        # A slim target has ranked structures alone.
        ranked = [target.directory / f"ranked_{rank}{suffix}" for suffix in (".pdb", MMCIF)]
        structure = prediction.structures.get("unrelaxed") or next(filter(Path.is_file, ranked), None)
        if structure is None:
            raise InputError.at(target.directory, f"{prediction.name} has no structure file; fold the target again")
        found.append(
            Sample(
                name=prediction.name,
                model=prediction.name if origin is None else origin.get("model", str, prediction.name),
                seed=None if origin is None or "seed" not in origin.content else origin.get("seed", int),
                # Without the settings, which are the same for all clusters.
                alignment="all" if origin is None else origin.get("alignment", str, "all").partition(" (")[0],
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
