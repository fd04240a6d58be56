"""Remote file on a web server, read like a local one; reading continues after a lost connection."""

import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import requests
import urllib3

from data_pipeline.errors import InputError, printable

# Errors that a broken or stalled connection raises, in either library.
_CONNECTION_ERRORS = (requests.RequestException, urllib3.exceptions.HTTPError, OSError)
_BUSY = (408, 429, 500, 502, 503, 504)


class DownloadError(InputError):
    """Error for a file that cannot be fetched, or that has unexpected content; the text is one sentence."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Settings of retries: how long to wait for a server, and how often to try again."""

    timeout: float = 60.0  # seconds without a byte
    attempts: int = 6  # in a row that receive no byte
    pause: float = 1.0  # seconds after the first failure, doubled after each further one


def require_address(url: str) -> None:
    """Raise `DownloadError` unless the URL is http or https; anything else could be a local file."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises if the port is not valid
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise DownloadError(f"{printable(url)}: only http and https addresses can be downloaded from")


class RemoteFile:
    """File at an http or https address, with the methods `read`, `seek` and `tell` that tarfile needs.

    A lost or stalled connection is opened again where it stopped. If the server does not support range requests, the
    beginning is read again and discarded. Raise `DownloadError` if the file cannot be read or changes meanwhile.
    """

    # A position within this many bytes is reached by reading on, a further one by a new request.
    NEAR = 2**18
    LARGEST_READ = 2**24

    def __init__(self, url: str, retry: RetryPolicy) -> None:
        require_address(url)
        self.url, self.retry = url, retry
        self.position = 0
        self.size: int | None = None
        self._version: str | None = None
        self._parts = True  # until the server ignores a range request
        self._session = requests.Session()
        self._response: requests.Response | None = None
        self._at = 0  # position of the open response

    def close(self) -> None:
        """Close the connection."""
        self._drop()
        self._session.close()

    def tell(self) -> int:
        """Return the current position."""
        return self.position

    def seek(self, offset: int) -> int:
        """Move to a position counted from the beginning of the file, and return it."""
        self.position = offset
        return offset

    def read(self, count: int) -> bytes:
        """Read exactly `count` bytes, or fewer at the end of the file."""
        if not 0 <= count <= self.LARGEST_READ:
            raise DownloadError(f"{self.url}: the archive is damaged or hostile, a header claims {count:,} bytes")
        pieces: list[bytes] = []
        failures = 0
        while count > 0 and (self.size is None or self.position < self.size):
            try:
                piece = self._next(count)
            except _CONNECTION_ERRORS as error:
                if isinstance(error, DownloadError):
                    raise
                self._drop()
                failures += 1
                if failures >= self.retry.attempts:
                    raise DownloadError(
                        f"{self.url}: no more bytes after {self.position:,} ({printable(str(error))}); "
                        "run the command again to go on from there"
                    ) from error
                time.sleep(self.retry.pause * 2 ** (failures - 1))
                continue
            failures = 0
            pieces.append(piece)
            count -= len(piece)
            self.position += len(piece)
        return b"".join(pieces)

    def _next(self, count: int) -> bytes:
        """Read at least one byte at the current position."""
        gap = self.position - self._at
        if self._response is None or gap < 0 or (gap > self.NEAR and self._parts):
            self._open()
        while self._at < self.position:
            self._at += len(self._raw(min(self.position - self._at, 2**20)))
        piece = self._raw(count)
        self._at += len(piece)
        return piece

    def _raw(self, count: int) -> bytes:
        assert self._response is not None
        piece: bytes = self._response.raw.read(count)
        if not piece:
            raise urllib3.exceptions.ProtocolError("the connection was closed early")
        return piece

    def _open(self) -> None:
        self._drop()
        start = self.position if self._parts else 0
        response = self._session.get(
            self.url,
            stream=True,
            timeout=self.retry.timeout,
            headers={"Range": f"bytes={start}-", "Accept-Encoding": "identity"},
        )
        self._response = response
        if response.status_code in _BUSY:
            raise urllib3.exceptions.HTTPError(f"the server answers {response.status_code} {response.reason}")
        if response.status_code not in (200, 206):
            raise DownloadError(f"{self.url}: the server answers {response.status_code} {printable(response.reason)}")
        headers = response.headers
        self._parts = response.status_code == 206
        if self._parts:
            first, _, rest = headers.get("Content-Range", "").removeprefix("bytes ").partition("-")
            self._at, size = start, _whole(rest.rpartition("/")[2])
            if _whole(first) != start:
                raise DownloadError(f"{self.url}: the server sent another part of the file than was asked for")
        else:
            self._at, size = 0, _whole(headers.get("Content-Length", ""))
        version = headers.get("ETag") or headers.get("Last-Modified")
        if self.size is not None and (size, version) != (self.size, self._version):
            raise DownloadError(f"{self.url}: the file changed on the server during the download; start again")
        self.size, self._version = size, version

    def _drop(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None


def _whole(number: str) -> int | None:
    return int(number) if number.isdecimal() else None
