"""Write `report.html`, a self-contained page with all results of a target, from the files in its directory."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER, GAP, UNKNOWN
from helixfold.folding.prediction import CONFIDENCE_BANDS, Prediction
from helixfold.folding.templates import templates_in
from helixfold.report.files import TargetFiles, present, read_order, read_target, structures_of, summary_of
from helixfold.report.maps import alignment_picture, distance_maps, pae_map
from helixfold.report.methods import methods_of
from helixfold.report.page import VIEWER, VIEWER_LICENCE, Blobs, asset, packed_asset, page
from helixfold.report.provenance import made_by
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

_MIN_SUPERPOSED = 3  # residues of a template
# Further predictions are shown only in the page of the ensemble.
_MAX_PREDICTIONS = 20


def write_report(directory: Path, order: Sequence[str] | None = None) -> None:
    """Write a target's report from its files; `order` names the predictions, the best first, by default its ranking.

    Only the first 20 predictions are shown. The viewer takes 0.2 MB, a structure about 0.2 kB per residue, and for PAE
    see `helixfold.report.maps`. With five models, a page has some 0.7 MB for 200 residues, 2 MB for 500 and 16 MB for
    2,000. Raise `InputError` for damaged files.
    """
    names = tuple(order or read_order(directory))
    write_file(REPORT.path(directory), _page(read_target(directory, names[:_MAX_PREDICTIONS]), len(names)))


def _page(target: TargetFiles, predictions: int) -> str:
    blobs, chains = Blobs(), chains_in(target)
    superposer = Superposer(target.best.plddt, blobs)
    data = {
        "name": target.name,
        "sequence": target.sequence,
        "numbers": target.best.residue_numbers,
        "chains": chains,
        "bands": [asdict(band) for band in CONFIDENCE_BANDS],
        "viewer": blobs.add(packed_asset(VIEWER)),
        "models": _models(target, superposer, blobs),
        "templates": _superposed_templates(target, superposer),
        "alignment": _alignment(target, blobs),
    }
    best = target.best
    names = {prediction.name for prediction in target.predictions}
    stages = stages_of(target)
    letters = [band_of(value).letter for value in best.plddt.tolist()]
    return page(
        "report.html",
        styles=("page.css", "report.css"),
        scripts=(
            *("banner.js", "marks.js", "drawing.js", "structure.js", "heat_map.js", "line_plot.js"),
            *("alignment.js", "sequence.js", "report.js"),
        ),
        inserted=(VIEWER,),
        made_by=made_by(target),
        earlier_version=target.settings.get("helixfold", str, ""),
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
        total=sum(stage["seconds"] for stage in stages),
        peak=max((stage["peak_gib"] for stage in stages), default=0.0),
        facts=[
            (caption, rows)
            for caption, rows in (
                ("Settings", facts_of(target.settings.child("options"))),
                ("Inputs (files with their digests)", facts_of(target.settings.child("inputs"))),
                ("Sizes and machine", facts_of(target.timings, without=("stages", "notes", "models"))),
            )
            if rows
        ],
        tables=[
            ("How each prediction was computed", table_of(target.timings, "models", names)),
            ("Inputs of each prediction", table_of(target.settings, "predictions", names)),
        ],
        files=described_files(target.directory),
        data=data,
        blobs=blobs.texts,
        licence=asset(VIEWER_LICENCE),
    )


def _models(target: TargetFiles, superposer: Superposer, blobs: Blobs) -> list[dict[str, Any]]:
    """Return the predictions in the format of the page's script.

    Structures and PAE are added, the best prediction first, and then distances, until the page is full.
    """
    length = len(target.sequence)
    models: list[dict[str, Any]] = [
        {
            "name": prediction.name,
            "plddt": [round(value, 2) for value in prediction.plddt.tolist()],
            "structures": {} if blobs.full else _structures(target.directory, prediction, superposer),
            "maps": []
            if blobs.full or (pae := present(PAE.path(target.directory, prediction=prediction.name))) is None
            else [pae_map(pae, length, blobs)],
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
            model["maps"] += distance_maps(distances, length, blobs)
    return models


def _structures(directory: Path, prediction: Prediction, superposer: Superposer) -> dict[str, Any]:
    packed = {kind: superposer.packed(path) for kind, path in structures_of(directory, prediction.name).items()}
    return {kind: structure for kind, structure in packed.items() if structure is not None}


def _superposed_templates(target: TargetFiles, superposer: Superposer) -> list[dict[str, Any]]:
    """Return the templates that the network used, each superposed on its chain of the best structure."""
    features, record = target.features, target.best.provenance
    if features is None or record is None:
        return []
    numbers = np.array(target.best.residue_numbers)
    templates: list[dict[str, Any]] = []
    for each in templates_in(features):
        in_chain = np.ones(len(numbers), bool)
        if isinstance(features, ComplexFeatures):
            in_chain = features.asym_id == features.chain_names.index(each.chain_id) + 1
        mask = features.template_all_atom_masks[each.slot]
        indices = np.flatnonzero(in_chain & (mask[:, ATOM_ORDER["CA"]] > 0))
        if each.label not in record.templates or len(indices) < _MIN_SUPERPOSED or superposer.blobs.full:
            continue
        template = Protein(
            aatype=np.minimum(features.template_aatype[each.slot][indices], UNKNOWN),
            atom_positions=features.template_all_atom_positions[each.slot][indices],
            atom_mask=mask[indices],
            residue_index=numbers[indices],
            chain_index=np.zeros(len(indices), np.int64),
            b_factors=np.zeros((len(indices), mask.shape[1])),
        )
        if (structure := superposer.packed_template(template, indices)) is not None:
            templates.append({"name": each.label, "structure": structure})
    return templates


def _alignment(target: TargetFiles, blobs: Blobs) -> dict[str, Any] | None:
    """Return the number of rows that cover each residue and, if there are features, a picture of the rows."""
    features = target.features
    if features is not None:
        depth = (features.msa != GAP).sum(0).tolist()
        return {"rows": len(features.msa), "depth": depth, "picture": alignment_picture(features, blobs)}
    if target.summary.depth:
        return {"rows": target.summary.rows, "depth": list(target.summary.depth), "picture": None}
    return None


def chains_in(target: TargetFiles) -> list[tuple[str, int]]:
    """Return the names and numbers of residues of the chains, in order.

    If the chains in the confidence file do not add up to the sequence, a single chain A is returned.
    """
    chains = [(chain.name, chain.residues) for chain in target.summary.chains]
    length = len(target.sequence)
    return chains if sum(residues for _, residues in chains) == length else [("A", length)]
