"""A client of `helixfold serve` for Python programs.

client = Client("http://127.0.0.1:8000")
job = client.submit("MKTAYIAKQR", name="mine", recycles=1)
client.wait(job["id"])
client.fetch(job["id"], Path("results"))
"""

import base64
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from data_pipeline.io.errors import InputError, SearchError, printable
from data_pipeline.io.files import atomic_write, read_file
from data_pipeline.io.http import pause
from helixfold.apps.serve.http_client import HttpClient, ServerError, ServerUnreachableError
from helixfold.apps.serve.settings import check_encrypted
from helixfold.apps.serve.transfer import MAX_RESULT_FILES, checked_result_path

__all__ = ["Client", "ServerError", "ServerUnreachableError"]

_API: Final = "/api/v1"
_END_STATES: Final = ("done", "failed", "cancelled", "expired")
_JOB_STATES: Final = ("queued", "running", *_END_STATES)
_MAX_UPLOADED_BYTES: Final = 2**28  # of one alignment or template
_MAX_RESULT_BYTES: Final = 20 * 2**30  # of a result; a service's default limit for all files of a user
_MAX_ATTEMPTS: Final = 6  # at one request
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_JOB_ID = re.compile(r"[0-9a-f]{32}")


class Client:
    """Submits jobs to a server, watches them and downloads their results.

    A request without an answer, or one that the server asks to repeat within a minute, is tried up to six times; the
    server never submits a job twice. A server with an http:// address must be on this machine, unless `allow_http` is
    set because the network is trusted. `token` is the user's token; None if the service requires none. `sleep` is the
    function that waits for a number of seconds between requests.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        allow_http: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        check_encrypted(url, allow_http=allow_http)
        self._http, self._sleep = HttpClient(url, token), sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, because each request closes its own connection."""

    def submit(
        self,
        sequence: str,
        *,
        name: str = "",
        alignments: Sequence[Path] = (),
        templates: Sequence[Path] = (),
        search_templates: bool = False,
        webhook: str | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Submit a sequence, with ':' between the chains of a complex, and return its job.

        `name` is the name of the job, `alignments` and `templates` are files to upload, and the server calls the
        address `webhook` when the job ends. `options` are options of the REST interface, such as recycles=3 or
        predictions=5; None leaves one out. `search_templates` is its option "templates": search the server's database.
        A second submission with the same `idempotency_key` returns the first job; by default, each key is random.
        Raise `ServerError` if the server refuses the job, `ServerUnreachableError` if it does not answer.
        """
        if search_templates:
            options["templates"] = True
        body = {
            "sequence": sequence,
            "name": name,
            "options": {key: value for key, value in options.items() if value is not None},
            "alignments": [_file(path) for path in alignments],
            "templates": [_file(path) for path in templates],
            "webhook": webhook,
        }
        key = idempotency_key or secrets.token_hex(16)
        return self._job("POST", "/jobs", body, {"Idempotency-Key": key})

    def forecast(self, sequence: str, **options: Any) -> dict[str, Any] | None:
        """Return the estimated time and memory of a job for a sequence, with the fields of `ForecastBody`.

        Return None while no worker has connected. Nothing is submitted.
        """
        return self._request_json("POST", "/forecast", {"sequence": sequence, "options": options})

    def job(self, job: str) -> dict[str, Any]:
        """Return the fields of the job with an id: its state, progress, options and summary, among others."""
        return self._job("GET", f"/jobs/{_id(job)}")

    def jobs(self, *, limit: int = 50) -> list[dict[str, Any]]:
        """Return at most `limit` predictions of the user, the newest first. The server accepts limits up to 200."""
        answer = self._request_json("GET", f"/jobs?limit={limit}")
        jobs = answer.get("jobs") if isinstance(answer, dict) else None
        if not isinstance(jobs, list) or not all(map(_is_job, jobs)):
            raise self._unexpected_answer()
        return jobs

    def service(self) -> dict[str, Any]:
        """Return the models and limits of the service, and how many workers it has and how many jobs wait and run."""
        return self._request_json("GET", "/service")

    def cancel(self, job: str) -> dict[str, Any]:
        """Cancel a queued or running job, and return it. A job that has ended does not change."""
        return self._job("POST", f"/jobs/{_id(job)}/cancel")

    def retry(self, job: str) -> dict[str, Any]:
        """Queue a failed or cancelled job again, and return it. Raise `ServerError` if it is in another state."""
        return self._job("POST", f"/jobs/{_id(job)}/retry")

    def share(self, job: str) -> str:
        """Create a link that shows a job to anyone who has it, for 30 days at most, and return its address."""
        link = self._request_json("POST", f"/jobs/{_id(job)}/share")
        return str(link.get("url") or f"{self._http.url}{link['path']}")

    def delete(self, job: str) -> None:
        """Remove the files and the sequence of a job that has ended. Its name and state stay in the history."""
        self._request_json("DELETE", f"/jobs/{_id(job)}")

    def watch(self, job: str, *, seconds: float = 1.0) -> Iterator[dict[str, Any]]:
        """Yield a job at once, and again whenever it changes, until it has ended. Poll the server every `seconds`."""
        previous = None
        while True:
            current = self.job(job)
            if current != previous:
                previous = current
                yield current
            if current["state"] in _END_STATES:
                return
            self._sleep(seconds)

    def wait(self, job: str, *, seconds: float = 1.0) -> dict[str, Any]:
        """Wait until a job is done, failed, cancelled or expired, and return it. Poll the server every `seconds`."""
        *_, ended = self.watch(job, seconds=seconds)
        return ended

    def fetch(self, job: str, output: Path, *, max_bytes: int = _MAX_RESULT_BYTES) -> list[Path]:
        """Download the files of a result into the directory `output`, and return their paths.

        Existing files of the same names are replaced. Raise `InputError` if the job has no result, if it has too many
        files or more than `max_bytes` in total, or if a name would lead outside of the directory.
        """
        entries = self._request_json("GET", f"/jobs/{_id(job)}/files")
        if not isinstance(entries, list) or not all(map(_is_result_file, entries)):
            raise self._unexpected_answer()
        if not entries:
            raise InputError(f"job {job} has no result; it is {self.job(job)['state']}")
        files = {checked_result_path(each["path"]): each["bytes"] for each in entries}
        if len(files) > MAX_RESULT_FILES:
            raise InputError(f"the result has {len(files):,} files; the maximum is {MAX_RESULT_FILES:,}")
        if sum(files.values()) > max_bytes:
            raise InputError(
                f"the result has {sum(files.values()):,} bytes, and {max_bytes:,} are allowed; raise --max-disk"
            )
        for path, size in files.items():
            self._retry(partial(self._download, job, path, output / path, size))
        return [output / path for path in files]

    def _download(self, job: str, path: str, target: Path, size: int) -> None:
        """Download a result file of `size` bytes to `target`; `path` is relative to the result."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as temporary, temporary.open("wb") as file:
            self._http.download(f"{_API}/jobs/{_id(job)}/files/{path}", file, max_bytes=size)

    def _job(self, method: str, path: str, content: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """Send a request whose answer is a job, and check the fields that commands print."""
        job = self._request_json(method, path, content, headers)
        if not _is_job(job):
            raise self._unexpected_answer()
        return job

    def _unexpected_answer(self) -> ServerUnreachableError:
        """Return the error for an answer that does not have the form of `helixfold serve`."""
        return ServerUnreachableError(f"{self._http.url} does not answer like helixfold serve; check the address")

    def _request_json(
        self, method: str, path: str, content: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request, with retries, and return the parsed JSON answer; `path` follows the interface's prefix."""
        return self._retry(lambda: self._http.request(method, _API + path, content=content, headers=headers).json())

    def _retry(self, action: Callable[[], Any]) -> Any:
        """Repeat an action after growing pauses while the server does not answer, or asks to wait at most a minute."""
        for attempt in range(_MAX_ATTEMPTS):
            seconds = pause(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
            try:
                return action()
            except ServerUnreachableError:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise
            except ServerError as error:
                retry_after = error.retry_after if error.status in (429, 503) else None
                if retry_after is None or retry_after > _LONGEST_PAUSE or attempt == _MAX_ATTEMPTS - 1:
                    raise
                seconds = max(seconds, retry_after)
            self._sleep(seconds)
        raise AssertionError("the last attempt returns or raises")


def _file(path: Path) -> dict[str, str]:
    """Return a file as the JSON object of an upload, with its content in base64."""
    content = base64.b64encode(read_file(path, _MAX_UPLOADED_BYTES)).decode()
    return {"name": os.path.basename(path), "content": content, "encoding": "base64"}


def _is_job(content: Any) -> bool:
    """Return whether an answer of the server is a job with the fields that commands use."""
    match content:
        case {
            "id": str(job),
            "state": state,
            "name": str(),
            "place": int() | None,
            "error": str() | None,
            "progress": dict(progress),
            "summary": dict(),
        } if _JOB_ID.fullmatch(job) and state in _JOB_STATES:
            stages = progress.get("stages", [])
            return isinstance(stages, list) and all(
                isinstance(stage, dict) and isinstance(stage.get("name"), str) for stage in stages
            )
    return False


def _is_result_file(content: Any) -> bool:
    """Return whether an entry of the server's list of files has a path and a size."""
    match content:
        case {"path": str(), "bytes": int(size)} if size >= 0:
            return True
    return False


def _id(job: str) -> str:
    """Return a job id unchanged. Raise `InputError` if it is not one."""
    if not _JOB_ID.fullmatch(job):
        raise InputError(f"a job id must have 32 hexadecimal digits, got '{printable(job, 60)}'")
    return job


def read_token(path: Path) -> str:
    """Read the token in a file. Raise `InputError` if the file contains none."""
    token = read_file(path, 1_000).decode("ascii", "replace").strip()
    if not (token.isascii() and token.isprintable() and token):
        raise InputError.at(path, "contains no token; create one with helixfold serve token create")
    return token


def server_client(url: str, token_file: Path | None, *, allow_http: bool = False) -> Client:
    """Return a client of the server at `url`, with the token in a file; None for a server that requires no tokens.

    Raise `InputError` if the file contains no token, or if the token would travel unencrypted (see `Client`).
    """
    return Client(url, None if token_file is None else read_token(token_file), allow_http=allow_http)


@contextmanager
def client_errors_as_input_errors() -> Iterator[None]:
    """Convert `ServerError` into `InputError`, and `ServerUnreachableError` into `SearchError`."""
    try:
        yield
    except ServerError as error:
        raise InputError(f"the server refused the request: {error}") from error
    except ServerUnreachableError as error:
        raise SearchError(str(error)) from error
