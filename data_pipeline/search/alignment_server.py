"""Ask an MMseqs2 server with ColabFold's interface for alignments.

The client submits numbered sequences, gets a ticket, polls it until the search is complete, and downloads an archive of
alignments (Mirdita et al., Nat. Methods 2022).
"""

import io
import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Literal, TypeVar, get_args
from urllib.parse import urlencode, urlsplit

import numpy as np

from data_pipeline.io.addresses import is_http_address, without_password
from data_pipeline.io.errors import (
    ConnectionFailedError,
    InputError,
    NoNetworkError,
    RequestTimeoutError,
    SearchError,
    ServerUnavailableError,
    UnusableAnswerError,
    check_positive,
    choice_problem,
    error_reason,
    printable,
)
from data_pipeline.search.server_archive import MAX_ROWS, MAX_TEXT_BYTES, DamagedArchiveError, ServerAlignments

PUBLIC_SERVER = "https://api.colabfold.com"  # a shared resource that is not ours: used only if the user asks for it
Mode = Literal["env", "all", "env-nofilter", "nofilter"]
# complete: rows of species that every sequence of a complex has; greedy: of those that at least two of them have.
PairStrategy = Literal["greedy", "complete"]
FIRST_NUMBER = 101  # ColabFold's; the server labels its results with these numbers
_FIRST_PAUSE, _LONGEST_PAUSE, _SHORTEST_PAUSE = 4.0, 60.0, 1.0  # seconds; the upper bound of a pause doubles each time
_MAX_FAILURES_IN_A_ROW = 8
_MAX_FIRST_FAILURES = 3  # of a server that has never answered
_MAX_ANSWER_BYTES, _MAX_ARCHIVE_BYTES = 2**16, 2**28
_TICKET = re.compile(r"[A-Za-z0-9_-]{1,200}")
_UNFINISHED = ("PENDING", "RUNNING")
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Address of the server, databases to search, and time limits."""

    url: str
    mode: Mode = "env"  # with environmental sequences, or "all" without; "...nofilter" keeps nearly equal rows
    pair_strategy: PairStrategy = "greedy"
    pair_environmental: bool = False  # also pair environmental rows of complexes, below those of UniRef
    batch: int = 16  # sequences of one ticket
    max_wait: float = 3 * 3600.0  # seconds for one ticket, from the first request to the beginning of the last
    timeout: float = 120.0  # seconds for one request, and one more for each 128 KiB of its answer
    connect_timeout: float = 10.0  # seconds until a connection is made
    read_timeout: float = 60.0  # seconds without a byte after which a connection is closed
    instead: str = "give alignments of your own, or search a database on this machine"  # if it is unavailable

    def __post_init__(self) -> None:
        if not is_http_address(self.url) or urlsplit(self.url).query or urlsplit(self.url).fragment:
            raise InputError(f"an MMseqs2 server is named like {PUBLIC_SERVER}, got '{printable(self.url)}'")
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode {choice_problem(self.mode, get_args(Mode))}")
        if self.pair_strategy not in get_args(PairStrategy):
            raise ValueError(f"pair_strategy {choice_problem(self.pair_strategy, get_args(PairStrategy))}")
        if not 1 <= self.batch <= 100:
            raise ValueError(f"batch must be between 1 and 100, got {self.batch}")
        check_positive(self, "max_wait", "timeout", "connect_timeout", "read_timeout")


@dataclass
class ServerContact:
    """State of an alignment server in this run: whether it has answered yet, and why it is not asked any more."""

    has_answered: bool = False
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class TicketKind:
    """A search that the server offers: where it is submitted, and the files of its archive that are read."""

    endpoint: Literal["ticket/msa", "ticket/pair"]
    mode: str
    files: tuple[str, ...]
    blocks: int = 1  # alignments that a sequence may have in one file
    with_templates: bool = False  # a table of template hits is read too


@dataclass(frozen=True)
class AlignmentServer:
    """An MMseqs2 server, as one run knows it.

    Temporary failures are retried after random pauses of growing length, within `max_wait`; `report` gets a line for
    each. A server that cannot be reached, is silent or refuses to search is not asked again by the same run.
    """

    options: ServerOptions
    report: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    contact: ServerContact = field(default_factory=ServerContact, init=False, repr=False, compare=False)

    @property
    def address(self) -> str:
        """The address without a slash at its end."""
        return self.options.url.rstrip("/")

    @property
    def shown_address(self) -> str:
        """The address as results and messages show it: without a name and a password."""
        return without_password(self.address)

    def search(self, kind: TicketKind, sequences: Sequence[str]) -> ServerAlignments:
        """Return the alignments of different sequences (upper-case letters), numbered from `FIRST_NUMBER` on.

        Raise `SearchError` for permanent failures, and for answers that are damaged, hostile or for other sequences.
        Raise `ServerUnavailableError` if the server cannot be reached, is silent or refuses to search: all later
        searches then raise it at once.
        """
        check_sequences(sequences)
        return _Conversation(self).search(kind, dict(enumerate(sequences, start=FIRST_NUMBER)))

    def fetch(self, path: str, read: Callable[[IO[bytes]], Answer]) -> Answer:
        """Download an archive at a path on the server, and return what `read` makes of it.

        `read` raises `DamagedArchiveError` for one that another download may replace. Raise `SearchError` as `search`
        does.
        """
        return _Conversation(self).fetch(path, read)


def check_sequences(sequences: Sequence[str]) -> None:
    """Raise `ValueError` for a sequence that is not of upper-case letters alone, which would change the query."""
    for sequence in sequences:
        if not (sequence.isascii() and sequence.isalpha() and sequence.isupper()):
            raise ValueError(f"a sequence must be upper-case letters of residues, got {sequence[:20]!r}")


class _TemporaryError(Exception):
    """Failure that may not happen again after a pause.

    Its kind is "connection", "answer" (a wrong one), "busy" (the server takes no search now) or "searching". The last
    two are not counted: the server may be asked again until the time is over.
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
        self.retry_after = retry_after  # seconds that the server asks us to wait


class _Conversation:
    """One search on the server, or one download, with its own time limit."""

    def __init__(self, server: AlignmentServer) -> None:
        self._server, self._options, self._contact = server, server.options, server.contact
        self._url, self._shown = server.address, server.shown_address
        self._start = server.clock()
        self._is_accepted = False

    def search(self, kind: TicketKind, batch: dict[int, str]) -> ServerAlignments:
        self._check_contact()
        query = "".join(f">{number}\n{sequence}\n" for number, sequence in batch.items())
        ticket = self._retry(lambda: self._submit(kind, query))
        self._is_accepted = True
        self._retry(lambda: self._poll(ticket))
        found = self._retry(lambda: self._alignments(ticket, kind, batch))
        if found.cut:
            most = f"{MAX_ROWS:,} rows and {MAX_TEXT_BYTES >> 20} MiB"
            self._server.report(f"of each database, only the first {most} are kept, for {len(found.cut)} sequences")
        return found

    def fetch(self, path: str, read: Callable[[IO[bytes]], Answer]) -> Answer:
        self._check_contact()
        self._is_accepted = True  # nothing is searched: what fails is this download, not the server
        return self._retry(lambda: self._download(path, read))

    def _check_contact(self) -> None:
        if self._contact.problem is not None:
            raise ServerUnavailableError(self._contact.problem)

    def _submit(self, kind: TicketKind, query: str) -> str:
        answer = self._request_state("POST", kind.endpoint, data={"q": query, "mode": kind.mode})
        ticket = answer.get("id")
        if not isinstance(ticket, str) or not _TICKET.fullmatch(ticket):
            raise _TemporaryError("it gave no ticket")
        return ticket

    def _poll(self, ticket: str) -> None:
        status = self._request_state("GET", f"ticket/{ticket}")["status"]
        if status in _UNFINISHED:
            raise _TemporaryError(f"the search is still {status}", "busy" if status == "PENDING" else "searching")

    def _alignments(self, ticket: str, kind: TicketKind, batch: dict[int, str]) -> ServerAlignments:
        return self._download(
            f"result/download/{ticket}",
            lambda archive: ServerAlignments(
                archive, kind.files, batch, blocks=kind.blocks, with_templates=kind.with_templates
            ),
        )

    def _download(self, path: str, read: Callable[[IO[bytes]], Answer]) -> Answer:
        try:
            with tempfile.TemporaryFile() as archive:
                self._request("GET", path, archive, _MAX_ARCHIVE_BYTES)
                return read(archive)
        except DamagedArchiveError as error:
            raise _TemporaryError(f"the archive of results is damaged ({error})") from error
        except OSError as error:
            problem = f"the results cannot be written to the temporary directory: {error_reason(error)}"
            raise SearchError(f"{problem}; set TMPDIR to a folder with space") from error

    def _check_status(self, status: object) -> None:
        """Raise `SearchError` for a permanent failure, `_TemporaryError` for a state that passes."""
        if status == "ERROR":
            raise self._error("the server could not search for this sequence; try again later, or another server")
        if status == "RATELIMIT":
            raise _TemporaryError("it has too many requests (RATELIMIT)", "busy")
        if status in ("MAINTENANCE", "UNKNOWN"):
            raise _TemporaryError(f"its state is {status}")
        if status not in (*_UNFINISHED, "COMPLETE"):
            raise _TemporaryError(f"it answered with the unknown state '{printable(str(status))}'")

    def _request_state(self, method: str, path: str, data: dict[str, str] | None = None) -> dict[str, object]:
        body = io.BytesIO()
        self._request(method, path, body, _MAX_ANSWER_BYTES, data)
        content = body.getvalue()
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _TemporaryError(f"it answered with no JSON: {_shown(content)}") from error
        if not isinstance(answer, dict):
            raise _TemporaryError(f"it answered with something else than a state: {_shown(content)}")
        self._check_status(answer.get("status"))
        return answer

    def _request(
        self, method: str, path: str, body: IO[bytes], max_bytes: int, data: dict[str, str] | None = None
    ) -> None:
        # Takes long to import, and only runs that ask a server need it.
        from data_pipeline.io.http import send  # noqa: PLC0415

        try:
            # Only a GET is redirected: sequences must go to the server that the user named, and to no other.
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
            if not self._contact.has_answered:  # a mistyped address, or no network: no time is lost
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
        """Repeat `attempt` until it succeeds, the time is over or too many failures follow each other."""
        from data_pipeline.io.http import pause  # noqa: PLC0415

        failures = retries = 0
        shown = ""
        while True:
            try:
                return attempt()
            except _TemporaryError as error:
                is_failure = error.kind in ("connection", "answer")
                failures = failures + 1 if is_failure else 0
                waited, is_first = self._server.clock() - self._start, not self._contact.has_answered
                most = _MAX_FIRST_FAILURES if is_first else _MAX_FAILURES_IN_A_ROW
                if failures >= most or (is_first and waited > self._options.timeout):
                    raise self._given_up(
                        error, "it failed" if failures == 1 else f"{failures} attempts failed"
                    ) from error
                wanted = pause(retries, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE, uniform=self._server.rng.uniform)
                seconds = max(_SHORTEST_PAUSE, error.retry_after, wanted)
                if waited + seconds > self._options.max_wait:
                    raise self._given_up(error, f"no answer within {self._options.max_wait:g} s") from error
                retries += 1
                if (
                    is_failure or not self._is_accepted or shown != str(error)
                ):  # the state of a search only if it is new
                    shown = str(error)
                    again = f"{shown}; asked again in {seconds:.0f} s"
                    self._server.report(f"MMseqs2 server {printable(self._shown)}: {again}")
                self._server.sleep(seconds)

    def _given_up(self, error: _TemporaryError, problem: str) -> SearchError:
        """Return the error for a failure that stays: of this search alone, or of the server."""
        is_unavailable = error.kind in ("connection", "busy") or not self._is_accepted
        return (self._unavailable if is_unavailable else self._error)(f"{problem}: {error}")

    def _first_error(self, problem: str) -> SearchError:
        """Return the error for a failure that is the server's if it has never answered, else this search's."""
        return (self._error if self._contact.has_answered else self._unavailable)(problem)

    def _unavailable(self, problem: str) -> SearchError:
        """Return the error for this search and all later ones."""
        self._contact.problem = str(self._error(f"{problem}; {self._options.instead}"))
        return ServerUnavailableError(self._contact.problem)

    def _error(self, problem: str) -> SearchError:
        return SearchError(f"MMseqs2 server {printable(self._shown)}: {problem}")


def _shown(content: bytes) -> str:
    return f"'{printable(' '.join(content[:2000].decode('utf-8', 'replace').split()), 100)}'"
