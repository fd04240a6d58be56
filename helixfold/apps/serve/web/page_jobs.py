"""The pages of jobs: the form to submit, the history, one job with its progress and result, and shared results."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.responses import RedirectResponse, Response

from data_pipeline.io.errors import InputError
from helixfold.apps.options import EXAMPLE
from helixfold.apps.serve.forecast_curve import estimate_job
from helixfold.apps.serve.job_options import OFFERS, model_label, request_labels
from helixfold.apps.serve.queue.jobs import JOB_KINDS, Job, QuotaError
from helixfold.apps.serve.queue.workers import WorkerOffers
from helixfold.apps.serve.service import Service, User
from helixfold.apps.serve.storage import checked_name
from helixfold.apps.serve.submission import MAX_FILES, MAX_RECORDS
from helixfold.apps.serve.web.api_jobs import delete_job, own_job, share_job, unshare_job
from helixfold.apps.serve.web.forms import (
    CheckedForm,
    form_name,
    has_uploads,
    sequence_file_of,
    submissions_of,
    text_of,
    uploads_of,
)
from helixfold.apps.serve.web.identity import CurrentUser, ServiceOf
from helixfold.apps.serve.web.pages import page
from helixfold.apps.serve.web.result_files import archive_response, linked_response
from helixfold.apps.serve.web.threads import ThreadedRoute, run_slowly
from helixfold.runtime.options import Offer

_JOBS_ON_SUBMIT_PAGE = 8
_JOBS_PER_PAGE = 50
router = APIRouter(include_in_schema=False, route_class=ThreadedRoute)


@router.get("/")
def submit_page(request: Request, service: ServiceOf, user: CurrentUser, example: bool = False) -> Response:
    """Show the form for a new job, empty or with an example, and the newest jobs."""
    return _form_page(request, service, user, FormData(sequence=EXAMPLE.read_text() if example else ""))


@router.get("/help")
def help_page(request: Request, service: ServiceOf, _: CurrentUser) -> Response:
    """Explain the form, the results and the limits."""
    return page(request, "help.html", settings=service.settings, max_records=MAX_RECORDS, max_files=MAX_FILES)


@router.post("/submit")
async def submit(request: Request, service: ServiceOf, user: CurrentUser, form: CheckedForm) -> Response:
    """Submit the jobs of the form, or show the form again with estimates or with an error message.

    The new page contains the text of the form; the script of the page also keeps the selected files.
    """
    files = await uploads_of(form)
    jobs: list[Job] = []
    try:
        file_text, alignments = await sequence_file_of(request, form)
        files += alignments
        submissions = await submissions_of(request, form, file_text, files)
        if text_of(form, "action") == "forecast":
            estimates = [(each, await run_in_threadpool(service.estimate, each)) for each in submissions]
            return await run_in_threadpool(_form_page, request, service, user, form, estimates=estimates)
        for each in submissions:
            jobs.append((await run_slowly(request, service.submit, each, user))[0])
    except InputError as error:
        code, problem = 429 if isinstance(error, QuotaError) else 422, str(error)
        if jobs:
            problem += f" ({len(jobs)} of {len(submissions)} sequences are queued; remove the first {len(jobs)} here)"
        return await run_in_threadpool(_form_page, request, service, user, form, problem=problem, code=code)
    return RedirectResponse(f"/jobs/{jobs[0].id}" if len(jobs) == 1 else "/jobs", 303)


@router.get("/jobs")
def history(
    request: Request,
    service: ServiceOf,
    user: CurrentUser,
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
) -> Response:
    """Show the user's predictions, the newest first, with active searches of other programs and the user's usage."""
    jobs = service.views.history(user.name, before=before, limit=_JOBS_PER_PAGE)
    return page(
        request,
        "jobs.html",
        jobs=list(zip(jobs, service.views.places(jobs), strict=True)),
        next=jobs[-1].number if len(jobs) == _JOBS_PER_PAGE else None,
        searches=service.views.active_searches(user.name),
        usage=service.views.usage(user.name),
    )


@router.get("/jobs/{job_id}")
def job_page(request: Request, job_id: str, service: ServiceOf, user: CurrentUser) -> Response:
    """Show a job with its progress or its result."""
    return _job_page(request, service, own_job(service, user, job_id))


@router.post("/jobs/{job_id}/{action}")
def act(
    request: Request, job_id: str, action: str, service: ServiceOf, user: CurrentUser, form: CheckedForm
) -> Response:
    """Carry out the action of a button on a job's page: cancel, retry, rename, delete, share or unshare."""
    job = own_job(service, user, job_id, JOB_KINDS if action == "cancel" else ("prediction",))
    match action:
        case "cancel":
            service.queue.cancel(job.id)
        case "retry":
            service.queue.retry(job.id)
            service.waiting_jobs.notify()
        case "rename":
            service.queue.rename(job.id, checked_name(text_of(form, "name")) or job.name)
        case "delete":
            delete_job(service, user, job.id)
        case "unshare":
            unshare_job(service, user, job.id)
        case "share":
            link = share_job(service, user, job.id)
            return _job_page(request, service, job, link=link)
        case _:
            raise HTTPException(404, "unknown action")
    if action in ("cancel", "retry", "rename"):
        service.audit.add(user.name, user.address, action, job.id)
    return RedirectResponse("/jobs" if job.kind == "alignment" else f"/jobs/{job.id}", 303)


@router.get("/jobs/{job_id}/files/{path:path}")
def file(request: Request, job_id: str, path: str, service: ServiceOf, user: CurrentUser) -> Response:
    """Send a file of a result, such as report.html."""
    return linked_response(service, own_job(service, user, job_id), path, _back(request, f"/jobs/{job_id}"))


@router.get("/jobs/{job_id}/archive")
async def archive(request: Request, job_id: str, service: ServiceOf, user: CurrentUser) -> Response:
    """Send all files of a result in a zip archive."""
    job = await run_in_threadpool(own_job, service, user, job_id)
    return await run_slowly(request, archive_response, service, job)


@router.get("/shared/{secret}")
def shared_page(request: Request, secret: str, service: ServiceOf) -> Response:
    """Show a shared job."""
    job = _shared_job(service, secret)
    return page(request, "shared.html", job=job, files=_files(service, job), base=f"/shared/{secret}")


@router.get("/shared/{secret}/files/{path:path}")
def shared_file(request: Request, secret: str, path: str, service: ServiceOf) -> Response:
    """Send a file of a shared result."""
    return linked_response(service, _shared_job(service, secret), path, _back(request, f"/shared/{secret}"))


@router.get("/shared/{secret}/archive")
async def shared_archive(request: Request, secret: str, service: ServiceOf) -> Response:
    """Send all files of a shared result in a zip archive."""
    job = await run_in_threadpool(_shared_job, service, secret)
    return await run_slowly(request, archive_response, service, job)


def _back(request: Request, page: str) -> str | None:
    """Return the page to which a report links; None if the report is in a frame of this page."""
    return None if request.headers.get("sec-fetch-dest") == "iframe" else page


def _shared_job(service: Service, secret: str) -> Job:
    """Return the job of a shared link. Answer 404 for an invalid link."""
    job = service.shared_job(secret)
    if job is None:
        raise HTTPException(404, "this link has expired or was revoked")
    return job


def _form_page(
    request: Request,
    service: Service,
    user: User,
    form: FormData,
    *,
    problem: str | None = None,
    estimates: Any = (),
    code: int = 200,
) -> Response:
    """Render the form with the values of `form`, an error message (`problem`) or estimates; `code` is the status."""
    offers = service.offers()
    counts = service.views.counts()
    names = ("name", "sequence", *map(form_name, OFFERS.values()))
    values = {name: text_of(form, name) for name in names}
    recent = service.views.history(user.name, limit=_JOBS_ON_SUBMIT_PAGE)
    return page(
        request,
        "submit.html",
        code,
        values=values,
        has_files=has_uploads(form),
        problem=problem,
        estimates=estimates,
        fields=_fields(service, offers),
        workers=len(service.workers.present()),
        waiting=counts.get(("prediction", "queued"), 0),
        running=counts.get(("prediction", "running"), 0),
        recent=list(zip(recent, service.views.places(recent), strict=True)),
        longest=service.settings.queue.max_residues,
    )


def _fields(service: Service, offers: Sequence[WorkerOffers]) -> list[tuple[str, Offer, dict[str, str]]]:
    """Return the fields of the options that a worker supports: name, option, and the labels of its choices, if any."""
    fields = []
    for offer in OFFERS.values():
        if offer.needs and not any(getattr(worker, offer.needs) for worker in offers):
            continue
        choices = dict(offer.choices)
        if offer.name == "model":
            choices = {"": "chosen by the server", **{name: model_label(name) for name in service.models()}}
        if offer.name == "search" and not any(worker.databases for worker in offers):
            del choices["databases"]
        fields.append((form_name(offer), offer, choices))
    return fields


def _job_page(request: Request, service: Service, job: Job, *, link: dict[str, Any] | None = None) -> Response:
    """Render the page of a job; `link` is a shared link that was just created."""
    options = job.request.get("options", {})  # empty for an expired job
    estimate = estimate_job(
        service.offers(),
        residues=job.residues,
        chains=str(job.request.get("sequence", "")).count(":") + 1,
        model=options.get("model"),
        recycles=options.get("recycles"),
        count=options.get("predictions", 1),
    )
    return page(
        request,
        "job.html",
        job=job,
        place=service.views.place(job),
        estimate=estimate,
        labels=request_labels(job.request, job.summary.get("model")) if options else [],
        files=_files(service, job),
        base=f"/jobs/{job.id}",
        link=link,
        shares=service.shares.count(job.id),
    )


def _files(service: Service, job: Job) -> list[tuple[str, int]]:
    """Return the paths and sizes of a job's result files."""
    return list(service.storage.results(job))
