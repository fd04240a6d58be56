"""Write the files of targets into zip archives; equal files give equal archives."""

import shutil
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

from data_pipeline.io.files import atomic_write
from helixfold.results.file_table import ARCHIVE

# The format's earliest date, for all files, so that equal files give equal archives.
_MEMBER_DATE = (1980, 1, 1, 0, 0, 0)


def write_archive(directory: Path) -> None:
    """Write all files of a target into `<target>.result.zip` next to its directory.

    An archive that is newer than all files is not written again, unless its time is in the future, which happens if the
    clock was set back.
    """
    target = ARCHIVE.path(directory.parent, target=directory.name)
    newest = max((path.stat().st_mtime_ns for path in files_in(directory)), default=0)
    if target.is_file() and newest < target.stat().st_mtime_ns <= time.time_ns():
        return
    write_zip(target, {directory.name: directory})


def write_zip(path: Path, folders: Mapping[str, Path], first: Mapping[str, bytes] | None = None) -> None:
    """Write a zip archive at `path` of the directories in `folders`, by their folder names in the archive.

    `first` has members to write before them: contents by name. An earlier archive is replaced only when the new one is
    complete.
    """
    with atomic_write(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (first or {}).items():
            archive.writestr(_member(name), content)
        for folder, directory in folders.items():
            for file in files_in(directory):
                member = _member(str(Path(folder, file.relative_to(directory))))
                with file.open("rb") as source, archive.open(member, "w", force_zip64=True) as stream:
                    shutil.copyfileobj(source, stream, 2**20)


def files_in(directory: Path) -> list[Path]:
    """Return the files of a directory and its subdirectories that an archive includes, sorted by path.

    These are all files except symbolic links.
    """
    return sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _MEMBER_DATE)
    member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    return member
