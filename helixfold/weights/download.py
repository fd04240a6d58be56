"""Download of DeepMind's published parameters from the official archives into a cache directory.

The main archive (5.3 GB) has the monomer models, which are those of the first release (July 2021), and the third
release of AlphaFold-Multimer; its first two releases have archives of their own. All are tar files. Only the requested
members (373 MB each) are fetched from a server that supports range requests, as DeepMind's does. An interrupted
download is continued. Parameters: (c) DeepMind, CC BY 4.0.
"""

import itertools
import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import pooch
import requests
import urllib3
from tqdm import tqdm

from data_pipeline.errors import InputError, printable
from data_pipeline.files import atomic_write
from data_pipeline.json_files import read_json
from data_pipeline.user_cache import NO_CACHE
from helixfold.presets import preset
from helixfold.weights.cache import parameters_directory
from helixfold.weights.load import require_shapes
from helixfold.weights.npz import open_npz

# Errors that a broken or stalled connection raises, in either library.
_CONNECTION_ERRORS = (requests.RequestException, urllib3.exceptions.HTTPError, OSError)
_BUSY = (408, 429, 500, 502, 503, 504)
_STORAGE = "https://storage.googleapis.com/alphafold"
ARCHIVE_URL = f"{_STORAGE}/alphafold_params_2022-12-06.tar"
# The archives of earlier releases of AlphaFold-Multimer, by the end of the models' names.
EARLIER_ARCHIVES = {
    "_multimer_v2": f"{_STORAGE}/alphafold_params_colab_2022-03-02.tar",
    "_multimer": f"{_STORAGE}/alphafold_params_colab_2021-10-27.tar",
}
# DeepMind publishes no checksums. These were each found in at least two independent places that hold DeepMind's files:
# model_1: Hugging Face space simonduerr/ProteinMPNN, and a run log of EvoBind2;
# model_1_ptm: Hugging Face ProteinDesignLab/caliby-weights, and several repositories that pin the archive's member;
# model_2_ptm: Hugging Face ProteinDesignLab/caliby-weights, and a downloader for AF2Rank.
# The others are checked array by array at the first download, and their checksums are recorded then.
PUBLISHED_SHA256: Mapping[str, str] = {
    "params_model_1.npz": "f95e453e6a290ddf317ba1c9698d53fa110cf007ea979b0eae43e6ad38b4e364",
    "params_model_1_ptm.npz": "5e564f79af5bcd54ccef6e2a6bb0ff01015d01650ebc41d4575e35f0de9ecc84",
    "params_model_2_ptm.npz": "23645d9a82c4af2ed54cd48a7b3c1c2575dc6aa9fe931adb4d7203ca5f0dc398",
}
# The archive has 16 members of at most 374 MB.
MAX_MEMBERS = 1000
MAX_MEMBER_BYTES = 2**31
# Bytes that an interrupted download loses at most.
_CHUNK = 2**16


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
        self.version: str | None = None  # as the server names it
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
        if self.size is not None and (size, version) != (self.size, self.version):
            raise DownloadError(f"{self.url}: the file changed on the server during the download; start again")
        self.size, self.version = size, version

    def _drop(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None


def _whole(number: str) -> int | None:
    return int(number) if number.isdecimal() else None


DEFAULT_RETRY = RetryPolicy()


def download_parameters(
    presets: Sequence[str],
    *,
    directory: Path | None = None,
    url: str | None = None,
    sha256: Mapping[str, str] = PUBLISHED_SHA256,
    retry: RetryPolicy = DEFAULT_RETRY,
    progress: bool = True,
) -> list[Path]:
    """Download the parameters of presets that are not in the cache directory yet, and return the paths of all.

    Each file is checked against its checksum in `sha256` (by file name) or the one recorded at its first download, and
    array by array against the preset. `url` is a copy of DeepMind's archives with all these models. Raise
    `DownloadError` if one cannot be fetched.
    """
    if url is not None:
        require_address(url)
    pooch.get_logger().setLevel("WARNING")
    directory = directory or parameters_directory()
    if directory is None:
        raise InputError(f"there is no place for parameters, for {NO_CACHE}, or give --directory")
    checksums, paths = directory / "sha256.json", []
    recorded = _read_checksums(checksums)
    for name in presets:
        path = directory / f"params_{name}.npz"
        known = sha256.get(path.name) or recorded.get(path.name)
        archive = url or archive_of(name)
        try:
            download = partial(_download_member, name=name, retry=retry, progress=progress)
            pooch.retrieve(archive, known_hash=known, fname=path.name, path=directory, downloader=download)
        except InputError:
            raise
        except ValueError as error:  # pooch raises this for a wrong checksum
            raise DownloadError(
                f"{printable(archive)}: {path.name} does not have the checksum {known}, so it was not kept; "
                "try again, and ask where the file comes from if it stays so"
            ) from error
        except OSError as error:
            raise DownloadError(f"{directory}: {error.strerror or error}") from error
        if path.name not in recorded:
            recorded[path.name] = pooch.file_hash(str(path))
            with atomic_write(checksums) as temporary:
                temporary.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
        paths.append(path)
    return paths


def archive_of(name: str) -> str:
    """Return the address of the archive that has a model's published parameters."""
    return next((url for end, url in EARLIER_ARCHIVES.items() if name.endswith(end)), ARCHIVE_URL)


def _read_checksums(path: Path) -> dict[str, str]:
    """Return the SHA-256 of files at their first download, by file name."""
    if not path.exists():
        return {}
    recorded = read_json(path, "delete it to trust the next download")
    if not isinstance(recorded, dict) or not all(
        isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) for value in recorded.values()
    ):
        raise InputError.at(path, "is not a table of checksums; delete it to trust the next download")
    return recorded


def _download_member(url: str, output_file: str, _: object, *, name: str, retry: RetryPolicy, progress: bool) -> None:
    """Fetch one preset's parameter file out of a tar archive, as a downloader for `pooch.retrieve`.

    It reads the archive's member headers and requests only the bytes of the member `params_<name>.npz`, in parts that
    can be resumed. Raise `InputError` if the file does not fit the preset's model.
    """
    file_name = f"params_{name}.npz"
    part = Path(output_file).with_name(f"{file_name}.part")
    with closing(RemoteFile(url, retry)) as remote:
        start, size = _find_member(remote, file_name)
        fetch(remote, start, size, part, progress=progress)
    try:
        # Names and shapes must be the preset's, and all arrays intact and finite.
        with open_npz(part) as arrays:
            require_shapes(part, arrays.shapes, preset(name).model, "npz")
            for array in arrays:
                arrays[array]
    except InputError:
        part.unlink()
        raise
    os.replace(part, output_file)


def _find_member(remote: RemoteFile, file_name: str) -> tuple[int, int]:
    """Return the offset and size of a member's bytes in the archive."""
    try:
        with tarfile.open(fileobj=remote, mode="r:") as archive:  # type: ignore[call-overload]
            for member in itertools.islice(archive, MAX_MEMBERS):
                # Only a name is taken from the archive, never a path to write to.
                if member.isreg() and PurePosixPath(member.name).name == file_name:
                    if not 0 < member.size <= MAX_MEMBER_BYTES:
                        raise DownloadError(f"{remote.url}: {file_name} would have {member.size:,} bytes")
                    return member.offset_data, member.size
    except InputError:
        raise
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise DownloadError(f"{remote.url}: is not a tar archive ({printable(str(error))})") from error
    raise DownloadError(f"{remote.url}: has no file {file_name}")


def fetch(remote: RemoteFile, start: int, size: int, part: Path, *, progress: bool) -> None:
    """Write bytes of a remote file to `part`, after those that an earlier download left there."""
    done = part.stat().st_size if part.exists() else 0
    if done > size:
        part.unlink()
        done = 0
    free = shutil.disk_usage(part.parent).free
    if free < size - done:
        raise DownloadError(f"{part.parent}: {size - done:,} bytes are needed and {free:,} are free")
    remote.seek(start + done)
    bar = {"desc": part.stem, "disable": not progress}
    with part.open("ab") as file, tqdm.wrapattr(file, "write", total=size, initial=done, **bar) as output:
        while done < size:
            piece = remote.read(min(_CHUNK, size - done))
            if not piece:
                raise DownloadError(f"{remote.url}: the file ends within {part.stem}")
            output.write(piece)
            done += len(piece)
