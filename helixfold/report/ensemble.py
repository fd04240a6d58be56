"""Write the page and the tables of an ensemble: many predictions of one target, grouped into conformations.

They are made from the files in the target's directory, whichever run made them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from helixfold import __version__
from helixfold.analysis.ensemble import SAME_CONFORMATION
from helixfold.prediction import CONFIDENCE_BANDS
from helixfold.report.ensemble_samples import Ensemble, read_ensemble
from helixfold.report.files import TargetFiles, read_order, read_target
from helixfold.report.page import VIEWER, VIEWER_LICENCE, asset, packed, packed_asset, page
from helixfold.report.provenance import made_by
from helixfold.report.structures import Superposer
from helixfold.report.tables import band_of, headed, mark_of, notes_of
from helixfold.report.target_page import ENSEMBLE_FILE, REPORT_FILE, Blobs, chains_in
from helixfold.write.results import write_file
from helixfold.write.text_tables import rounded, tab_separated

PAGE_FILE: Final = ENSEMBLE_FILE
TABLE_FILE, RMSF_FILE = "ensemble.tsv", "ensemble_rmsf.tsv"
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
    write_file(directory / TABLE_FILE, samples_table(ensemble))
    write_file(directory / RMSF_FILE, rmsf_table(target, ensemble))
    write_file(directory / PAGE_FILE, _page(target, ensemble))
    return True


def remove_ensemble(directory: Path) -> None:
    """Remove the page and the tables that an earlier run wrote of a target that is no ensemble any more."""
    for name in (PAGE_FILE, TABLE_FILE, RMSF_FILE):
        (directory / name).unlink(missing_ok=True)


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
            chains, target.best.numbers, ensemble.rmsf, target.best.plddt, strict=True
        )
    )
    return tab_separated(("chain", "residue", "rmsf", "plddt_of_best"), lines)


def _page(target: TargetFiles, ensemble: Ensemble) -> str:
    blobs = Blobs()
    data = {
        "name": target.name,
        "sequence": target.sequence,
        "numbers": target.best.numbers,
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
        report=REPORT_FILE,
        table=TABLE_FILE,
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
    superposer, models = Superposer(np.array(target.best.plddt)), list[dict[str, Any]]()
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
