"""Download DeepMind's published parameters from the official archives into a cache directory.

The main archive (5.3 GB) has the monomer models of the first release (July 2021) and the third release of
AlphaFold-Multimer. The first two releases of AlphaFold-Multimer have archives of their own. All are tar files. Only the
requested members (373 MB each) are fetched if the server supports range requests, as DeepMind's does. An interrupted
download is resumed. Parameters: (c) DeepMind, CC BY 4.0.

`ARCHIVE_URL` is the address of the main archive, and `EARLIER_ARCHIVES` are others by the ending of the model's name.
`PUBLISHED_SHA256` has the checksums of parameter files by name. `MAX_MEMBERS` and `MAX_MEMBER_BYTES` are limits of an
archive.
"""

import itertools
import json
import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path, PurePosixPath

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write, remove_partial_files, sha256_of
from data_pipeline.io.json_files import read_json
from data_pipeline.io.remote_file import DEFAULT_RETRY, DownloadError, RemoteFile, RetryPolicy, fetch, require_address
from data_pipeline.io.user_cache import NO_CACHE
from helixfold.model.presets import preset
from helixfold.weights.cache import parameters_directory
from helixfold.weights.load import require_shapes
from helixfold.weights.npz import open_npz

_STORAGE = "https://storage.googleapis.com/alphafold"
ARCHIVE_URL = f"{_STORAGE}/alphafold_params_2022-12-06.tar"
# Archives of earlier releases of AlphaFold-Multimer, by the suffix of the models' names.
EARLIER_ARCHIVES = {
    "_multimer_v2": f"{_STORAGE}/alphafold_params_colab_2022-03-02.tar",
    "_multimer": f"{_STORAGE}/alphafold_params_colab_2021-10-27.tar",
}
# DeepMind publishes no checksums. Each of these comes from at least two independent copies of DeepMind's files:
# model_1: Hugging Face space simonduerr/ProteinMPNN, and a run log of EvoBind2;
# model_1_ptm: Hugging Face ProteinDesignLab/caliby-weights, and several repositories that pin the archive's member;
# model_2_ptm: Hugging Face ProteinDesignLab/caliby-weights, and a downloader for AF2Rank.
# The other files are checked array by array at the first download, which also records their checksums.
PUBLISHED_SHA256: Mapping[str, str] = {
    "params_model_1.npz": "f95e453e6a290ddf317ba1c9698d53fa110cf007ea979b0eae43e6ad38b4e364",
    "params_model_1_ptm.npz": "5e564f79af5bcd54ccef6e2a6bb0ff01015d01650ebc41d4575e35f0de9ecc84",
    "params_model_2_ptm.npz": "23645d9a82c4af2ed54cd48a7b3c1c2575dc6aa9fe931adb4d7203ca5f0dc398",
}
# The archive has 16 members of at most 374 MB.
MAX_MEMBERS = 1000
MAX_MEMBER_BYTES = 2**31


def download_parameters(
    presets: Sequence[str],
    *,
    directory: Path | None = None,
    url: str | None = None,
    sha256: Mapping[str, str] = PUBLISHED_SHA256,
    retry: RetryPolicy = DEFAULT_RETRY,
    progress: bool = True,
) -> list[Path]:
    """Download the parameters of presets unless `directory` has them, and return the path of each.

    The default directory is `parameters_directory`. Each file is checked against its checksum in `sha256` (by file
    name) or the checksum recorded at its first download; a file with another checksum is downloaded again. A new file
    is also checked array by array against the preset. `url` is the address of another archive with all these models.
    `progress` shows a progress bar. Raise `DownloadError` if a file cannot be fetched, and `InputError` if it does not
    fit.
    """
    if url is not None:
        require_address(url)
    directory = directory or parameters_directory()
    if directory is None:
        raise InputError(f"no directory for the parameters: {NO_CACHE}, or pass --output")
    checksums, paths = directory / "sha256.json", []
    remove_partial_files([directory], re.escape(checksums.name))
    recorded = _read_checksums(checksums)
    for name in presets:
        path = directory / f"params_{name}.npz"
        checksum = sha256.get(path.name) or recorded.get(path.name)
        archive = url or archive_of(name)
        try:
            if not path.is_file() or (checksum is not None and sha256_of(path) != checksum):
                directory.mkdir(parents=True, exist_ok=True)
                _download_member(archive, path, checksum, name=name, retry=retry, progress=progress)
            if path.name not in recorded:
                recorded[path.name] = sha256_of(path)
                with atomic_write(checksums) as temporary:
                    temporary.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
        except OSError as error:
            raise DownloadError(f"{directory}: {error.strerror or error}") from error
        paths.append(path)
    return paths


def archive_of(name: str) -> str:
    """Return the address of the archive that has the published parameters of the preset `name`."""
    return next((url for end, url in EARLIER_ARCHIVES.items() if name.endswith(end)), ARCHIVE_URL)


def _read_checksums(path: Path) -> dict[str, str]:
    """Return the SHA-256 that was recorded at the first download of each file, by file name."""
    if not path.exists():
        return {}
    recorded = read_json(path, "delete it to trust the next download")
    if not isinstance(recorded, dict) or not all(
        isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) for value in recorded.values()
    ):
        raise InputError.at(path, "is not a table of checksums; delete it to trust the next download")
    return recorded


def _download_member(
    url: str, path: Path, checksum: str | None, *, name: str, retry: RetryPolicy, progress: bool
) -> None:
    """Fetch the parameter file of one preset from a tar archive, and compare it with `checksum` if that is not None.

    Only the headers of the archive's members and the bytes of the member `params_<name>.npz` are requested. Raise
    `InputError` if the file does not fit the preset's model.
    """
    part = path.with_name(f"{path.name}.part")
    with closing(RemoteFile(url, retry)) as remote:
        start, size = _find_member(remote, path.name)
        fetch(remote, start, size, part, progress=progress)
    try:
        # Reading an array checks that it is intact and finite.
        with open_npz(part) as arrays:
            require_shapes(part, arrays.shapes, preset(name).model, "npz")
            for array in arrays:
                arrays[array]
        if checksum is not None and sha256_of(part) != checksum:
            raise DownloadError(
                f"{printable(url)}: {path.name} does not have the checksum {checksum}, so it was deleted; "
                "try again, and check the source of the file if this happens again"
            )
    except InputError:
        part.unlink()
        raise
    os.replace(part, path)


def _find_member(remote: RemoteFile, file_name: str) -> tuple[int, int]:
    """Return the offset and size of a member's bytes in the archive."""
    try:
        with tarfile.open(fileobj=remote, mode="r:") as archive:  # type: ignore[call-overload]
            for member in itertools.islice(archive, MAX_MEMBERS):
                # Only a name is taken from the archive, never a path to write to.
                if member.isreg() and PurePosixPath(member.name).name == file_name:
                    if not 0 < member.size <= MAX_MEMBER_BYTES:
                        problem = f"{file_name} has {member.size:,} bytes; expected at most {MAX_MEMBER_BYTES:,}"
                        raise DownloadError(f"{remote.url}: {problem}")
                    return member.offset_data, member.size
    except InputError:
        raise
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise DownloadError(f"{remote.url}: is not a tar archive ({printable(str(error))})") from error
    raise DownloadError(f"{remote.url}: has no file {file_name}")
