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
_ENDED: Final = ("done", "failed", "cancelled", "expired")
_STATES: Final = ("queued", "running", *_ENDED)
_MOST_FILE_BYTES: Final = 2**28
_MAX_DISK: Final = 20 * 2**30  # of a result, as much as a service keeps for a user unless it is told otherwise
_ATTEMPTS: Final = 6
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_ID = re.compile(r"[0-9a-f]{32}")


class Client:
    """Jobs of a user on a server; a request that got no answer is made again, and never does its work twice.

    A server at an http:// address must be on this machine, unless `allow_http` says that the network is trusted.
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
        """Leave the context; each request closes its own connection."""

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

        `options` are those of the REST interface, such as recycles=3 or predictions=5, where `search_templates` is
        called templates. Raise `ServerError` if the server refuses it, `ServerUnreachableError` if it does not answer.
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
        """Return what a sequence would take; None while the server does not know."""
        return self._asked("POST", "/forecast", {"sequence": sequence, "options": options})

    def job(self, job: str) -> dict[str, Any]:
        """Return a job as it is now."""
        return self._job("GET", f"/jobs/{_id(job)}")

    def jobs(self, *, limit: int = 50) -> list[dict[str, Any]]:
        """Return the user's newest jobs."""
        answer = self._asked("GET", f"/jobs?limit={limit}")
        found = answer.get("jobs") if isinstance(answer, dict) else None
        if not isinstance(found, list) or not all(map(_is_job, found)):
            raise self._unexpected()
        return found

    def service(self) -> dict[str, Any]:
        """Return what the service offers, and how much waits."""
        return self._asked("GET", "/service")

    def cancel(self, job: str) -> dict[str, Any]:
        """Cancel a job that waits or runs."""
        return self._job("POST", f"/jobs/{_id(job)}/cancel")

    def retry(self, job: str) -> dict[str, Any]:
        """Let a job that failed or was cancelled wait again."""
        return self._job("POST", f"/jobs/{_id(job)}/retry")

    def share(self, job: str) -> str:
        """Return the address of a new link that shows a job to whoever has it."""
        link = self._asked("POST", f"/jobs/{_id(job)}/share")
        return str(link.get("url") or f"{self._http.url}{link['path']}")

    def delete(self, job: str) -> None:
        """Remove the files of a job that has ended."""
        self._asked("DELETE", f"/jobs/{_id(job)}")

    def watch(self, job: str, *, seconds: float = 1.0) -> Iterator[dict[str, Any]]:
        """Yield a job whenever it has changed, asking every so many seconds, until it has ended."""
        last = None
        while True:
            now = self.job(job)
            if now != last:
                last = now
                yield now
            if now["state"] in _ENDED:
                return
            self._sleep(seconds)

    def wait(self, job: str, *, seconds: float = 1.0) -> dict[str, Any]:
        """Return a job when it has ended, however it did."""
        *_, ended = self.watch(job, seconds=seconds)
        return ended

    def fetch(self, job: str, output: Path, *, max_bytes: int = _MAX_DISK) -> list[Path]:
        """Write the files of a result below a directory, and return them.

        Raise `InputError` if there are none, if they take more than `max_bytes`, or for names that lead elsewhere.
        """
        found = self._asked("GET", f"/jobs/{_id(job)}/files")
        if not isinstance(found, list) or not all(map(_is_result_file, found)):
            raise self._unexpected()
        if not found:
            raise InputError(f"job {job} has no result; it is {self.job(job)['state']}")
        files = {checked_result_path(each["path"]): each["bytes"] for each in found}
        if len(files) > MAX_RESULT_FILES:
            raise InputError(f"the result has {len(files):,} files; the maximum is {MAX_RESULT_FILES:,}")
        if sum(files.values()) > max_bytes:
            raise InputError(
                f"the result has {sum(files.values()):,} bytes, and {max_bytes:,} are allowed; raise --max-disk"
            )
        for path, size in files.items():
            self._repeated(partial(self._download, job, path, output / path, size))
        return [output / path for path in files]

    def _download(self, job: str, path: str, target: Path, size: int) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as temporary, temporary.open("wb") as file:
            self._http.download(f"{_API}/jobs/{_id(job)}/files/{path}", file, max_bytes=size)

    def _job(self, method: str, path: str, content: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """Return the job in an answer, with the types that commands rely on and an id and a state that can be shown."""
        job = self._asked(method, path, content, headers)
        if not _is_job(job):
            raise self._unexpected()
        return job

    def _unexpected(self) -> ServerUnreachableError:
        return ServerUnreachableError(f"{self._http.url} does not answer like helixfold serve; check the address")

    def _asked(self, method: str, path: str, content: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        def ask() -> Any:
            return self._http.request(method, _API + path, content=content, headers=headers).json()

        return self._repeated(ask)

    def _repeated(self, action: Callable[[], Any]) -> Any:
        """Repeat an action after growing pauses while the server does not answer or asks to wait up to a minute."""
        for attempt in range(_ATTEMPTS):
            seconds = pause(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
            try:
                return action()
            except ServerUnreachableError:
                if attempt == _ATTEMPTS - 1:
                    raise
            except ServerError as error:
                wanted = error.retry_after if error.status in (429, 503) else None
                if wanted is None or wanted > _LONGEST_PAUSE or attempt == _ATTEMPTS - 1:
                    raise
                seconds = max(seconds, wanted)
            self._sleep(seconds)
        raise AssertionError("the last attempt returns or raises")


def _file(path: Path) -> dict[str, str]:
    content = base64.b64encode(read_file(path, _MOST_FILE_BYTES)).decode()
    return {"name": os.path.basename(path), "content": content, "encoding": "base64"}


def _is_job(content: Any) -> bool:
    match content:
        case {
            "id": str(job),
            "state": state,
            "name": str(),
            "place": int() | None,
            "error": str() | None,
            "progress": dict(progress),
            "summary": dict(),
        } if _ID.fullmatch(job) and state in _STATES:
            stages = progress.get("stages", [])
            return isinstance(stages, list) and all(
                isinstance(stage, dict) and isinstance(stage.get("name"), str) for stage in stages
            )
    return False


def _is_result_file(content: Any) -> bool:
    match content:
        case {"path": str(), "bytes": int(size)} if size >= 0:
            return True
    return False


def _id(job: str) -> str:
    if not _ID.fullmatch(job):
        raise InputError(f"a job id must have 32 hexadecimal digits, got '{printable(job, 60)}'")
    return job


def read_token(path: Path) -> str:
    """Return the token in a file. Raise `InputError` for a file that has none."""
    token = read_file(path, 1_000).decode("ascii", "replace").strip()
    if not (token.isascii() and token.isprintable() and token):
        raise InputError.at(path, "contains no token; create one with helixfold serve token create")
    return token


def server_client(url: str, token_file: Path | None, *, allow_http: bool = False) -> Client:
    """Return a client of the server at an address. Raise `InputError` for a file that has no token."""
    return Client(url, None if token_file is None else read_token(token_file), allow_http=allow_http)


@contextmanager
def refusals_as_input_errors() -> Iterator[None]:
    """Turn what a server refuses into `InputError`, and what it does not answer into `SearchError`."""
    try:
        yield
    except ServerError as error:
        raise InputError(f"the server refused the request: {error}") from error
    except ServerUnreachableError as error:
        raise SearchError(str(error)) from error
