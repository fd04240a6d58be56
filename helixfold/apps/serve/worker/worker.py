"""A worker: claim a job, run it in a separate process, report its progress, and send the result."""

import itertools
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.http import pause
from helixfold.apps.serve.alignment_request import AlignmentRequest
from helixfold.apps.serve.http_client import HttpClient, ServerError, ServerUnreachableError
from helixfold.apps.serve.job_options import OFFERS, job_options
from helixfold.apps.serve.submission import MAX_FILES, MAX_SEQUENCE_TEXT
from helixfold.apps.serve.transfer import MAX_INPUT_BYTES, checked_input_name
from helixfold.apps.serve.worker.process import Outcome, Progress

_JOB_ID = re.compile(r"[0-9a-f]{32}")
_LEASE_FORM = re.compile(r"[A-Za-z0-9_-]{1,100}")
_MAX_LEASE_SECONDS = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claimed job, with the lease that assigns it to this worker."""

    id: str
    lease: str
    lease_seconds: float
    kind: str
    request: Mapping[str, Any]

    @classmethod
    def of(cls, content: Any) -> Self:
        """Parse the server's answer to a claim. Raise `InputError` if it is invalid."""
        match content:
            case {
                "id": str(job),
                "lease": str(lease),
                "lease_seconds": int(seconds) | float(seconds),
                "kind": "prediction" | "alignment" as kind,
                "request": dict(request),
            } if _JOB_ID.fullmatch(job) and _LEASE_FORM.fullmatch(lease) and 0 < seconds <= _MAX_LEASE_SECONDS:
                return cls(id=job, lease=lease, lease_seconds=seconds, kind=kind, request=request)
        raise InputError("the server sent something other than a job; is it helixfold serve, of this version?")

    def checked_request(self) -> dict[str, Any]:
        """Return the fields of the request that a worker reads, with defaults for missing options.

        Unknown options are left out. Raise `InputError` if a field is invalid.
        """
        request = self.request
        try:
            if self.kind == "alignment":
                return asdict(AlignmentRequest.from_dict(dict(request)))
            options = {name: value for name, value in request["options"].items() if name in OFFERS}
            texts = [request["name"], request["sequence"], *request["chain_ids"]]
            files = {name: [checked_input_name(each) for each in request[name]] for name in ("alignments", "templates")}
            has_valid_texts = all(isinstance(text, str) and len(text) <= MAX_SEQUENCE_TEXT for text in texts)
            if not has_valid_texts or sum(map(len, files.values())) > MAX_FILES:
                raise TypeError("a value is invalid, or there are too many files")
            return {
                "name": request["name"],
                "sequence": request["sequence"],
                "chain_ids": list(request["chain_ids"]),
                "options": job_options(options),
                **files,
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the server sent a request that cannot be used: {error}") from error


_API: Final = "/api/v1/worker"
_CLAIM_WAIT_SECONDS: Final = 5.0  # seconds for which the server may delay the answer to a claim
_MIN_SECONDS_BETWEEN_CLAIMS: Final = 0.1
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_LOST_LEASE_STATUS: Final = 409
_MAX_ERROR: Final = 4_000  # characters
JOB_PREFIX: Final = "helixfold-job-"  # of the directory of each job
_HEARTBEATS_PER_LEASE: Final = 4


class JobRunner(Protocol):
    """Runs the jobs of a worker: `JobProcess` in a local process, `NodeProcess` on a node of a cluster."""

    def do(
        self, kind: str, content: Mapping[str, Any], directory: Path, should_continue: Callable[[Progress], bool]
    ) -> Outcome:
        """Run a job and return its outcome.

        `should_continue` is called regularly with the progress; the job is stopped if it returns false.
        """
        ...

    def stop(self) -> None:
        """Stop the running job."""
        ...


class StopRequestedError(Exception):
    """Raised instead of waiting for the server after the worker was stopped."""


@dataclass
class Worker:
    """Claims jobs from a server and runs them on one device. Setting `stop` ends the worker and releases its job.

    `print_line` prints a line for the worker's log.
    """

    client: HttpClient
    process: JobRunner
    name: str
    directory: Path | None = None  # parent of the jobs' directories; None: the system's temporary directory
    stop: threading.Event = field(default_factory=threading.Event)
    print_line: Callable[[str], None] = print

    def run(self) -> None:
        """Send the offers to the server, then claim and run jobs until `stop` is set, and stop the process.

        Raise `InputError` if weights or databases are missing.
        """
        try:
            offers = self._offers()
            claim = {
                "name": self.name,
                "kinds": ["prediction", *(["alignment"] if offers["alignments"] else [])],
                "longest": max((int(curve["longest"]) for curve in offers["forecasts"].values()), default=0) or None,
                "wait": _CLAIM_WAIT_SECONDS,
            }
            self._request_with_retries("POST", "/hello", {"name": self.name, "offers": offers})
            self._report(f"ready on {offers['device']}, models {', '.join(offers['models'])}")
            while not self.stop.is_set():
                claimed = self._request_with_retries("POST", "/claim", claim)
                if claimed is None:
                    self.stop.wait(_MIN_SECONDS_BETWEEN_CLAIMS)  # in case the server answers without waiting
                else:
                    self._work_on(claimed)
        except StopRequestedError:
            pass
        finally:
            self.process.stop()

    def _offers(self) -> dict[str, Any]:
        """Return the offers that the process computes. Raise `InputError` if it cannot."""
        with tempfile.TemporaryDirectory(prefix=JOB_PREFIX, dir=self.directory) as directory:
            outcome = self.process.do("offers", {}, Path(directory), lambda _: not self.stop.is_set())
        if self.stop.is_set():
            raise StopRequestedError
        if outcome.error is not None:
            raise InputError(outcome.error)
        offers: dict[str, Any] = outcome.result
        return offers

    def _work_on(self, content: Any) -> None:
        """Run a claimed job and report its outcome to the server, unless the job no longer belongs to this worker."""
        try:
            claim = Claim.of(content)
        except InputError as error:
            self._report(str(error))
            self.stop.wait(_LONGEST_PAUSE)
            return
        job, lease = claim.id, {"X-Lease": claim.lease}
        directory = Path(tempfile.mkdtemp(prefix=JOB_PREFIX, dir=self.directory))
        heartbeats = _Heartbeats(self, job, lease, claim.lease_seconds)
        try:
            request = claim.checked_request()
            names = (*request.get("alignments", ()), *request.get("templates", ()))
            self._fetch_inputs(job, names, lease, directory)
            outcome = self.process.do(claim.kind, request, directory, heartbeats.should_continue)
            if self.stop.is_set():
                self._request("POST", f"/jobs/{job}/release", None, lease)
            elif not heartbeats.is_lost:
                self._deliver(job, lease, outcome, heartbeats)
        except ServerError as error:
            if error.status != _LOST_LEASE_STATUS:
                self._report(f"job {job[:8]}: {error}")
                self._give_up(job, lease, str(error), try_again=True)
        except InputError as error:
            self._report(f"job {job[:8]}: {error}")
            self._give_up(job, lease, str(error), try_again=False)
        except ServerUnreachableError as error:
            self._report(str(error))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _report(self, text: str) -> None:
        """Print a line, without control characters because a part may come from the server."""
        self.print_line(printable(f"worker {self.name}: {text}", 1_000))

    def _fetch_inputs(self, job: str, names: Iterable[str], lease: Mapping[str, str], directory: Path) -> None:
        """Download the uploaded files of a job into its directory."""
        bytes_left = MAX_INPUT_BYTES
        for name in names:
            with (directory / name).open("wb") as file:
                bytes_left -= self.client.download(
                    f"{_API}/jobs/{job}/inputs/{name}", file, max_bytes=bytes_left, headers=lease
                )

    def _deliver(self, job: str, lease: Mapping[str, str], outcome: Outcome, beats: "_Heartbeats") -> None:
        """Report the error of a job, or send its result files and mark it as done."""
        if outcome.error is not None:
            content = {"error": outcome.error[:_MAX_ERROR], "try_again": outcome.has_died}
            self._request_with_retries("POST", f"/jobs/{job}/fail", content, lease)
            return
        folder = Path(outcome.result["folder"])
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        for path in files:
            relative_path = path.relative_to(folder).as_posix()
            self._send_file(f"/jobs/{job}/results/{relative_path}", path, lease)
            beats.beat()
        summary = {"summary": outcome.result["summary"], "files": len(files)}
        self._request_with_retries("POST", f"/jobs/{job}/finish", summary, lease)

    def _send_file(self, place: str, path: Path, lease: Mapping[str, str]) -> None:
        """Send a result file to a path of the interface, with retries."""

        def send() -> Any:
            with path.open("rb") as file:
                size = {"Content-Length": str(path.stat().st_size)}
                return self.client.request("PUT", _API + place, body=file, headers={**lease, **size})

        self._with_retries(send)

    def _give_up(self, job: str, lease: Mapping[str, str], reason: str, *, try_again: bool) -> None:
        """Report that a job cannot be run, once; ignore a server that refuses or does not answer."""
        try:
            self._request("POST", f"/jobs/{job}/fail", {"error": reason[:_MAX_ERROR], "try_again": try_again}, lease)
        except (ServerError, ServerUnreachableError):
            return  # the server queues the job again when the lease ends

    def _request_with_retries(
        self, method: str, path: str, content: Any, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request to the interface for workers until the server answers, and return the parsed answer."""
        return self._with_retries(lambda: self._request(method, path, content, headers))

    def _request(self, method: str, path: str, content: Any, headers: Mapping[str, str] | None = None) -> Any:
        """Send a request to the interface for workers once, and return the parsed answer."""
        return self.client.request(
            method, _API + path, content=content, headers=headers, timeout=_CLAIM_WAIT_SECONDS + 40
        ).json()

    def _with_retries(self, action: Callable[[], Any]) -> Any:
        """Repeat a request after growing pauses while the server does not answer."""
        for retry in itertools.count():
            try:
                return action()
            except ServerUnreachableError as error:
                if retry == 0:
                    self._report(f"{error}; retrying until the server answers")
            except ServerError as error:
                if error.status < 500:
                    raise
            if self.stop.wait(pause(retry, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)):
                raise StopRequestedError
        raise AssertionError("retries do not end by themselves")


class _Heartbeats:
    """Reports the progress of a job, and notices in the answers that the job no longer belongs to the worker."""

    def __init__(self, worker: Worker, job: str, lease: Mapping[str, str], lease_seconds: float) -> None:
        self._worker, self._job, self._lease = worker, job, lease
        self._interval = lease_seconds / _HEARTBEATS_PER_LEASE
        self._next_time, self._reported_stages = 0.0, -1
        self.is_lost = False

    def should_continue(self, progress: Progress) -> bool:
        """Send a heartbeat if a stage has ended or the interval is over; return whether to continue the job."""
        if len(progress.stages) != self._reported_stages or time.monotonic() >= self._next_time:
            self._reported_stages = len(progress.stages)
            self.beat(progress)
        return not self.is_lost and not self._worker.stop.is_set()

    def beat(self, progress: Progress | None = None) -> None:
        """Extend the lease and report progress. If the server does not answer, the next heartbeat comes sooner."""
        if progress is None and time.monotonic() < self._next_time:
            return
        self._next_time = time.monotonic() + self._interval
        content = {"progress": None if progress is None else progress.to_dict()}
        try:
            self._worker._request("POST", f"/jobs/{self._job}/heartbeat", content, self._lease)
        except ServerUnreachableError:
            self._next_time = time.monotonic() + min(self._interval, _FIRST_PAUSE)
        except ServerError as error:
            self.is_lost = self.is_lost or error.status == _LOST_LEASE_STATUS
