"""Answers with files of a result, which a worker made: no browser takes one of them for a page of this service."""

import os
from contextlib import suppress

from fastapi import HTTPException
from markupsafe import escape
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from helixfold.apps.serve.queue.jobs import Job
from helixfold.apps.serve.service import Service
from helixfold.apps.serve.storage import file_name_of
from helixfold.results.archive import pack
from helixfold.results.file_table import REPORT

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".png": "image/png",
    ".json": "application/json",
    ".pdb": "chemical/x-pdb",
    ".cif": "chemical/x-cif",
    ".a3m": "text/plain; charset=utf-8",
    ".tsv": "text/tab-separated-values; charset=utf-8",
}
_DELETED = "the result of this job has been deleted"
_SHOWN = (".html", ".png", ".json", ".pdb", ".cif", ".tsv", ".a3m")
# The report's own script runs, in an origin of its own that has neither this service's cookies nor its pages, and
# reaches no network: a worker may send any page.
_SANDBOX = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


_MOST_LINKED = 2**25  # bytes of a report, which is read whole for its link


class _ResultResponse(FileResponse):
    """A file of a result; answers 404 if its job is deleted before it is sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except (RuntimeError, FileNotFoundError) as error:
            if os.path.exists(self.path):
                raise
            raise HTTPException(404, _DELETED) from error


def file_response(service: Service, job: Job, path: str) -> FileResponse:
    """Return a file of a job's result; answer 404 if it has none at this path."""
    found = service.storage.result_file(job, path)
    if found is None:
        raise HTTPException(404, "the result of this job has no such file")
    ending = found.suffix.lower()
    return _ResultResponse(
        found,
        media_type=_TYPES.get(ending, "application/octet-stream"),
        filename=found.name,
        content_disposition_type="inline" if ending in _SHOWN else "attachment",
        headers={"Content-Security-Policy": _SANDBOX},
    )


def linked_response(service: Service, job: Job, path: str, back: str | None) -> Response:
    """Return a file as `file_response` does; with `back`, the report has a link at its top to this page of the job."""
    found = service.storage.result_file(job, path) if back is not None and path == REPORT.name() else None
    if found is not None:
        with suppress(FileNotFoundError):
            if found.stat().st_size <= _MOST_LINKED:
                head, body, rest = found.read_text(encoding="utf-8", errors="replace").partition("<body>\n")
                link = (
                    f'<p class="wrap back"><a href="{escape(back)}">← Job {escape(job.name)}</a></p>\n' if body else ""
                )
                return HTMLResponse(f"{head}{body}{link}{rest}", headers={"Content-Security-Policy": _SANDBOX})
    return file_response(service, job, path)


def archive_response(service: Service, job: Job) -> FileResponse:
    """Return all files of a job's result in one zip archive; answer 404 before the job is done."""
    if job.result is None:
        raise HTTPException(404, "this job has no result yet")
    directory = service.storage.attempt(job.id, job.result)
    packed = directory.with_name("result.zip")
    if not packed.is_file():
        with suppress(FileNotFoundError):
            pack(directory, packed, folder=file_name_of(job.name))
        if not directory.is_dir():
            service.storage.remove(job.id)  # packing makes its directory again
            raise HTTPException(404, _DELETED)
    return _ResultResponse(packed, media_type="application/zip", filename=f"{file_name_of(job.name)}.zip")
