"""Search for homologs on an MMseqs2 server with ColabFold's interface, if the user chooses to send sequences there.

The client submits numbered sequences, gets a ticket, polls it until the search is complete, and downloads an archive of
alignments (Mirdita et al., Nat. Methods 2022). The archive is unpacked in memory and not trusted.
"""

import gzip
import io
import json
import re
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import IO, ClassVar, Literal, Self, TypeVar, get_args
from urllib.parse import urlsplit

import numpy as np
import requests
import urllib3

from data_pipeline.errors import InputError, SearchError, check_positive, printable
from data_pipeline.residues import AMBIGUOUS_LETTERS
from data_pipeline.search.http_request import HttpAnswer, RequestTimeoutError, UnusableAnswerError, request
from data_pipeline.search.tool import FileFormat

UNIREF_FILE = "uniref.a3m"
ENVIRONMENTAL_FILE = "bfd.mgnify30.metaeuk30.smag30.a3m"
MAX_UNPACKED_BYTES = 2**29
_MAX_MEMBERS = 64  # a server sends about six
_MAX_EXTENDED_HEADER = 2**12
_MAX_NUL_BYTES = 1000  # beside one after each sequence\'s rows
_UNPACKED_CHUNK = 2**20
PUBLIC_SERVER = "https://api.colabfold.com"  # a shared resource that is not ours: used only if the user asks for it
Mode = Literal["env", "all", "env-nofilter", "nofilter"]
_USER_AGENT = "helixfold"
_FIRST_NUMBER = 101  # ColabFold's; the server labels its results with these numbers
_FIRST_PAUSE, _LONGEST_PAUSE, _SHORTEST_PAUSE = 4.0, 60.0, 1.0  # seconds; the upper bound of a pause doubles each time
_MAX_FAILURES_IN_A_ROW = 8
_MAX_ANSWER_BYTES, _MAX_ARCHIVE_BYTES = 2**16, 2**28
_TICKET = re.compile(r"[A-Za-z0-9_-]{1,200}")
_CONNECTION_ERRORS = (requests.RequestException, urllib3.exceptions.HTTPError, OSError)
_PERMANENT_ERRORS = (  # a wrong certificate or address stays wrong
    requests.exceptions.SSLError,
    requests.exceptions.InvalidURL,
)
_UNFINISHED = ("PENDING", "RUNNING")
Answer = TypeVar("Answer")


class DamagedArchiveError(Exception):
    """Archive that was cut off or changed on its way; another download may succeed."""


class _BoundedGzip(io.RawIOBase):
    """The unpacked stream of a gzip file; reading beyond `MAX_UNPACKED_BYTES` raises `SearchError`."""

    def __init__(self, archive: IO[bytes]) -> None:
        self._stream = gzip.GzipFile(fileobj=archive, mode="rb")
        self._left = MAX_UNPACKED_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(min(_UNPACKED_CHUNK, size) if size >= 0 else _UNPACKED_CHUNK)
        self._left -= len(content)
        if self._left < 0:
            raise SearchError(f"the server's archive unpacks to more than {MAX_UNPACKED_BYTES:,} bytes; not read")
        return content


class _PlainMember(tarfile.TarInfo):
    """Member of an archive; extended headers beyond what a long name takes are refused before they are read."""

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        if self.type not in tarfile.REGULAR_TYPES and self.size > _MAX_EXTENDED_HEADER:
            raise SearchError(f"the server's archive has a header of {self.size:,} bytes; not read")
        return super()._proc_member(archive)  # type: ignore[misc]


def unpack(archive: IO[bytes], names: Collection[str]) -> dict[str, bytes]:
    """Return the content of the files with these names in a tar.gz archive; other files are ignored.

    Raise `DamagedArchiveError` for an archive that another download may replace, `SearchError` for any other problem.
    """
    contents: dict[str, bytes] = {}
    try:
        stream = _BoundedGzip(archive)
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_PlainMember) as tar:
            for number, member in enumerate(tar, start=1):
                if number > _MAX_MEMBERS:
                    raise SearchError(f"the server's archive holds more than {_MAX_MEMBERS} files; not read")
                name = member.name.removeprefix("./")
                if name not in names:
                    continue
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse() or name in contents:
                    raise SearchError(f"the server's archive holds {name} twice or as something else than a plain file")
                content = tar.extractfile(member)
                assert content is not None
                contents[name] = content.read()
                if len(contents[name]) != member.size:
                    raise DamagedArchiveError("a file of it is cut")
        while stream.read(_UNPACKED_CHUNK):  # to the end, where gzip has its checksum
            pass
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, RecursionError) as error:
        raise DamagedArchiveError(printable(str(error))) from error
    if missing := sorted(set(names) - contents.keys()):
        raise SearchError(f"the server's answer lacks {', '.join(missing)}")
    return contents


def merged_alignments(files: Mapping[str, bytes], sequences: Mapping[int, str]) -> dict[int, bytes]:
    """Return one a3m for each numbered sequence: the target ("query"), its UniRef rows, its environmental rows."""
    merged = {number: [f">query\n{sequence}\n".encode()] for number, sequence in sequences.items()}
    for name in (UNIREF_FILE, ENVIRONMENTAL_FILE):
        if name in files:
            for number, rows in _parts(name, files[name], sequences).items():
                merged[number].append(rows)
    return {number: b"".join(pieces) for number, pieces in merged.items()}


def _parts(name: str, content: bytes, sequences: Mapping[int, str]) -> dict[int, bytes]:
    """Return each sequence's rows below the target; a file's parts begin with the target and end in NUL bytes."""
    parts: dict[int, bytes] = {}
    if content.count(b"\0") > len(sequences) + _MAX_NUL_BYTES:
        raise SearchError(f"{name} of the server's answer is full of NUL bytes")
    for part in content.split(b"\0"):
        if not part.strip():
            continue
        header, _, body = part.lstrip().partition(b"\n")
        shown = printable(header.decode("utf-8", "replace"))
        word = header.removeprefix(b">").split()[:1]
        number = int(word[0]) if header.startswith(b">") and word and word[0].isdigit() and len(word[0]) < 10 else -1
        if number not in sequences or number in parts:
            raise SearchError(f"{name} of the server's answer is for '{shown}', which was not asked for, or twice")
        row, mark, rest = body.partition(b"\n>")
        if not _is_target(row.translate(None, b"\r\n"), sequences[number]):
            raise SearchError(f"{name} of the server's answer is for another sequence than was asked for ('{shown}')")
        parts[number] = b">" + rest.rstrip(b"\n") + b"\n" if mark else b""
    if missing := sorted(sequences.keys() - parts.keys()):
        raise SearchError(f"{name} of the server's answer lacks {len(missing)} of {len(sequences)} sequences")
    return parts


def _is_target(row: bytes, sequence: str) -> bool:
    """Return whether a row is the target's, apart from ambiguous letters, for which MMseqs2 writes others."""
    return len(row) == len(sequence) and all(
        letter == own or own in AMBIGUOUS_LETTERS for letter, own in zip(row.decode("latin-1"), sequence, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Address of the server, databases to search, and time limits."""

    url: str
    mode: Mode = "env"  # with environmental sequences, or "all" without; "...nofilter" keeps nearly equal rows
    batch: int = 16  # sequences of one ticket
    max_wait: float = 3 * 3600.0  # seconds for one ticket, from the first request to the beginning of the last
    timeout: float = 120.0  # seconds for one request, and one more for each 128 KiB of its answer
    read_timeout: float = 60.0  # seconds without a byte after which a connection is closed

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise InputError(f"an MMseqs2 server is named like {PUBLIC_SERVER}, got '{printable(self.url)}'")
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {self.mode!r}")
        if not 1 <= self.batch <= 100:
            raise ValueError(f"batch must be between 1 and 100, got {self.batch}")
        check_positive(self, "max_wait", "timeout", "read_timeout")


@dataclass(frozen=True)
class ServerSearch:
    """Search on an MMseqs2 server, with several sequences in one ticket.

    Temporary failures are retried after random pauses of growing length, within `max_wait`. Raise `SearchError` for
    permanent failures, and for answers that are damaged, hostile or for another sequence.
    """

    file_format: ClassVar[FileFormat] = "a3m"

    options: ServerOptions
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def identity(self) -> str:
        """Return address and mode in one line; a server does not tell the versions of its databases."""
        return f"mmseqs2 server {self.options.url.rstrip('/')} mode {self.options.mode}"

    def search(self, sequence: str) -> bytes:
        """Return the a3m of all homologs: the target under the name "query", UniRef rows, environmental rows."""
        return self.search_many([sequence])[0]

    def search_many(self, sequences: Sequence[str]) -> list[bytes]:
        """Return the result of `search` for each sequence (upper-case letters); equal sequences are sent once."""
        unique = list(dict.fromkeys(sequences))
        for sequence in unique:
            if not (sequence.isascii() and sequence.isalpha() and sequence.isupper()):
                raise ValueError(f"a sequence must be upper-case letters of residues, got {sequence[:20]!r}")
        results: dict[str, bytes] = {}
        for start in range(0, len(unique), self.options.batch):
            batch = dict(enumerate(unique[start : start + self.options.batch], start=_FIRST_NUMBER))
            alignments = _Ticket(self).search(batch)
            results |= {sequence: alignments[number] for number, sequence in batch.items()}
        return [results[sequence] for sequence in sequences]


class _TemporaryError(Exception):
    """Failure that may not happen again after a pause."""

    def __init__(self, problem: str, *, retry_after: float = 0.0, is_failure: bool = True) -> None:
        super().__init__(problem)
        self.retry_after = retry_after  # seconds that the server asks us to wait
        self.is_failure = is_failure  # False: the server is only busy, and may be asked again until the time is over


class _Ticket:
    """One search on the server, with its own time limit."""

    def __init__(self, server: ServerSearch) -> None:
        self._server, self._options = server, server.options
        self._url = server.options.url.rstrip("/")
        self._deadline = server.clock() + server.options.max_wait

    def search(self, batch: dict[int, str]) -> dict[int, bytes]:
        query = "".join(f">{number}\n{sequence}\n" for number, sequence in batch.items())
        ticket = self._retry(lambda: self._submit(query))
        self._retry(lambda: self._poll(ticket))
        names = (UNIREF_FILE, ENVIRONMENTAL_FILE) if self._options.mode.startswith("env") else (UNIREF_FILE,)
        return merged_alignments(self._retry(lambda: self._download(ticket, names)), batch)

    def _submit(self, query: str) -> str:
        answer = self._request_state("POST", "ticket/msa", data={"q": query, "mode": self._options.mode})
        ticket = answer.get("id")
        if not isinstance(ticket, str) or not _TICKET.fullmatch(ticket):
            raise _TemporaryError("it gave no ticket")
        return ticket

    def _poll(self, ticket: str) -> None:
        answer = self._request_state("GET", f"ticket/{ticket}")
        if answer["status"] in _UNFINISHED:
            raise _TemporaryError(f"the search is still {answer['status']}", is_failure=False)

    def _download(self, ticket: str, names: tuple[str, ...]) -> dict[str, bytes]:
        with tempfile.TemporaryFile() as archive:
            self._request("GET", f"result/download/{ticket}", archive, _MAX_ARCHIVE_BYTES)
            try:
                return unpack(archive, names)
            except DamagedArchiveError as error:
                raise _TemporaryError(f"the archive of results is damaged ({error})") from error

    def _check_status(self, status: object) -> None:
        """Raise `SearchError` for a permanent failure, `_TemporaryError` for a state that passes."""
        if status == "ERROR":
            raise self._error("the server could not search for this sequence; try again later, or another server")
        if status == "RATELIMIT":
            raise _TemporaryError("it has too many requests (RATELIMIT)", is_failure=False)
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
        try:
            # Only a GET is redirected: sequences must go to the server that the user named, and to no other.
            answer = request(
                method,
                f"{self._url}/{path}",
                body,
                timeout=self._options.timeout,
                read_timeout=self._options.read_timeout,
                max_bytes=max_bytes,
                data=data,
                headers={"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"},
            )
        except RequestTimeoutError as error:
            raise self._error(f"no whole answer within {self._options.timeout:g} s") from error
        except UnusableAnswerError as error:
            raise self._error(str(error)) from error
        except _PERMANENT_ERRORS as error:
            raise self._error(f"it cannot be used ({printable(str(error))})") from error
        except _CONNECTION_ERRORS as error:
            raise _TemporaryError(f"the connection failed ({printable(str(error))})") from error
        if answer.status == 200:
            return
        problem = f"it answered {answer.status} {printable(answer.reason)}: {_shown(body.read(2000))}"
        is_busy = answer.status == 429
        if is_busy or answer.status >= 500 or answer.status == 408:
            raise _TemporaryError(problem, retry_after=_retry_after(answer), is_failure=not is_busy)
        raise self._error(f"{problem}; is this the address of an MMseqs2 server?")

    def _retry(self, attempt: Callable[[], Answer]) -> Answer:
        """Repeat `attempt` until it succeeds, the time is over or too many failures follow each other."""
        failures = retries = 0
        while True:
            try:
                return attempt()
            except _TemporaryError as error:
                failures = failures + 1 if error.is_failure else 0
                if failures >= _MAX_FAILURES_IN_A_ROW:
                    raise self._error(f"{failures} attempts failed: {error}") from error
                # Full jitter: clients that were refused together do not come back together.
                longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(retries, 10))
                pause = max(_SHORTEST_PAUSE, error.retry_after, float(self._server.rng.uniform(0, longest)))
                if self._server.clock() + pause > self._deadline:
                    raise self._error(f"no answer within {self._options.max_wait:g} s: {error}") from error
                retries += 1
                self._server.sleep(pause)

    def _error(self, problem: str) -> SearchError:
        return SearchError(f"MMseqs2 server {printable(self._url)}: {problem}")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # an invalid port raises when it is read
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)


def _shown(content: bytes) -> str:
    return f"'{printable(' '.join(content[:2000].decode('utf-8', 'replace').split()), 100)}'"


def _retry_after(answer: HttpAnswer) -> float:
    """Return the seconds that the server asks us to wait, which it gives as a number or as a time of its clock."""
    value = answer.headers.get("Retry-After", "")
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        until, now = (parsedate_to_datetime(text) for text in (value, answer.headers.get("Date", "")))
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0.0
