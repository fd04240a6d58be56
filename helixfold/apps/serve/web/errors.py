"""Error answers: a status and a one-sentence message, as JSON or as a page."""

import json
import sqlite3

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from data_pipeline.io.errors import InputError, printable
from helixfold.apps.serve.job_options import unknown_option_problem
from helixfold.apps.serve.queue.jobs import BusyError, QuotaError
from helixfold.apps.serve.queue.queue import DuplicateKeyError, JobStateError, LostLeaseError
from helixfold.apps.serve.tokens import TokenFileError
from helixfold.apps.serve.web.pages import error_page, wants_page
from helixfold.apps.serve.web.response_headers import LOGGER

_STATUS_BY_ERROR: tuple[tuple[type[Exception], int], ...] = (
    (BusyError, 429),
    (QuotaError, 429),
    (DuplicateKeyError, 409),
    (JobStateError, 409),
    (LostLeaseError, 409),
    (InputError, 422),
)


def add_error_answers(app: FastAPI) -> None:
    """Register handlers that convert the errors of the service into answers."""
    for kind, status in _STATUS_BY_ERROR:
        app.add_exception_handler(kind, _answer_with(status))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(TokenFileError, unreadable_tokens)
    app.add_exception_handler(sqlite3.OperationalError, _without_database)
    app.add_exception_handler(Exception, _broken)


def problem_answer(request: Request, status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error answer: a page for a browser, else JSON."""
    if wants_page(request):
        return error_page(request, status, text, headers)
    return JSONResponse({"error": text}, status, headers=headers)


def _answer_with(status: int):  # type: ignore[no-untyped-def]  # a handler of Starlette
    """Return a handler that answers an error with a status and its message."""

    def answer(request: Request, error: Exception) -> Response:
        headers = {"Retry-After": "5"} if isinstance(error, BusyError) else None
        return problem_answer(request, status, printable(str(error), 1_000), headers)

    return answer


def _invalid(request: Request, error: Exception) -> Response:
    """Answer 422 with the first problems of a request that does not match the declared types."""
    assert isinstance(error, RequestValidationError)
    parts = []
    for each in error.errors()[:5]:
        if each["type"] == "extra_forbidden" and each["loc"][:-1] == ("body", "options"):
            parts.append(unknown_option_problem(str(each["loc"][-1])))
            continue
        place = ".".join(printable(str(word), 60) for word in each["loc"] if word != "body")
        parts.append(f"{place}: {each['msg']}" if place else str(each["msg"]))
    return problem_answer(request, 422, printable("; ".join(parts), 1_000))


def http_error(request: Request, error: Exception) -> Response:
    """Return the answer for an `HTTPException`: a redirect for the status 303, else an error answer."""
    assert isinstance(error, HTTPException)
    if error.status_code == 303:
        return RedirectResponse((error.headers or {})["Location"], 303)
    text = "page not found" if error.detail == "Not Found" else str(error.detail)
    return problem_answer(request, error.status_code, text, dict(error.headers or {}))


def unreadable_tokens(request: Request, error: Exception) -> Response:
    """Log that the token file is damaged, and answer 503.

    The answer is always JSON, because a page would read the file as well.
    """
    LOGGER.error(json.dumps({"event": "tokens cannot be read", "error": str(error)}))
    return JSONResponse({"error": "the service cannot read its tokens; ask its administrator to check the log"}, 503)


def _without_database(request: Request, error: Exception) -> Response:
    """Answer 503 while the disk is full or another program locks the database."""
    LOGGER.error(json.dumps({"event": "the database cannot be used", "error": str(error)}))
    text = "the service cannot use its database now; try again in a few seconds"
    return problem_answer(request, 503, text, {"Retry-After": "5"})


def _broken(request: Request, error: Exception) -> Response:
    """Answer 500 for an error that nobody expected."""
    return problem_answer(request, 500, "internal error; see the log of the service")
