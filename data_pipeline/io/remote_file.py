"""Read a large file on a server from any position, and download it with resumption.

`DEFAULT_RETRY` has the default settings of retries.
"""

import contextlib
import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from data_pipeline.io.addresses import is_http_address
from data_pipeline.io.errors import ConnectionFailedError, InputError, RequestError, UnusableAnswerError, printable
from data_pipeline.io.http import Response, pause, send

_BUSY_STATUSES = (408, 429, 500, 502, 503, 504)
# An interrupted download loses at most this many bytes. A connection that delivers fewer counts as a failure.
_CHUNK_BYTES = 2**16
_MIN_BYTES_PER_SECOND = 2**12  # slower connections are opened again
_MAX_PAUSE = 60.0


class DownloadError(InputError):
    """Error for a file that cannot be downloaded, or that has unexpected content."""


class UnavailableError(DownloadError):
    """Error for a server that cannot be reached, or sends nothing more; a later download may succeed."""

    is_temporary = True


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Settings of retries: how long to wait for a server, and how often to retry.

    `timeout` is the max number of seconds without a byte. `attempts` is the number of consecutive attempts, with less
    than 64 KiB in total, that end a download. `pause` is the max number of seconds after the first failure, which
    doubles after each further one.
    """

    timeout: float = 60.0  # seconds without a byte
    attempts: int = 6  # max consecutive attempts that receive less than 64 KiB in total
    pause: float = 2.0  # maximum seconds after the first failure, doubled after each further one


DEFAULT_RETRY = RetryPolicy()


def require_address(url: str) -> None:
    """Raise `DownloadError` unless the URL is http or https."""
    if not is_http_address(url):
        raise DownloadError(f"{printable(url)}: only http and https addresses are supported")


class RemoteFile:
    """File at an http or https address, with the methods `read`, `seek` and `tell` that tarfile needs.

    After a lost, stalled or very slow connection, reading is resumed at the same position. If the server does not
    support range requests, the beginning is read again and discarded. `size` (bytes) and `version` (the server's ETag
    or date) are None until the first read, and if the server does not send them. Raise `DownloadError` if the file
    cannot be read, or changes during the download.
    """

    # Seek forward within this many bytes by reading, and farther by a new request.
    NEAR = 2**18
    LARGEST_READ = 2**24

    def __init__(self, url: str, retry: RetryPolicy = DEFAULT_RETRY) -> None:
        require_address(url)
        self.url, self.retry = url, retry
        self.position = 0
        self.size: int | None = None
        self.version: str | None = None  # the server's ETag or date
        self._has_ranges = True  # until the server ignores a range request
        self._response: Response | None = None
        self._at = 0  # position of the open response
        self._failures = self._bytes = 0  # since 64 KiB were last received

    def close(self) -> None:
        """Close the connection; a later read opens it again."""
        if self._response is not None:
            self._response.close()
            self._response = None

    def tell(self) -> int:
        """Return the current position."""
        return self.position

    def seek(self, offset: int) -> int:
        """Set the position of the next read, counted from the start of the file, and return it."""
        self.position = offset
        return offset

    def read(self, count: int) -> bytes:
        """Read exactly `count` bytes, or fewer at the end of the file, with retries.

        Raise `UnavailableError` after too many failures, and `DownloadError` for a `count` above `LARGEST_READ`.
        """
        if not 0 <= count <= self.LARGEST_READ:
            raise DownloadError(f"{self.url}: the archive is damaged or malicious: a header declares {count:,} bytes")
        pieces: list[bytes] = []
        while count > 0 and (self.size is None or self.position < self.size):
            try:
                piece = self._next(count)
            except UnusableAnswerError as error:
                raise DownloadError(f"{self.url}: {error}") from error
            except RequestError as error:
                self.close()
                self._failures += 1
                if self._failures >= self.retry.attempts:
                    problem = f"no more bytes after {self.position:,}" if self.position else "cannot be reached"
                    raise UnavailableError(
                        f"{self.url}: {problem} ({printable(str(error))}); run the command again to resume the download"
                    ) from error
                time.sleep(pause(self._failures - 1, first=self.retry.pause, longest=_MAX_PAUSE))
                continue
            pieces.append(piece)
            count -= len(piece)
            self.position += len(piece)
        return b"".join(pieces)

    def _next(self, count: int) -> bytes:
        """Read at least one byte at the current position."""
        gap = self.position - self._at
        if self._response is None or gap < 0 or (gap > self.NEAR and self._has_ranges):
            self.close()
            self._response = self._opened()
        while self._at < self.position:
            self._read(self._response, self.position - self._at)
        return self._read(self._response, count)

    def _read(self, response: Response, count: int) -> bytes:
        """Read at most `count` bytes and at most 1 MiB; each `_CHUNK_BYTES` read reset the count of failures."""
        piece = response.read(min(count, 2**20))
        if not piece:
            raise ConnectionFailedError("the connection was closed early")
        self._at += len(piece)
        self._bytes += len(piece)
        if self._bytes >= _CHUNK_BYTES:
            self._failures = self._bytes = 0
        return piece

    def _opened(self) -> Response:
        """Send a request for the file from `position` on, or for all of it if the server has no ranges.

        Sets the file's size and version; raises `DownloadError` if they differ from an earlier request's.
        """
        start = self.position if self._has_ranges else 0
        response = send(
            "GET",
            self.url,
            timeout=self.retry.timeout,
            max_bytes=2**63,  # the callers of `read` have limits
            headers={"Range": f"bytes={start}-"},
            redirects=True,
            read_timeout=self.retry.timeout,
            bytes_per_second=_MIN_BYTES_PER_SECOND,
        )
        if response.status in _BUSY_STATUSES:
            raise ConnectionFailedError(f"the server answers {response.status} {response.reason}")
        if response.status not in (200, 206):
            raise DownloadError(f"{self.url}: the server answers {response.status} {printable(response.reason)}")
        headers = response.headers
        self._has_ranges = response.status == 206
        if self._has_ranges:
            first, _, rest = headers.get("Content-Range", "").removeprefix("bytes ").partition("-")
            self._at, size = start, _whole(rest.rpartition("/")[2])
            if _whole(first) != start:
                raise DownloadError(f"{self.url}: the server sent a different part of the file than requested")
        else:
            self._at, size = 0, _whole(headers.get("Content-Length", ""))
        version = headers.get("ETag") or headers.get("Last-Modified")
        if self.size is not None and (size, version) != (self.size, self.version):
            raise DownloadError(f"{self.url}: the file changed on the server during the download; start again")
        self.size, self.version = size, version
        return response


def _whole(number: str) -> int | None:
    """Return the integer of a header with decimal digits, or None."""
    return int(number) if number.isdecimal() and len(number) < 20 else None


def fetch(remote: RemoteFile, start: int, size: int, part: Path, *, progress: bool) -> None:
    """Download the `size` bytes from `start` of a remote file to the local file `part`.

    Bytes that `part` already has are not downloaded again; a longer `part` is started again. `progress` shows a
    progress bar. Raise `DownloadError` if the disk has too little space.
    """
    with _open_part(part) as file:
        done = os.fstat(file.fileno()).st_size
        if done > size:
            file.truncate(0)
            done = 0
        free = shutil.disk_usage(part.parent).free
        if free < size - done:
            raise DownloadError(
                f"{part.parent}: not enough disk space: {size - done:,} bytes are needed, {free:,} are free"
            )
        remote.seek(start + done)
        bar = {"desc": part.stem, "disable": not progress}
        with tqdm.wrapattr(file, "write", total=size, initial=done, **bar) as output:
            while done < size:
                piece = remote.read(min(_CHUNK_BYTES, size - done))
                if not piece:
                    raise DownloadError(f"{remote.url}: the file ends within {part.stem}")
                output.write(piece)
                done += len(piece)


def _open_part(part: Path) -> IO[bytes]:
    """Open a file for appending, after removing anything that is not this user's download, such as a link."""
    with contextlib.suppress(FileNotFoundError):
        status = part.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
            part.unlink()
    return open(part, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666))
