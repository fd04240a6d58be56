"""Search ColabFold's databases for other programs, and pack the results as ColabFold's MSA server does."""

import gzip
import io
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_pipeline.errors import InputError, SearchError
from data_pipeline.files import read_file
from data_pipeline.parse.structures import read_structure
from data_pipeline.search.colabfold_search import ColabfoldPairing, ColabfoldSearch, with_own_query
from data_pipeline.search.plan import SearchPlan
from data_pipeline.templates.result import UnusableHitError
from helixfold.predict.search_plan import plan_of
from helixfold.serve.alignment_request import (
    ARCHIVE_FILE,
    ENVIRONMENTAL_FILE,
    PAIRED_FILE,
    TEMPLATE_FILE,
    UNIREF_FILE,
    AlignmentRequest,
)
from helixfold.serve.worker.options import WorkerOptions

_OWN_NAME = b">101\n"  # of a target in what ColabfoldSearch returns
_END = b"\0"  # of each target's rows
_MAX_STRUCTURE = 2**28


def search(content: Mapping[str, Any], directory: Path, options: WorkerOptions) -> Path:
    """Do a search, and return the folder with its archive and its alignments. Raise `SearchError` if it fails."""
    asked = AlignmentRequest.from_dict(dict(content))
    plan = plan_of(options.search_options(), announce=False)
    folder = directory / "result"
    folder.mkdir()
    if asked.kind == "template":
        files = dict(_structures(asked, plan))
    else:
        files = _paired(asked, plan) if asked.kind == "pair" else _unpaired(asked, plan)
        for name, text in files.items():
            (folder / name).write_bytes(text)
    (folder / ARCHIVE_FILE).write_bytes(packed(files))
    return folder


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return a tar.gz of these files; equal files give equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _unpaired(asked: AlignmentRequest, plan: SearchPlan) -> dict[str, bytes]:
    """Return the alignments of each database, and the table of template hits if these are searched."""
    tool = _search_of(plan)
    is_filtered, with_environmental = not asked.mode.endswith("nofilter"), asked.mode.startswith("env")
    tool = replace(tool, options=replace(tool.options, filtered=is_filtered))
    if not with_environmental:
        tool = replace(tool, environmental=None)
    uniref, environmental, hits = [], [], []
    numbered = list(zip(asked.names, asked.sequences, strict=True))
    for (name, sequence), alignment in zip(numbered, tool.search_many(asked.sequences), strict=True):
        first, rest = split_databases(alignment, sequence)
        uniref.append(_named(first, name))
        environmental.append(_named(rest, name))
        if tool.templates is not None:
            rows = tool.template_hits(sequence).splitlines(keepends=True)
            hits += [name.encode() + b"\t" + row.partition(b"\t")[2] for row in rows]
    files = {UNIREF_FILE: b"".join(uniref)}
    if with_environmental:
        files[ENVIRONMENTAL_FILE] = b"".join(environmental)
    return files | {TEMPLATE_FILE: b"".join(hits)}


def split_databases(alignment: bytes, sequence: str) -> tuple[bytes, bytes]:
    """Return the rows of UniRef and the environmental rows of an alignment; each begins with the target."""
    second = alignment.find(b"\n" + _OWN_NAME, 1)
    target = _OWN_NAME + sequence.encode() + b"\n"
    if second < 0:
        return alignment, target
    return alignment[: second + 1], with_own_query(alignment[second + 1 :], sequence)


def _paired(asked: AlignmentRequest, plan: SearchPlan) -> dict[str, bytes]:
    tool = plan.pairing.tool if plan.pairing is not None else None
    if not isinstance(tool, ColabfoldPairing):
        raise SearchError("the databases do not say the species of their sequences, by which rows are paired")
    tool = replace(tool, complete=asked.mode.startswith("paircomplete"))
    different = list(dict.fromkeys(asked.sequences))
    found = dict(zip(different, tool.search(different), strict=True))
    parts = [_named(found[sequence], name) for name, sequence in zip(asked.names, asked.sequences, strict=True)]
    return {PAIRED_FILE: b"".join(parts)}


def _structures(asked: AlignmentRequest, plan: SearchPlan) -> Iterator[tuple[str, bytes]]:
    """Yield the structure files of hits, and the two files from which hhsearch reads their sequences."""
    step = plan.templates
    if step is None:
        raise SearchError("no templates are searched here")
    data, index, seen = b"", [], set()
    for name in asked.names:
        entry, _, chain_id = name.rpartition("_")
        try:
            path = step.source.path(step.source.current_entry(entry.lower()))
            chains = read_structure(path).chains
        except (UnusableHitError, InputError):
            continue
        file = f"{entry.lower()}.cif"
        if file not in seen and ".cif" in path.name:
            seen.add(file)
            content = read_file(path, _MAX_STRUCTURE)
            yield file, gzip.decompress(content) if path.suffix == ".gz" else content
        sequence = next((chain.sequence for chain in chains if chain.name == chain_id), None)
        if sequence is not None:
            record = f">{name}\n{sequence}\n".encode() + _END
            index.append(f"{name}.a3m\t{len(data)}\t{len(record)}\n")
            data += record
    yield "pdb70_a3m.ffdata", data
    yield "pdb70_a3m.ffindex", "".join(sorted(index)).encode()


def _search_of(plan: SearchPlan) -> ColabfoldSearch:
    found = next((step.tool for step in plan.alignments if isinstance(step.tool, ColabfoldSearch)), None)
    if found is None:
        raise SearchError("this worker has none of ColabFold's databases")
    return found


def _named(alignment: bytes, name: str) -> bytes:
    """Return the rows of a target under the name that was asked for, with the mark of their end."""
    return b">" + name.encode() + b"\n" + alignment.partition(b"\n")[2] + _END
