"""Write `report.html`, an offline page that shows all results of a target, from the files in its directory."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER, GAP, UNKNOWN
from helixfold import __version__
from helixfold.folding.prediction import CONFIDENCE_BANDS, Prediction
from helixfold.folding.templates import templates_in
from helixfold.report.files import TargetFiles, present, read_order, read_target, structures_of, summary_of
from helixfold.report.maps import alignment_picture, distance_maps, pae_map
from helixfold.report.methods import methods_of
from helixfold.report.page import VIEWER, VIEWER_LICENCE, asset, packed_asset, page
from helixfold.report.provenance import earlier_version, made_by
from helixfold.report.structures import Superposer
from helixfold.report.tables import (
    band_of,
    described_files,
    facts_of,
    headed,
    mark_of,
    notes_of,
    relaxation_of,
    similar_structures_of,
    stages_of,
    table_of,
    templates_of,
    warnings_of,
)
from helixfold.results.file_table import DISTANCES, ENSEMBLE_PAGE, PAE, REPORT
from helixfold.results.writing import write_file

_LEAST_SUPERPOSED = 3  # residues of a template
# Predictions beyond these are in the page of their ensemble.
_MOST_PREDICTIONS = 20
# Predictions are added from the best on until this many characters are used, so that a page can still be mailed.
_MOST_CHARACTERS = 16_000_000
_STYLES = ("page.css", "report.css")
_SCRIPTS = (
    "banner.js",
    "marks.js",
    "drawing.js",
    "structure.js",
    "heat_map.js",
    "line_plot.js",
    "alignment.js",
    "sequence.js",
    "report.js",
)


@dataclass(kw_only=True)
class Blobs:
    """Packed data of a page, each in its own HTML element, so that a browser unpacks only what the reader looks at."""

    texts: dict[str, str] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        return sum(map(len, self.texts.values())) > _MOST_CHARACTERS

    def add(self, text: str) -> str:
        name = f"blob-{len(self.texts)}"
        self.texts[name] = text
        return name


def write_report(directory: Path, order: Sequence[str] | None = None) -> None:
    """Write a target's report from its files; `order` names its predictions, the best first, else its ranking does.

    The viewer takes 0.2 MB, a structure about 0.2 kB a residue, and a PAE as much as `helixfold.report.maps` says. With
    five models a page has some 0.7 MB for 200 residues, 2 MB for 500 and 16 MB for 2,000. Raise `InputError` for files
    that are damaged.
    """
    names = tuple(order or read_order(directory))
    write_file(REPORT.path(directory), _page(read_target(directory, names[:_MOST_PREDICTIONS]), len(names)))


def _page(target: TargetFiles, predictions: int) -> str:
    blobs, chains = Blobs(), chains_in(target)
    superposer = Superposer(target.best.plddt)
    data = {
        "name": target.name,
        "sequence": target.sequence,
        "numbers": target.best.residue_numbers,
        "chains": chains,
        "bands": [asdict(band) for band in CONFIDENCE_BANDS],
        "viewer": blobs.add(packed_asset(VIEWER)),
        "models": _models(target, superposer, blobs),
        "templates": _superposed_templates(target, superposer, blobs),
        "alignment": _alignment(target, blobs),
    }
    best = target.best
    names = {prediction.name for prediction in target.predictions}
    stages = stages_of(target)
    letters = [band_of(value).letter for value in best.plddt.tolist()]
    return page(
        "report.html",
        styles=_STYLES,
        scripts=_SCRIPTS,
        inserted=(VIEWER,),
        version=__version__,
        made_by=made_by(target),
        earlier_version=earlier_version(target.settings),
        target=target,
        predictions=predictions,
        ensemble=ENSEMBLE_PAGE.name() if ENSEMBLE_PAGE.path(target.directory).is_file() else None,
        best=best,
        chains=chains,
        bands=CONFIDENCE_BANDS,
        band=band_of,
        shares=[letters.count(band.letter) / len(letters) for band in CONFIDENCE_BANDS],
        mark=mark_of(notes_of(target)),
        notes=[headed(note) for note in notes_of(target)],
        warnings=warnings_of(target),
        templates=templates_of(target),
        similar=similar_structures_of(target),
        relaxation=relaxation_of(target),
        methods=methods_of(target),
        stages=stages,
        total=sum(stage.seconds for stage in stages),
        peak=max((stage.peak_gib for stage in stages), default=0.0),
        facts=[(caption, rows) for caption, rows in _facts(target) if rows],
        tables=[
            ("How each prediction was computed", table_of(target.timings, "models", names)),
            ("What each was made from", table_of(target.settings, "predictions", names)),
        ],
        files=described_files(target.directory),
        data=data,
        blobs=blobs.texts,
        licence=asset(VIEWER_LICENCE),
    )


def _facts(target: TargetFiles) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    if target.settings is not None:
        yield "Settings", facts_of(target.settings.child("options"))
        yield "Made from (files by their digests)", facts_of(target.settings.child("inputs"))
    yield "Sizes and machine", facts_of(target.timings, without=("stages", "notes", "models"))


def _models(target: TargetFiles, superposer: Superposer, blobs: Blobs) -> list[dict[str, Any]]:
    """Return the predictions as the page's script reads them.

    Structures and PAEs are added from the best prediction on, and then distances, until the page is full.
    """
    length = len(target.sequence)
    models: list[dict[str, Any]] = [
        {
            "name": prediction.name,
            "plddt": [round(value, 2) for value in prediction.plddt.tolist()],
            "structures": {} if blobs.full else _structures(target.directory, prediction, superposer, blobs),
            "maps": []
            if blobs.full or (pae := present(PAE.path(target.directory, prediction=prediction.name))) is None
            else [_packed(pae_map(pae, length), blobs)],
            "domains": [
                {"name": domain.name, "ranges": domain.ranges, "chains": domain.chains}
                for domain in summary_of(prediction).domains
            ],
        }
        for prediction in target.predictions
    ]
    for prediction, model in zip(target.predictions, models, strict=True):
        distances = present(DISTANCES.path(target.directory, prediction=prediction.name))
        if distances is not None and not blobs.full:
            model["maps"] += [_packed(found, blobs) for found in distance_maps(distances, length)]
    return models


def _structures(directory: Path, prediction: Prediction, superposer: Superposer, blobs: Blobs) -> dict[str, Any]:
    found = {kind: superposer.packed(path) for kind, path in structures_of(directory, prediction.name).items()}
    return {kind: _packed(structure, blobs) for kind, structure in found.items() if structure is not None}


def _superposed_templates(target: TargetFiles, superposer: Superposer, blobs: Blobs) -> list[dict[str, Any]]:
    """Return the templates that the network read, each superposed on its chain of the best structure."""
    features, record = target.features, target.best.provenance
    if features is None or record is None:
        return []
    numbers = np.array(target.best.residue_numbers)
    found: list[dict[str, Any]] = []
    for each in templates_in(features):
        own = np.ones(len(numbers), bool)
        if isinstance(features, ComplexFeatures):
            own = features.asym_id == features.chain_names.index(each.chain_id) + 1
        mask = features.template_all_atom_masks[each.slot]
        places = np.flatnonzero(own & (mask[:, ATOM_ORDER["CA"]] > 0))
        if each.label not in record.templates or len(places) < _LEAST_SUPERPOSED or blobs.full:
            continue
        template = Protein(
            aatype=np.minimum(features.template_aatype[each.slot][places], UNKNOWN),
            atom_positions=features.template_all_atom_positions[each.slot][places],
            atom_mask=mask[places],
            residue_index=numbers[places],
            chain_index=np.zeros(len(places), np.int64),
            b_factors=np.zeros((len(places), mask.shape[1])),
        )
        if (structure := superposer.packed_template(template, places)) is not None:
            found.append({"name": each.label, "structure": _packed(structure, blobs)})
    return found


def _alignment(target: TargetFiles, blobs: Blobs) -> dict[str, Any] | None:
    """Return the rows that cover each residue and, if there are features, a picture of the rows."""
    features = target.features
    if features is not None:
        depth = (features.msa != GAP).sum(0).tolist()
        return {"rows": len(features.msa), "depth": depth, "picture": _packed(alignment_picture(features), blobs)}
    if target.summary.depth:
        return {"rows": target.summary.rows, "depth": list(target.summary.depth), "picture": None}
    return None


def _packed(content: Any, blobs: Blobs) -> dict[str, Any]:
    """Return packed data as a dict, in which the name of an HTML element stands for the data that it holds."""
    return {**asdict(content), "data": blobs.add(content.data)}


def chains_in(target: TargetFiles) -> list[tuple[str, int]]:
    """Return names and lengths of the chains, in order; one chain A where the confidence file does not say."""
    chains = [(chain.name, chain.residues) for chain in target.summary.chains]
    length = len(target.sequence)
    return chains if sum(residues for _, residues in chains) == length else [("A", length)]
