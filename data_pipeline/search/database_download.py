"""Download ColabFold's databases over HTTP, resuming interrupted downloads, and unpack them for `--databases`.

`SERVER` is the default address, `DOWNLOADS` are the databases by name, and `RECORD_FILE` lists the archives that have
been downloaded and unpacked.
"""

import gzip
import json
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write, remove_partial_files
from data_pipeline.io.json_files import read_json
from data_pipeline.io.remote_file import (
    DEFAULT_RETRY,
    DownloadError,
    RemoteFile,
    RetryPolicy,
    fetch,
    require_address,
)
from data_pipeline.search.cluster_build import ClusterBuild, move_database
from data_pipeline.search.colabfold_databases import ClusterDatabase, with_ending
from data_pipeline.search.mmseqs_program import OLDEST_FOR_CLUSTERS, require_mmseqs
from data_pipeline.search.process import working_directory

SERVER = "https://opendata.mmseqs.org/colabfold"
# The archives that have been downloaded and unpacked; other downloads are resumed or started.
RECORD_FILE = "downloads.json"
_CHUNK = 2**20


@dataclass(frozen=True, kw_only=True)
class Download:
    """A database of ColabFold, and its archives in the order in which they are unpacked.

    `database` is the prefix of its files. If it is not clustered, its archive is a FASTA file that MMseqs2 converts.
    """

    database: str  # prefix of the database's files
    archives: tuple[str, ...]
    is_clustered: bool = True


# Names and files in ColabFold's script setup_databases.sh, which has no checksums.
DOWNLOADS = {
    "uniref30_2302": Download(
        database="uniref30_2302_db",
        # The second archive replaces the species of the first one by species of 2025.
        archives=("uniref30_2302.db.tar.gz", "uniref30_2302_newtaxonomy.tar.gz"),
    ),
    "colabfold_envdb_202108": Download(
        database="colabfold_envdb_202108_db", archives=("colabfold_envdb_202108.db.tar.gz",)
    ),
    "pdb100_230517": Download(database="pdb100_230517", archives=("pdb100_230517.fasta.gz",), is_clustered=False),
}


def download_databases(
    names: Sequence[str],
    directory: Path,
    *,
    url: str = SERVER,
    retry: RetryPolicy = DEFAULT_RETRY,
    progress: bool = True,
) -> list[Path]:
    """Download and unpack the databases `names`, unless they are in `directory`; return the prefix of each.

    Names are keys of `DOWNLOADS`. Files come from the server at `url`, and interrupted downloads are resumed. Archives
    are checked by their size and gzip's checksum, and deleted after they are unpacked. `progress` shows a progress bar.
    Raise `InputError` for an unknown name, and `DownloadError` if an archive cannot be downloaded or is damaged.
    """
    require_address(url)
    unknown = [name for name in names if name not in DOWNLOADS]
    if unknown:
        raise InputError(f"unknown database {printable(unknown[0])}; the databases are {', '.join(DOWNLOADS)}")
    directory.mkdir(parents=True, exist_ok=True)
    remove_partial_files([directory], rf"{re.escape(RECORD_FILE)}|.+\.part\.json")
    prefixes = []
    for name in names:
        download = DOWNLOADS[name]
        for archive in download.archives:
            part = directory / f"{archive}.part"
            if archive not in _read_record(directory):
                _fetch(f"{url.rstrip('/')}/{archive}", part, retry, progress)
                if download.is_clustered:
                    _unpack(part, directory, name)
                else:
                    _convert(part, directory / download.database)
                _add_to_record(directory, archive, part.stat().st_size)
            _discard(part)  # a killed run may have left it
        if download.is_clustered:
            ClusterDatabase(directory / download.database)
        prefixes.append(directory / download.database)
    return prefixes


def _fetch(url: str, part: Path, retry: RetryPolicy, progress: bool) -> None:
    """Download the file at `url`, resuming an earlier partial download."""
    with closing(RemoteFile(url, retry)) as remote:
        remote.read(1)
        if remote.size is None:
            raise DownloadError(f"{url}: the server does not report the size of the file")
        version = {"size": remote.size, "version": remote.version}
        record = part.with_name(f"{part.name}.json")
        # Version 0.2 used aria2c, whose unfinished files have holes.
        has_holes = part.with_name(f"{part.name}.aria2").is_file()
        if has_holes or not record.is_file() or read_json(record, "delete it to start again") != version:
            _discard(part)
        with atomic_write(record) as temporary:
            temporary.write_text(json.dumps(version) + "\n")
        fetch(remote, 0, remote.size, part, progress=progress)
        if part.stat().st_size != remote.size:
            size = part.stat().st_size
            _discard(part)
            raise DownloadError(f"{url}: received {size:,} of {remote.size:,} bytes; run the command again")


def _unpack(part: Path, directory: Path, name: str) -> None:
    """Unpack the files of a database, and move them to `directory` only after the whole archive was read."""
    with working_directory(directory) as folder:
        try:
            with gzip.open(part) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
                for member in archive:
                    _check_member(part, member, name)
                    content = archive.extractfile(member) if member.isreg() else None
                    if content is not None:
                        with (folder / PurePosixPath(member.name).name).open("wb") as file:
                            shutil.copyfileobj(content, file, _CHUNK)
                while stream.read(_CHUNK):  # the checksum is at the end
                    pass
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            _discard(part)
            problem = f"the archive is damaged ({printable(str(error))}) and was deleted; run the command again"
            raise DownloadError(f"{part.with_suffix('')}: {problem}") from error
        except OSError as error:
            raise DownloadError(f"{part}: cannot be unpacked: {error.strerror or error}") from error
        move_database(folder, directory, f"{name}_db")


def _check_member(part: Path, member: tarfile.TarInfo, name: str) -> None:
    """Raise `DownloadError` for a member that is not a file of the database, because archives can write anywhere."""
    path = PurePosixPath(member.name)
    is_own = path.name.startswith(name) and ".." not in path.parts and not path.is_absolute()
    if not member.isdir() and not (member.isreg() and is_own):
        raise DownloadError(
            f"{part}: {printable(member.name)} is not a file of the database {name}; nothing was unpacked"
        )


def _convert(part: Path, output: Path) -> None:
    """Build a database of single sequences from a FASTA file, unless a run built it before it was killed."""
    fasta = part.with_name("sequences.fasta.gz")
    fasta.unlink(missing_ok=True)  # left by a killed run
    if with_ending(output, ".dbtype").exists():  # the last file of the database
        return
    os.link(part, fasta)
    try:
        ClusterBuild(program=require_mmseqs(OLDEST_FOR_CLUSTERS)).sequences([fasta], output)
    finally:
        fasta.unlink()


def _discard(part: Path) -> None:
    """Delete a partial download and its status files."""
    for path in (part, part.with_name(f"{part.name}.json"), part.with_name(f"{part.name}.aria2")):
        path.unlink(missing_ok=True)


def _read_record(directory: Path) -> dict[str, object]:
    """Return the sizes of the archives that were downloaded and unpacked here, by file name."""
    path = directory / RECORD_FILE
    if not path.is_file():
        return {}
    record = read_json(path, "delete it to download everything again")
    if not isinstance(record, dict):
        raise InputError.at(path, "not a record of downloads; delete it to download everything again")
    return record


def _add_to_record(directory: Path, archive: str, size: int) -> None:
    """Note in the record file of the directory that an archive of this size in bytes is complete."""
    with atomic_write(directory / RECORD_FILE) as temporary:
        temporary.write_text(json.dumps({**_read_record(directory), archive: {"size": size}}, indent=1) + "\n")
