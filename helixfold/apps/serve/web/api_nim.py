"""The routes of NVIDIA's AlphaFold2 NIM, whose answer to a sequence or an alignment is the structure itself.

Options of its search programs are accepted and ignored, because alignments come from this service's databases.
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
from helixfold.apps.serve.web.alignment_jobs import submit_alignment, wait_until_done
from helixfold.apps.serve.web.bodies import PROBLEMS
from helixfold.apps.serve.web.identity import CurrentUser, ServiceOf
from helixfold.apps.serve.web.threads import ThreadedRoute, parse_in_thread, run_slowly
from helixfold.results.file_table import PDB, RANKED

_PATH_PREFIX = "/protein-structure/alphafold2"
_EXTENSIONS_BY_FORMAT = {"a3m": "a3m", "sto": "sto", "stockholm": "sto", "fasta": "fasta"}
# The size in bytes and the number of structures of an answer are limited, because it is assembled in memory.
_MAX_ANSWER_BYTES, _MAX_PREDICTIONS = 2**27, 20
router = APIRouter(tags=["NIM"], responses=PROBLEMS, route_class=ThreadedRoute)
SequenceText = Annotated[str, Field(min_length=1, max_length=MAX_SEQUENCE_TEXT)]


class _Lenient(BaseModel):
    """A body whose unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class SequenceBody(_Lenient):
    """A sequence to predict, and the options of NIM that this service supports.

    `num_predictions_per_model` is the number of predictions, because one model is used.
    """

    sequence: SequenceText
    relax_prediction: bool = False
    num_predictions_per_model: Annotated[int, Field(ge=1, le=_MAX_PREDICTIONS)] = 1


class AlignedBody(SequenceBody):
    """A sequence with its alignments, by the name of the database.

    An alignment is a list (name, text, format) or an object {format: {alignment: text, format: ...}}.
    """

    alignments: Annotated[dict[str, Any] | list[dict[str, Any]], Field()] = Field(default_factory=dict)


@router.post(f"{_PATH_PREFIX}/predict-structure-from-sequence")
async def structure_from_sequence(
    body: SequenceBody, request: Request, service: ServiceOf, user: CurrentUser
) -> list[str]:
    """Predict a structure with alignments from the service's databases, if it has any. Return a list of PDB files."""
    return await _predict(body, (), "best", request, service, user)


@router.post(f"{_PATH_PREFIX}/predict-structure-from-MSA")
async def structure_from_alignment(
    body: AlignedBody, request: Request, service: ServiceOf, user: CurrentUser
) -> list[str]:
    """Predict a structure with the alignments of the request. Return a list of PDB files."""
    files = await parse_in_thread(request, _alignment_files, body.alignments)
    return await _predict(body, files, "none", request, service, user)


@router.post(f"{_PATH_PREFIX}/predict-MSA-from-sequence")
async def alignment_from_sequence(
    body: SequenceBody, request: Request, service: ServiceOf, user: CurrentUser
) -> dict[str, Any]:
    """Search ColabFold's databases for homologs of one chain, and wait for the result.

    Return the rows from UniRef in the format that `predict-structure-from-MSA` accepts.
    """
    submissions = await parse_in_thread(request, read_submissions, body.sequence, "sequence")
    if len(submissions) > 1 or len(submissions[0].chains) > 1:
        raise InputError("an alignment is for one chain; send each chain separately")
    search = AlignmentRequest(kind="msa", mode="env", names=("101",), sequences=submissions[0].chains)
    job = await run_in_threadpool(submit_alignment, service, search, user)
    job = await wait_until_done(service, job.id, request)
    path = service.storage.result_file(job, UNIREF_FILE)
    if path is None or path.stat().st_size > _MAX_ANSWER_BYTES:
        raise HTTPException(502, "the search produced no alignment, or one that is too large")
    text = (await run_in_threadpool(path.read_bytes)).replace(b"\0", b"").decode("utf-8", "replace")
    return {"alignments": {"uniref30": {"a3m": {"alignment": text, "format": "a3m"}}}, "templates": []}


@router.get("/v1/health/ready")
def ready(service: ServiceOf) -> dict[str, str]:
    """Answer 200 if a worker is connected, else 503."""
    if not service.workers.present():
        raise HTTPException(503, "no worker is connected")
    return {"status": "ready"}


@router.get("/v1/health/live")
def live() -> dict[str, str]:
    """Answer 200."""
    return {"status": "live"}


async def predicted_pdb_files(submission: Submission, request: Request, service: Service, user: User) -> list[str]:
    """Submit a job, wait until it is done, and return the texts of the PDB files of its predictions, the best first.

    At most 20 are returned. Answer 502 if there are none or if they are too large for one answer.
    """
    job, _ = await run_slowly(request, service.submit, submission, user)
    job = await wait_until_done(service, job.id, request)
    return await run_in_threadpool(_ranked_pdb_files, service, job)


async def _predict(
    body: SequenceBody,
    files: Sequence[UploadedFile],
    search: AlignmentSource,
    request: Request,
    service: Service,
    user: User,
) -> list[str]:
    """Predict the one sequence of a body with these files, or with a search, and return its PDB files."""
    options = {"search": search, "relax": body.relax_prediction, "predictions": body.num_predictions_per_model}
    submissions = await parse_in_thread(request, read_submissions, body.sequence, "sequence", options, files)
    if len(submissions) > 1:
        raise InputError("this route accepts one sequence; submit several records as jobs")
    return await predicted_pdb_files(submissions[0], request, service, user)


def _ranked_pdb_files(service: Service, job: Job) -> list[str]:
    """Return the texts of the PDB files of a job's result, the best first. Answer 502 if they cannot be sent."""
    sizes = dict(service.storage.results(job))
    ranks = [int(fields["rank"]) for fields in map(RANKED.match, sizes) if fields and fields["suffix"] == PDB]
    names = [RANKED.name(PDB, rank=rank) for rank in sorted(ranks)[:_MAX_PREDICTIONS]]
    if sum(sizes.get(name, 0) for name in names) > _MAX_ANSWER_BYTES:
        raise HTTPException(502, "the structures are too large for one answer; fetch them from the history")
    paths = [service.storage.result_file(job, name) for name in names]
    files = [path.read_text(errors="replace") for path in paths if path is not None]
    if not files:
        raise HTTPException(502, "the prediction cannot be written as PDB; fetch its mmCIF file from the history")
    return files


def _alignment_files(alignments: dict[str, Any] | list[dict[str, Any]]) -> list[UploadedFile]:
    """Return the alignments of a request in any format that NIM accepts. Raise `InputError` for other formats."""
    entries = [item for each in (alignments if isinstance(alignments, list) else [alignments]) for item in each.items()]
    files = []
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
            if form.lower() not in _EXTENSIONS_BY_FORMAT:
                raise InputError(f"the format of an alignment must be a3m, sto or fasta, got {form[:20]!a}")
            name = f"alignment.{_EXTENSIONS_BY_FORMAT[form.lower()]}"
            files.append(UploadedFile(kind="alignment", name=name, content=text.encode()))
    return files
