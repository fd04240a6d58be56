"""Answers with result files, with headers that isolate them from the service's pages: workers are not trusted."""

import os
from contextlib import suppress

from fastapi import HTTPException
from markupsafe import escape
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from helixfold.apps.serve.queue.jobs import Job
from helixfold.apps.serve.service import Service
from helixfold.apps.serve.storage import file_name_of
from helixfold.results.archive import write_zip
from helixfold.results.file_table import REPORT

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".png": "image/png",
    ".json": "application/json",
    ".pdb": "chemical/x-pdb",
    ".cif": "chemical/x-cif",
    ".a3m": "text/plain; charset=utf-8",
    ".tsv": "text/tab-separated-values; charset=utf-8",
}
_DELETED_MESSAGE = "the result of this job has been deleted"
_INLINE_EXTENSIONS = (".html", ".png", ".json", ".pdb", ".cif", ".tsv", ".a3m")
# A worker could send any page as the report. Its script runs, but in a separate origin without access to the service's
# cookies and pages or to the network.
_SANDBOX_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


_MAX_LINKED_BYTES = 2**25  # bytes of a report, which is read into memory to add a link


class _ResultResponse(FileResponse):
    """An answer with a result file. Answers 404 if the job is deleted before the file is sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except (RuntimeError, FileNotFoundError) as error:
            if os.path.exists(self.path):
                raise
            raise HTTPException(404, _DELETED_MESSAGE) from error


def file_response(service: Service, job: Job, path: str) -> FileResponse:
    """Return an answer with a file of a job's result. Answer 404 if the file does not exist.

    Browsers show reports, images, structures and tables, and download other files.
    """
    file = service.storage.result_file(job, path)
    if file is None:
        raise HTTPException(404, "the result of this job has no such file")
    ending = file.suffix.lower()
    return _ResultResponse(
        file,
        media_type=_MEDIA_TYPES.get(ending, "application/octet-stream"),
        filename=file.name,
        content_disposition_type="inline" if ending in _INLINE_EXTENSIONS else "attachment",
        headers={"Content-Security-Policy": _SANDBOX_POLICY},
    )


def linked_response(service: Service, job: Job, path: str, back: str | None) -> Response:
    """Return a file as `file_response` does; `back` adds a link to this page of the job at the top of the report.

    Other files and reports above 32 MiB are sent without the link; `back` of None adds none.
    """
    report = service.storage.result_file(job, path) if back is not None and path == REPORT.name() else None
    if report is not None:
        with suppress(FileNotFoundError):
            if report.stat().st_size <= _MAX_LINKED_BYTES:
                head, body_tag, rest = report.read_text(encoding="utf-8", errors="replace").partition("<body>\n")
                link = (
                    f'<p class="wrap back"><a href="{escape(back)}">← Job {escape(job.name)}</a></p>\n'
                    if body_tag
                    else ""
                )
                return HTMLResponse(
                    f"{head}{body_tag}{link}{rest}", headers={"Content-Security-Policy": _SANDBOX_POLICY}
                )
    return file_response(service, job, path)


def archive_response(service: Service, job: Job) -> FileResponse:
    """Return an answer with a zip archive of all files of a job's result. Answer 404 if the job is not done.

    The archive is stored next to the result at the first request, and sent again later.
    """
    if job.result is None:
        raise HTTPException(404, "this job has no result yet")
    directory = service.storage.attempt(job.id, job.result)
    archive = directory.with_name("result.zip")
    if not archive.is_file():
        with suppress(FileNotFoundError):
            write_zip(archive, {file_name_of(job.name): directory})
        if not directory.is_dir():
            service.storage.remove(job.id)  # `write_zip` created the deleted directory again
            raise HTTPException(404, _DELETED_MESSAGE)
    return _ResultResponse(archive, media_type="application/zip", filename=f"{file_name_of(job.name)}.zip")
