"""Tasks of a worker's predicting process: predict a job, run a search for another program, describe its offers."""

import gzip
import io
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.io.extras import are_installed
from data_pipeline.io.files import read_file
from data_pipeline.io.json_files import read_json
from data_pipeline.parse.structures import read_structure
from data_pipeline.search.colabfold_search import ColabfoldPairing, ColabfoldSearch, with_own_query
from data_pipeline.search.plan import SearchPlan
from data_pipeline.templates.result import UnusableHitError
from helixfold.apps.options import MsaMode, PredictOptions
from helixfold.apps.predict.run import run
from helixfold.apps.search_plan import plan_of
from helixfold.apps.serve.alignment_request import (
    ARCHIVE_FILE,
    ENVIRONMENTAL_FILE,
    PAIRED_FILE,
    TEMPLATE_FILE,
    UNIREF_FILE,
    AlignmentRequest,
)
from helixfold.apps.serve.forecast_curve import usual_model
from helixfold.apps.serve.job_options import predict_values
from helixfold.apps.serve.upload_check import fasta_of
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.execution.device import AUTO, DTYPES, limit_threads, pick_device, settled_dtype
from helixfold.folding.options import FoldingOptions
from helixfold.model.presets import Preset
from helixfold.planning.estimate import Device, Prediction, estimate, max_residues
from helixfold.planning.memory import FeatureRows
from helixfold.report.files import read_order
from helixfold.report.tables import mark_of
from helixfold.results.confidence import read_prediction
from helixfold.results.file_table import FAILURES, FEATURES, RANKING
from helixfold.results.json_object import AGAIN
from helixfold.weights import demonstration
from helixfold.weights.find import find_parameters
from helixfold.weights.provenance import WeightsProvenance

_TARGET_HEADER = b">101\n"  # in the alignments of `ColabfoldSearch`
_TARGET_END = b"\0"  # after the rows of each target
_MAX_STRUCTURE_BYTES = 2**28


def search(content: Mapping[str, Any], directory: Path, options: WorkerOptions) -> Path:
    """Run a search in a worker's databases, and return the new folder with an archive of the results.

    Alignments are in the folder as separate files, too. `content` has the fields of an `AlignmentRequest`. Raise
    `SearchError` if the search fails.
    """
    request = AlignmentRequest.from_dict(dict(content))
    plan = plan_of(options.search_options(), announce=False)
    folder = directory / "result"
    folder.mkdir()
    if request.kind == "template":
        files = dict(_template_files(request, plan))
    else:
        files = _search_pairs(request, plan) if request.kind == "pair" else _search_chains(request, plan)
        for name, text in files.items():
            (folder / name).write_bytes(text)
    (folder / ARCHIVE_FILE).write_bytes(pack(files))
    return folder


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a tar.gz archive of files by name. Equal files result in equal archives."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _search_chains(request: AlignmentRequest, plan: SearchPlan) -> dict[str, bytes]:
    """Return the alignments from each database and the table of template hits, by file name."""
    tool = _colabfold_tool(plan)
    is_filtered, with_environmental = not request.mode.endswith("nofilter"), request.mode.startswith("env")
    tool = replace(tool, options=replace(tool.options, filtered=is_filtered))
    if not with_environmental:
        tool = replace(tool, environmental=None)
    uniref, environmental, hits = [], [], []
    records = list(zip(request.names, request.sequences, strict=True))
    for (name, sequence), alignment in zip(records, tool.search_many(request.sequences), strict=True):
        uniref_rows, environmental_rows = split_databases(alignment, sequence)
        uniref.append(_with_name(uniref_rows, name))
        environmental.append(_with_name(environmental_rows, name))
        if tool.templates is not None:
            rows = tool.template_hits(sequence).splitlines(keepends=True)
            hits += [name.encode() + b"\t" + row.partition(b"\t")[2] for row in rows]
    files = {UNIREF_FILE: b"".join(uniref)}
    if with_environmental:
        files[ENVIRONMENTAL_FILE] = b"".join(environmental)
    return files | {TEMPLATE_FILE: b"".join(hits)}


def split_databases(alignment: bytes, sequence: str) -> tuple[bytes, bytes]:
    """Split an alignment of `ColabfoldSearch` into the rows from UniRef and the environmental rows.

    Each part begins with the target, whose residues are `sequence`.
    """
    second_start = alignment.find(b"\n" + _TARGET_HEADER, 1)
    target = _TARGET_HEADER + sequence.encode() + b"\n"
    if second_start < 0:
        return alignment, target
    return alignment[: second_start + 1], with_own_query(alignment[second_start + 1 :], sequence)


def _search_pairs(request: AlignmentRequest, plan: SearchPlan) -> dict[str, bytes]:
    """Return the paired alignment of the request's chains, by file name."""
    tool = plan.pairing.tool if plan.pairing is not None else None
    if not isinstance(tool, ColabfoldPairing):
        raise SearchError("the databases do not contain the species of their sequences, which pairing needs")
    tool = replace(tool, complete=request.mode.startswith("paircomplete"))
    unique_sequences = list(dict.fromkeys(request.sequences))
    alignments = dict(zip(unique_sequences, tool.search(unique_sequences), strict=True))
    named_alignments = [
        _with_name(alignments[sequence], name) for name, sequence in zip(request.names, request.sequences, strict=True)
    ]
    return {PAIRED_FILE: b"".join(named_alignments)}


def _template_files(request: AlignmentRequest, plan: SearchPlan) -> Iterator[tuple[str, bytes]]:
    """Yield the structure files of template hits, and the two files from which hhsearch reads their sequences."""
    step = plan.templates
    if step is None:
        raise SearchError("this worker has no template database")
    records, index_lines, written_files = b"", [], set()
    for name in request.names:
        entry, _, chain_id = name.rpartition("_")
        try:
            path = step.source.path(step.source.current_entry(entry.lower()))
            chains = read_structure(path).chains
        except (UnusableHitError, InputError):
            continue
        file = f"{entry.lower()}.cif"
        if file not in written_files and ".cif" in path.name:
            written_files.add(file)
            content = read_file(path, _MAX_STRUCTURE_BYTES)
            yield file, gzip.decompress(content) if path.suffix == ".gz" else content
        sequence = next((chain.sequence for chain in chains if chain.name == chain_id), None)
        if sequence is not None:
            record = f">{name}\n{sequence}\n".encode() + _TARGET_END
            index_lines.append(f"{name}.a3m\t{len(records)}\t{len(record)}\n")
            records += record
    yield "pdb70_a3m.ffdata", records
    yield "pdb70_a3m.ffindex", "".join(sorted(index_lines)).encode()


def _colabfold_tool(plan: SearchPlan) -> ColabfoldSearch:
    """Return the tool that searches ColabFold's databases. Raise `SearchError` if the worker has none."""
    tool = next((step.tool for step in plan.alignments if isinstance(step.tool, ColabfoldSearch)), None)
    if tool is None:
        raise SearchError("this worker has none of ColabFold's databases")
    return tool


def _with_name(alignment: bytes, name: str) -> bytes:
    """Return the rows of a target with its name in the request as header, and the end mark."""
    return b">" + name.encode() + b"\n" + alignment.partition(b"\n")[2] + _TARGET_END


# Numbers of residues at which time and memory are estimated; the server interpolates between them.
_CURVE_LENGTHS = (64, 256, 1024, 2048, 4096)


def offers(options: WorkerOptions) -> dict[str, Any]:
    """Return the fields of `WorkerOffers` for a worker with these options.

    Raise `InputError` if weights or databases are missing.
    """
    limit_threads()
    device = Device.at_hand(pick_device(options.device), Path(), options.memory)
    models = _offered_models(options)
    presets = [preset for preset, _ in models]
    searches = plan_of(options.search_options(), announce=False)
    return {
        "device": device.properties.name,
        "models": [preset.name for preset in presets],
        "provenance": {preset.name: _provenance(path) for preset, path in models},
        "databases": bool(searches.alignments),
        "templates": searches.templates is not None or searches.complex_templates is not None,
        "alignments": any(isinstance(step.tool, ColabfoldSearch) for step in searches.alignments),
        "relaxes": are_installed("openmm", "pdbfixer"),
        "forecasts": {preset.name: _estimate_curve(preset, device) for preset in presets},
    }


def _offered_models(options: WorkerOptions) -> list[tuple[Preset, Path | None]]:
    """Return the models of the options, or the default models of `helixfold predict` for chains and complexes.

    Each model comes with its parameter file; None means random parameters.
    """
    if options.models:
        return find_parameters(options.models, options.weights)
    models: dict[str, tuple[Preset, Path | None]] = {}
    for method in ("monomer", "multimer"):
        for preset, path in find_parameters((), options.weights, method=method):
            models.setdefault(preset.name, (preset, path))
    return list(models.values())


def _provenance(path: Path | None) -> WeightsProvenance:
    """Return the provenance of parameters; a path of None is random parameters."""
    if path is None:
        return "untrained"
    return "trained" if demonstration.ancestor(path) is None else "demonstration"


def _estimate_curve(preset: Preset, device: Device) -> dict[str, Any]:
    """Return the fields of `ForecastCurve`: time per iteration and peak memory by length, and the longest chain."""

    def workload(residues: int) -> Prediction:
        """Return the work of predicting a chain of this length with the maximum number of MSA rows."""
        size = FeatureRows.at_most(residues, preset.sampling).size(
            preset, DTYPES[settled_dtype(AUTO, device.properties)]
        )
        return Prediction(model=preset.model, size=size)

    # Short chains have relatively large temporaries, so the maximum is extrapolated from a long chain.
    longest = max_residues(workload(1024), device)
    points = []
    for residues in [each for each in _CURVE_LENGTHS if each <= longest] or _CURVE_LENGTHS[:1]:
        cost = estimate(workload(residues), device)
        points.append([residues, cost.seconds, cost.memory.peak])
    return {
        "points": points,
        "available": device.memory,
        "longest": longest,
        "recycles": FoldingOptions().recycles(preset),
    }


def do(kind: str, content: Mapping[str, Any], directory: Path, options: WorkerOptions) -> Any:
    """Run one task in a directory: "offers", "alignment" or a prediction. `content` is the request of the job.

    Return the offers of `offers`, or a dictionary with the "folder" and the "summary" of the result. Raise `InputError`
    or `SearchError` if the task fails.
    """
    if kind == "offers":
        return offers(options)
    if kind == "alignment":
        return {"folder": search(content, directory, options), "summary": {}}
    return predict(content, directory, options)


def predict(request: Mapping[str, Any], directory: Path, options: WorkerOptions) -> dict[str, Any]:
    """Predict a job as `helixfold predict` does. Return the folder of its files and the summary of its scores.

    `directory` has the uploaded files. The result does not include the features. Raise `InputError` with the reason if
    the prediction fails.
    """
    (directory / "target.fasta").write_text(fasta_of(request))
    output, failures = directory / "predictions", FAILURES.path(directory)
    shutil.rmtree(output, ignore_errors=True)
    working_directory = os.getcwd()
    os.chdir(directory)
    try:
        run(predict_options(request, directory, options, output, failures))
    finally:
        os.chdir(working_directory)
    reasons = read_json(failures, AGAIN) if failures.is_file() else {}
    for reason in dict(reasons).values():
        raise InputError(str(reason))
    (target,) = (path for path in output.iterdir() if RANKING.path(path).is_file())
    best = read_prediction(target, read_order(target)[0])
    # Features are large, and can be computed again from the search results, which stay.
    FEATURES.path(target).unlink(missing_ok=True)
    summary = {
        "plddt": round(best.mean_plddt, 2),
        "ptm": best.ptm,
        "iptm": best.iptm,
        "model": best.name[:100],
        "provenance": (mark_of(best.notes) or "trained").lower(),
    }
    return {"folder": target, "summary": summary}


def predict_options(
    request: Mapping[str, Any], directory: Path, worker: WorkerOptions, output: Path, failures: Path
) -> PredictOptions:
    """Return the options of `helixfold predict` for a request with its files in `directory`.

    Results are written to `output`, and errors to the file `failures`. Databases of a configuration file are not used.
    """
    options = request["options"]
    alignments = tuple(directory / name for name in request["alignments"])
    searches = options["search"] == "databases" or (options["search"] == "best" and not alignments)
    model = options["model"] or usual_model(worker.models, request["sequence"].count(CHAIN_SEPARATOR) + 1)
    values = predict_values({**options, "model": model})
    databases = worker.databases if searches else None
    # The mode is explicit because otherwise databases of a configuration file would be searched.
    mode: MsaMode = "auto" if databases is not None else "files" if alignments else "single_sequence"
    return PredictOptions(
        **values,
        inputs=(directory / "target.fasta",),
        output=output,
        failures_file=failures,
        msa=alignments,
        templates=tuple(directory / name for name in request["templates"]) or None,
        databases=databases,
        msa_mode=mode,
        threads=worker.threads,
        weights=worker.weights,
        device=worker.device,
        memory=worker.memory,
        progress="json",
    )
