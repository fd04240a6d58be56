"""The routes of NVIDIA's AlphaFold2 NIM: the answer to a sequence, or to an alignment, is the structure itself.

Options that only its search programs have are taken and left alone: alignments come from this service's databases.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.alignment_request import UNIREF_FILE, AlignmentRequest
from helixfold.apps.serve.job_options import AlignmentSource
from helixfold.apps.serve.queue.jobs import Job
from helixfold.apps.serve.service import Service, User
from helixfold.apps.serve.submission import (
    MAX_SEQUENCE_TEXT,
    Submission,
    UploadedFile,
    read_submissions,
)
from helixfold.apps.serve.web.alignment_jobs import finished, submit_alignment
from helixfold.apps.serve.web.bodies import PROBLEMS
from helixfold.apps.serve.web.identity import CurrentUser, ServiceOf
from helixfold.apps.serve.web.threads import ThreadedRoute, parse_in_thread, run_slowly
from helixfold.results.file_table import PDB, RANKED

_PREFIX = "/protein-structure/alphafold2"
_FORMATS = {"a3m": "a3m", "sto": "sto", "stockholm": "sto", "fasta": "fasta"}
# What a worker sends is read into memory: at most so many bytes for an answer, and so many structures.
_MAX_TEXT, _MAX_PREDICTIONS = 2**27, 20
router = APIRouter(tags=["NIM"], responses=PROBLEMS, route_class=ThreadedRoute)
SequenceText = Annotated[str, Field(min_length=1, max_length=MAX_SEQUENCE_TEXT)]


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class SequenceBody(_Lenient):
    """A sequence to predict, and the options of NIM that have an effect here."""

    sequence: SequenceText
    relax_prediction: bool = False
    num_predictions_per_model: Annotated[int, Field(ge=1, le=_MAX_PREDICTIONS)] = 1


class AlignedBody(SequenceBody):
    """A sequence with its alignments.

    An alignment is named by its database, as (name, text, format) or as {format: {alignment: text, format: ...}}.
    """

    alignments: Annotated[dict[str, Any] | list[dict[str, Any]], Field()] = Field(default_factory=dict)


@router.post(f"{_PREFIX}/predict-structure-from-sequence")
async def structure_from_sequence(
    body: SequenceBody, request: Request, service: ServiceOf, user: CurrentUser
) -> list[str]:
    """Predict a structure, with alignments from the service's databases if it has any; return PDB files."""
    return await _structures(body, (), "best", request, service, user)


@router.post(f"{_PREFIX}/predict-structure-from-MSA")
async def structure_from_alignment(
    body: AlignedBody, request: Request, service: ServiceOf, user: CurrentUser
) -> list[str]:
    """Predict a structure with the given alignments; return a list of PDB files."""
    files = await parse_in_thread(request, _files, body.alignments)
    return await _structures(body, files, "none", request, service, user)


@router.post(f"{_PREFIX}/predict-MSA-from-sequence")
async def alignment_from_sequence(
    body: SequenceBody, request: Request, service: ServiceOf, user: CurrentUser
) -> dict[str, Any]:
    """Search the service's databases; return the alignment in the form that `predict-structure-from-MSA` accepts."""
    submissions = await parse_in_thread(request, read_submissions, body.sequence, "sequence")
    if len(submissions) > 1 or len(submissions[0].chains) > 1:
        raise InputError("an alignment is for one chain; send each chain separately")
    asked = AlignmentRequest(kind="msa", mode="env", names=("101",), sequences=submissions[0].chains)
    job = await run_in_threadpool(submit_alignment, service, asked, user)
    done = await finished(service, job.id, request)
    path = service.storage.result_file(done, UNIREF_FILE)
    if path is None or path.stat().st_size > _MAX_TEXT:
        raise HTTPException(502, "the search produced no alignment, or one that is too large")
    text = (await run_in_threadpool(path.read_bytes)).replace(b"\0", b"").decode("utf-8", "replace")
    return {"alignments": {"uniref30": {"a3m": {"alignment": text, "format": "a3m"}}}, "templates": []}


@router.get("/v1/health/ready")
def ready(service: ServiceOf) -> dict[str, str]:
    """Answer 200 while a worker is connected, else 503."""
    if not service.workers.present():
        raise HTTPException(503, "no worker is connected")
    return {"status": "ready"}


@router.get("/v1/health/live")
def live() -> dict[str, str]:
    """Answer 200 while the server runs."""
    return {"status": "live"}


async def structures_of(submission: Submission, request: Request, service: Service, user: User) -> list[str]:
    """Return the PDB files of a submission's predictions when they are done, the best first."""
    job, _ = await run_slowly(request, service.submit, submission, user)
    done = await finished(service, job.id, request)
    return await run_in_threadpool(_ranked, service, done)


async def _structures(
    body: SequenceBody,
    files: Sequence[UploadedFile],
    search: AlignmentSource,
    request: Request,
    service: Service,
    user: User,
) -> list[str]:
    options = {"search": search, "relax": body.relax_prediction, "predictions": body.num_predictions_per_model}
    submissions = await parse_in_thread(request, read_submissions, body.sequence, "sequence", options, files)
    if len(submissions) > 1:
        raise InputError("this route takes one sequence; submit several records as jobs")
    return await structures_of(submissions[0], request, service, user)


def _ranked(service: Service, job: Job) -> list[str]:
    sizes = dict(service.storage.results(job))
    ranks = [int(fields["rank"]) for fields in map(RANKED.match, sizes) if fields and fields["suffix"] == PDB]
    names = [RANKED.name(PDB, rank=rank) for rank in sorted(ranks)[:_MAX_PREDICTIONS]]
    if sum(sizes.get(name, 0) for name in names) > _MAX_TEXT:
        raise HTTPException(502, "the structures are too large for one answer; fetch them from the history")
    paths = [service.storage.result_file(job, name) for name in names]
    found = [path.read_text(errors="replace") for path in paths if path is not None]
    if not found:
        raise HTTPException(502, "the prediction cannot be written as PDB; fetch its mmCIF file from the history")
    return found


def _files(given: dict[str, Any] | list[dict[str, Any]]) -> list[UploadedFile]:
    """Return the alignments in any of the forms that NIM has them in; raise `InputError` for others."""
    entries = [item for each in (given if isinstance(given, list) else [given]) for item in each.items()]
    found = []
    for database, value in entries:
        alternatives = value.values() if isinstance(value, dict) else [value]
        for record in list(alternatives)[:1]:
            match record:
                case {"alignment": str(text), "format": str(form)}:
                    pass
                case [_, str(text), str(form)]:
                    pass
                case _:
                    raise InputError(f"the alignment {str(database)[:60]!a} needs a text and a format")
            if form.lower() not in _FORMATS:
                raise InputError(f"the format of an alignment must be a3m, sto or fasta, got {form[:20]!a}")
            name = f"alignment.{_FORMATS[form.lower()]}"
            found.append(UploadedFile(kind="alignment", name=name, content=text.encode()))
    return found
