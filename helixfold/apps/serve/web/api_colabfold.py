"""The routes of ColabFold's MSA server, with this service's databases. Its clients only need this server's address."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, JSONResponse, Response

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.alignment_request import ARCHIVE_FILE, AlignmentKind, AlignmentRequest
from helixfold.apps.serve.queue.jobs import Job, JobState, QuotaError
from helixfold.apps.serve.service import Service, User
from helixfold.apps.serve.web.alignment_jobs import submit_alignment, wait_until_done
from helixfold.apps.serve.web.identity import CurrentUser, ServiceOf, header_token
from helixfold.apps.serve.web.threads import ThreadedRoute, parse_in_thread

_COLABFOLD_STATES: dict[JobState, str] = {
    "queued": "PENDING",
    "running": "RUNNING",
    "done": "COMPLETE",
    "failed": "ERROR",
    "cancelled": "ERROR",
    "expired": "UNKNOWN",
}
router = APIRouter(tags=["ColabFold"], route_class=ThreadedRoute)
Query = Annotated[str, Form(max_length=2**20, description="FASTA records named 101, 102, ...")]
Mode = Annotated[str, Form(max_length=40)]


@router.post("/ticket/msa", response_model=None)
async def submit_msa(
    request: Request, service: ServiceOf, user: CurrentUser, q: Query = "", mode: Mode = "env"
) -> Response:
    """Submit a search for homologs of sequences. The answer has the ticket of the search and its state."""
    return await _submit("msa", q, mode, request, service, user)


@router.post("/ticket/pair", response_model=None)
async def submit_pair(
    request: Request, service: ServiceOf, user: CurrentUser, q: Query = "", mode: Mode = "pairgreedy"
) -> Response:
    """Submit a search for alignments of the chains of a complex, paired by species. The answer is as for ticket/msa."""
    return await _submit("pair", q, mode, request, service, user)


@router.get("/ticket/{ticket}")
def ticket_status(ticket: str, service: ServiceOf, user: CurrentUser) -> dict[str, Any]:
    """Return the state of a search, in ColabFold's words; UNKNOWN for an unknown or expired ticket."""
    job = _find_search(service, ticket)
    return {"id": ticket, "status": "UNKNOWN"} if job is None else _ticket(job)


@router.get("/result/download/{ticket}", response_class=FileResponse)
def download(ticket: str, service: ServiceOf, user: CurrentUser) -> FileResponse:
    """Fetch the archive of a complete search."""
    job = _find_search(service, ticket)
    if job is None:
        raise HTTPException(404, "unknown ticket")
    return _archive(service, job)


@router.get("/template/{names}", response_class=FileResponse)
async def templates(names: str, request: Request, service: ServiceOf, user: CurrentUser) -> FileResponse:
    """Fetch the structures of template hits, such as 1abc_A,2xyz_B, in one archive.

    A session is not enough: a link on another site's page would submit the search with the session's cookie.
    """
    if service.settings.needs_token and header_token(request) is None:
        raise HTTPException(401, "a token is required; a session is not enough")
    job = await run_in_threadpool(submit_alignment, service, AlignmentRequest.of_templates(names), user)
    return _archive(service, await wait_until_done(service, job.id, request))


async def _submit(
    kind: AlignmentKind, text: str, mode: str, request: Request, service: Service, user: User
) -> Response:
    """Submit a search of a kind by the text of its query, and answer with its ticket or an error as ColabFold does."""
    try:
        search = await parse_in_thread(request, AlignmentRequest.of_text, kind, text, mode)
        job = await run_in_threadpool(submit_alignment, service, search, user)
    except QuotaError as error:
        return JSONResponse({"status": "RATELIMIT", "error": str(error)}, 429, headers={"Retry-After": "10"})
    except InputError as error:
        return JSONResponse({"status": "ERROR", "error": str(error)}, 400)
    return JSONResponse(_ticket(job))


def _find_search(service: Service, ticket: str) -> Job | None:
    """Return the search with a ticket, of any user; None for an unknown ticket."""
    job = service.views.job(ticket)
    return job if job is not None and job.kind == "alignment" else None


def _ticket(job: Job) -> dict[str, Any]:
    """Return the id and the state of a search in the format of ColabFold's server."""
    error = {"error": job.error} if job.state == "failed" else {}
    return {"id": job.id, "status": _COLABFOLD_STATES[job.state], **error}


def _archive(service: Service, job: Job) -> FileResponse:
    """Return an answer with the archive of a search. Answer 404 if it has none."""
    path = service.storage.result_file(job, ARCHIVE_FILE)
    if path is None:
        raise HTTPException(404, "this search has no result")
    return FileResponse(path, media_type="application/gzip", filename=ARCHIVE_FILE)
