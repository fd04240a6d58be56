"""Download of DeepMind's published parameters from the official archive into a cache directory.

The archive (5.3 GB; its monomer models are those of the first release, July 2021) is a tar file. Only the requested
members (373 MB each) are fetched from a server that supports range requests, as DeepMind's does. An interrupted
download is continued. Parameters: (c) DeepMind, CC BY 4.0.
"""

import itertools
import json
import os
import re
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path, PurePosixPath

import platformdirs
import pooch
from tqdm import tqdm

from data_pipeline.errors import InputError, printable
from data_pipeline.files import atomic_write
from helixfold.presets import preset
from helixfold.weights.load import require_shapes
from helixfold.weights.npz import open_npz
from helixfold.weights.remote_file import DownloadError, RemoteFile, RetryPolicy, require_address

ARCHIVE_URL = "https://storage.googleapis.com/alphafold/alphafold_params_2022-12-06.tar"

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
DEFAULT_RETRY = RetryPolicy()


def parameters_directory() -> Path:
    """Return the cache directory of downloaded parameters, which has one `params_<preset>.npz` per model."""
    return Path(platformdirs.user_cache_dir("helixfold")) / "params"


def download_parameters(
    presets: Sequence[str],
    *,
    directory: Path | None = None,
    url: str = ARCHIVE_URL,
    sha256: Mapping[str, str] = PUBLISHED_SHA256,
    retry: RetryPolicy = DEFAULT_RETRY,
    progress: bool = True,
) -> list[Path]:
    """Download the parameters of presets that are not in the cache directory yet, and return the paths of all.

    Each file is checked against its checksum in `sha256` (by file name) or the one recorded at its first download, and
    array by array against the preset. Raise `DownloadError` if one cannot be fetched.
    """
    require_address(url)
    pooch.get_logger().setLevel("WARNING")
    directory = directory or parameters_directory()
    checksums, paths = directory / "sha256.json", []
    recorded = _read_checksums(checksums)
    for name in presets:
        path = directory / f"params_{name}.npz"
        known = sha256.get(path.name) or recorded.get(path.name)
        try:
            download = partial(_download_member, name=name, retry=retry, progress=progress)
            pooch.retrieve(url, known_hash=known, fname=path.name, path=directory, downloader=download)
        except InputError:
            raise
        except ValueError as error:  # pooch raises this for a wrong checksum
            raise DownloadError(
                f"{printable(url)}: {path.name} does not have the checksum {known}, so it was not kept; "
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


def _read_checksums(path: Path) -> dict[str, str]:
    """Return the SHA-256 of files at their first download, by file name."""
    if not path.exists():
        return {}
    try:
        recorded = json.loads(path.read_text())
    except ValueError as error:
        raise InputError.at(path, f"is not JSON ({error}); delete it to trust the next download") from error
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
        _fetch(remote, start, size, part, progress=progress)
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


def _fetch(remote: RemoteFile, start: int, size: int, part: Path, *, progress: bool) -> None:
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
                raise DownloadError(f"{remote.url}: the archive ends within {part.stem}")
            output.write(piece)
            done += len(piece)
