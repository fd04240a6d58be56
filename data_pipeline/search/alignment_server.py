"""Client of MMseqs2 servers with ColabFold's interface, which search for alignments.

The client submits numbered sequences, receives a ticket, polls its status until the search is complete, and downloads
an archive of alignments (Mirdita et al., Nat. Methods 2022). `PUBLIC_SERVER` is ColabFold's address. `FIRST_NUMBER` is
the number of the first sequence of a search. `Mode` is the server's name of a search, and `PairStrategy` is whether
rows are paired between all sequences of a complex ("complete") or at least two ("greedy").
"""

import io
import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Annotated, Literal, TypeVar
from urllib.parse import urlencode, urlsplit

import numpy as np

from data_pipeline.io.addresses import is_http_address, without_password
from data_pipeline.io.config import POSITIVE, Checked, between
from data_pipeline.io.errors import (
    ConnectionFailedError,
    InputError,
    NoNetworkError,
    RequestTimeoutError,
    SearchError,
    ServerUnavailableError,
    UnusableAnswerError,
    error_reason,
    printable,
)
from data_pipeline.search.server_archive import MAX_ROWS, MAX_TEXT_BYTES, DamagedArchiveError, ServerAlignments

PUBLIC_SERVER = "https://api.colabfold.com"  # a shared resource of others: only used on request
Mode = Literal["env", "all", "env-nofilter", "nofilter"]
# complete: rows of species with a hit for all sequences of a complex; greedy: for at least two sequences.
PairStrategy = Literal["greedy", "complete"]
FIRST_NUMBER = 101  # as in ColabFold; the server labels results with the numbers of the sequences
_FIRST_PAUSE, _MAX_PAUSE, _MIN_PAUSE = 4.0, 60.0, 1.0  # seconds; the maximum pause doubles each time
_MAX_FAILURES_IN_A_ROW = 8
_MAX_FIRST_FAILURES = 3  # for a server that has never answered
_MAX_ANSWER_BYTES, _MAX_ARCHIVE_BYTES = 2**16, 2**28
_TICKET = re.compile(r"[A-Za-z0-9_-]{1,200}")
_UNFINISHED_STATUSES = ("PENDING", "RUNNING")
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Checked):
    """Address of the server, databases to search, and time limits.

    The mode "env" searches environmental sequences too, "all" does not, and "...nofilter" keeps near-duplicate rows.
    `pair_environmental` also pairs environmental rows. `batch` is the number of sequences per ticket. All times are in
    seconds: `max_wait` per ticket, `timeout` per request (and one more for each 128 KiB of the response),
    `connect_timeout` to connect, and `read_timeout` without a byte. `instead` is the advice in errors.
    """

    url: str
    mode: Mode = "env"  # "env": with environmental sequences; "all": without; "...nofilter" keeps near-duplicate rows
    pair_strategy: PairStrategy = "greedy"
    pair_environmental: bool = False  # also pair environmental rows of complexes, below the UniRef rows
    batch: Annotated[int, between(1, 100)] = 16  # sequences per ticket
    # Seconds per ticket, from the first request to the start of the last.
    max_wait: Annotated[float, POSITIVE] = 3 * 3600.0
    timeout: Annotated[float, POSITIVE] = 120.0  # seconds per request, and one more for each 128 KiB of the response
    connect_timeout: Annotated[float, POSITIVE] = 10.0  # seconds to establish a connection
    read_timeout: Annotated[float, POSITIVE] = 60.0  # seconds without a byte until a connection is closed
    instead: str = "pass your own alignments, or search a database on this machine"  # advice if it is unavailable

    def __post_init__(self) -> None:
        if not is_http_address(self.url) or urlsplit(self.url).query or urlsplit(self.url).fragment:
            raise InputError(f"an MMseqs2 server must be a URL like {PUBLIC_SERVER}, got '{printable(self.url)}'")
        super().__post_init__()


@dataclass
class ServerContact:
    """State of an alignment server in this run: whether it has answered, and the reason if it is not used any more."""

    has_answered: bool = False
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class TicketKind:
    """A kind of search on the server: its endpoint and mode, and the names of the files to read from its archive.

    `blocks` is the max number of alignments per sequence in one file. `with_templates` also reads the template hits.
    """

    endpoint: Literal["ticket/msa", "ticket/pair"]
    mode: str
    files: tuple[str, ...]
    blocks: int = 1  # max alignments per sequence in one file
    with_templates: bool = False  # also read the table of template hits


@dataclass(frozen=True)
class AlignmentServer:
    """An MMseqs2 server, with its state in this run.

    Temporary failures are retried after random pauses of increasing length, within `max_wait`. `report` receives a line
    for most retries, and a line if alignments are cut to their first rows. `clock` (seconds), `sleep` and `rng` (of the
    pauses) are replaced in tests. A server that cannot be reached, does not answer or rejects searches is not used
    again in this run.
    """

    options: ServerOptions
    report: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    contact: ServerContact = field(default_factory=ServerContact, init=False, repr=False, compare=False)

    @property
    def address(self) -> str:
        """The address of the options without a trailing slash, with user name and password if it has them."""
        return self.options.url.rstrip("/")

    @property
    def shown_address(self) -> str:
        """The address for results and messages, without user name and password."""
        return without_password(self.address)

    def search(self, kind: TicketKind, sequences: Sequence[str]) -> ServerAlignments:
        """Return the alignments of distinct sequences (upper-case letters), numbered from `FIRST_NUMBER`.

        All are sent in one ticket. Raise `SearchError` for permanent failures, and for responses that are damaged,
        malicious or for other sequences. Raise `ServerUnavailableError` if the server cannot be reached, does not
        answer or rejects searches; all later searches then raise it immediately.
        """
        check_sequences(sequences)
        return _Conversation(self).search(kind, dict(enumerate(sequences, start=FIRST_NUMBER)))

    def fetch(self, path: str, read: Callable[[IO[bytes]], Answer]) -> Answer:
        """Download an archive at a path on the server, and return the result of `read`.

        `read` raises `DamagedArchiveError` if another download may succeed. Raise `SearchError` as in `search`.
        """
        return _Conversation(self).fetch(path, read)


def check_sequences(sequences: Sequence[str]) -> None:
    """Raise `ValueError` unless all sequences consist of upper-case letters, because other text changes the query."""
    for sequence in sequences:
        if not (sequence.isascii() and sequence.isalpha() and sequence.isupper()):
            raise ValueError(f"a sequence must be upper-case letters of residues, got {sequence[:20]!r}")


class _TemporaryError(Exception):
    """Failure that may disappear after a pause.

    The kind is "connection", "answer" (an invalid response), "busy" (the server accepts no searches now) or "searching"
    (not finished). The last two do not count as failures, and are only limited by the time.
    """

    def __init__(
        self,
        problem: str,
        kind: Literal["connection", "answer", "busy", "searching"] = "answer",
        *,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(problem)
        self.kind = kind
        self.retry_after = retry_after  # seconds, requested by the server


class _Conversation:
    """One search or download on the server, with its own time limit."""

    def __init__(self, server: AlignmentServer) -> None:
        self._server, self._options, self._contact = server, server.options, server.contact
        self._url, self._shown = server.address, server.shown_address
        self._start = server.clock()
        self._is_accepted = False

    def search(self, kind: TicketKind, batch: dict[int, str]) -> ServerAlignments:
        self._check_contact()
        query = "".join(f">{key}\n{sequence}\n" for key, sequence in batch.items())
        ticket = self._retry(lambda: self._submit(kind, query))
        self._is_accepted = True
        self._retry(lambda: self._poll(ticket))
        alignments = self._retry(lambda: self._alignments(ticket, kind, batch))
        if alignments.cut:
            limit = f"{MAX_ROWS:,} rows and {MAX_TEXT_BYTES >> 20} MiB"
            self._server.report(f"only the first {limit} of each database are kept for {len(alignments.cut)} sequences")
        return alignments

    def fetch(self, path: str, read: Callable[[IO[bytes]], Answer]) -> Answer:
        self._check_contact()
        self._is_accepted = True  # a failure concerns this download, not the server
        return self._retry(lambda: self._download(path, read))

    def _check_contact(self) -> None:
        """Raise `ServerUnavailableError` if the server failed before."""
        if self._contact.problem is not None:
            raise ServerUnavailableError(self._contact.problem)

    def _submit(self, kind: TicketKind, query: str) -> str:
        """Submit the sequences `query`, FASTA text, as a search of this kind and return its ticket."""
        answer = self._request_state("POST", kind.endpoint, data={"q": query, "mode": kind.mode})
        ticket = answer.get("id")
        if not isinstance(ticket, str) or not _TICKET.fullmatch(ticket):
            raise _TemporaryError("it returned no ticket")
        return ticket

    def _poll(self, ticket: str) -> None:
        """Return if the search of a ticket is complete, else raise an error."""
        status = self._request_state("GET", f"ticket/{ticket}")["status"]
        if status in _UNFINISHED_STATUSES:
            raise _TemporaryError(f"the search is still {status}", "busy" if status == "PENDING" else "searching")

    def _alignments(self, ticket: str, kind: TicketKind, batch: dict[int, str]) -> ServerAlignments:
        """Download the results of a finished ticket; `batch` has its sequences by their numbers at the server."""
        return self._download(
            f"result/download/{ticket}",
            lambda archive: ServerAlignments(
                archive, kind.files, batch, blocks=kind.blocks, with_templates=kind.with_templates
            ),
        )

    def _download(self, path: str, read: Callable[[IO[bytes]], Answer]) -> Answer:
        """Download `path` into a temporary file and return what `read` makes of it."""
        try:
            with tempfile.TemporaryFile() as archive:
                self._request("GET", path, archive, _MAX_ARCHIVE_BYTES)
                return read(archive)
        except DamagedArchiveError as error:
            raise _TemporaryError(f"the archive of results is damaged ({error})") from error
        except OSError as error:
            problem = f"the results cannot be written to the temporary directory: {error_reason(error)}"
            raise SearchError(f"{problem}; set TMPDIR to a folder with free space") from error

    def _check_status(self, status: object) -> None:
        """Raise `SearchError` for a permanent failure, and `_TemporaryError` for a temporary state."""
        if status == "ERROR":
            raise self._error("the server could not search for this sequence; try again later, or another server")
        if status == "RATELIMIT":
            raise _TemporaryError("too many requests (RATELIMIT)", "busy")
        if status in ("MAINTENANCE", "UNKNOWN"):
            raise _TemporaryError(f"its state is {status}")
        if status not in (*_UNFINISHED_STATUSES, "COMPLETE"):
            raise _TemporaryError(f"it answered with the unknown state '{printable(str(status))}'")

    def _request_state(self, method: str, path: str, data: dict[str, str] | None = None) -> dict[str, object]:
        """Send a request and return its JSON answer; raise an error if the status is not a usable one."""
        body = io.BytesIO()
        self._request(method, path, body, _MAX_ANSWER_BYTES, data)
        content = body.getvalue()
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _TemporaryError(f"its answer is not JSON: {_shown(content)}") from error
        if not isinstance(answer, dict):
            raise _TemporaryError(f"its answer has no state: {_shown(content)}")
        self._check_status(answer.get("status"))
        return answer

    def _request(
        self, method: str, path: str, body: IO[bytes], max_bytes: int, data: dict[str, str] | None = None
    ) -> None:
        """Send a request and write the answer, at most `max_bytes`, to `body`, which is at its start afterwards.

        Raise `_TemporaryError` if the request is worth repeating. `data` has the fields of a form.
        """
        # The import is slow, and only runs with a server need it.
        from data_pipeline.io.http import send  # noqa: PLC0415

        try:
            # Only a GET is redirected, because sequences must only go to the server that the user chose.
            with send(
                method,
                f"{self._url}/{path}",
                timeout=self._options.timeout,
                connect_timeout=self._options.connect_timeout,
                read_timeout=self._options.read_timeout,
                max_bytes=max_bytes,
                headers={"Content-Type": "application/x-www-form-urlencoded"} if data else {},
                body=urlencode(data or {}).encode(),
                redirects=True,
            ) as answer:
                answer.copy_to(body)
        except (RequestTimeoutError, UnusableAnswerError) as error:
            raise self._first_error(str(error)) from error
        except NoNetworkError as error:
            if not self._contact.has_answered:  # fail fast on a mistyped address or without a network
                raise self._unavailable(f"it cannot be reached: {error}; check the address and the network") from error
            raise _TemporaryError(str(error), "connection") from error
        except ConnectionFailedError as error:
            raise _TemporaryError(str(error), "connection") from error
        self._contact.has_answered = True
        body.seek(0)
        if answer.status == 200:
            return
        problem = f"it answered {answer.status} {printable(answer.reason)}: {_shown(body.read(2000))}"
        is_busy = answer.status == 429
        if is_busy or answer.status >= 500 or answer.status == 408:
            raise _TemporaryError(problem, "busy" if is_busy else "answer", retry_after=answer.retry_after or 0.0)
        raise self._error(f"{problem}; is this the address of an MMseqs2 server?")

    def _retry(self, attempt: Callable[[], Answer]) -> Answer:
        """Repeat `attempt` until it succeeds, the time limit is reached, or too many consecutive attempts fail."""
        from data_pipeline.io.http import pause  # noqa: PLC0415

        failures = retries = 0
        last_report = ""
        while True:
            try:
                return attempt()
            except _TemporaryError as error:
                is_failure = error.kind in ("connection", "answer")
                failures = failures + 1 if is_failure else 0
                waited, is_first = self._server.clock() - self._start, not self._contact.has_answered
                max_failures = _MAX_FIRST_FAILURES if is_first else _MAX_FAILURES_IN_A_ROW
                if failures >= max_failures or (is_first and waited > self._options.timeout):
                    raise self._permanent(
                        error, "it failed" if failures == 1 else f"{failures} attempts failed"
                    ) from error
                backoff = pause(retries, first=_FIRST_PAUSE, longest=_MAX_PAUSE, uniform=self._server.rng.uniform)
                seconds = max(_MIN_PAUSE, error.retry_after, backoff)
                if waited + seconds > self._options.max_wait:
                    raise self._permanent(error, f"no answer within {self._options.max_wait:g} s") from error
                retries += 1
                # The state of a search is reported only when it changes.
                if is_failure or not self._is_accepted or last_report != str(error):
                    last_report = str(error)
                    line = f"{last_report}; trying again in {seconds:.0f} s"
                    self._server.report(f"MMseqs2 server {printable(self._shown)}: {line}")
                self._server.sleep(seconds)

    def _permanent(self, error: _TemporaryError, problem: str) -> SearchError:
        """Return the error for a failure that persists, either of this search only or of the server."""
        is_unavailable = error.kind in ("connection", "busy") or not self._is_accepted
        return (self._unavailable if is_unavailable else self._error)(f"{problem}: {error}")

    def _first_error(self, problem: str) -> SearchError:
        """Return the error for a failure of this search, or of the server if it has never answered."""
        return (self._error if self._contact.has_answered else self._unavailable)(problem)

    def _unavailable(self, problem: str) -> SearchError:
        """Return the error for this search and all later ones."""
        self._contact.problem = str(self._error(f"{problem}; {self._options.instead}"))
        return ServerUnavailableError(self._contact.problem)

    def _error(self, problem: str) -> SearchError:
        return SearchError(f"MMseqs2 server {printable(self._shown)}: {problem}")


def _shown(content: bytes) -> str:
    """Return the beginning of an answer in quotes, as one line for a message."""
    return f"'{printable(' '.join(content[:2000].decode('utf-8', 'replace').split()), 100)}'"
