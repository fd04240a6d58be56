"""Keep finished targets in archives of many, so that a large batch does not take millions of files.

`packed/000001.zip` in the output directory holds up to `TARGETS` targets, each file under `<target>/` as it was in the
target's directory. Archives are never changed: of several that have a target, the last one counts, and the directory of
a target counts before all archives. The first member, `index.jsonl`, has a line for each target, by which most
questions are answered without unpacking anything.

A target is packed once it is finished. Its directory is removed after its archive is in place, so that a killed process
leaves at least one of them whole. Processes that pack or restore targets wait for each other. Where a file system has
no locks, as some network file systems, several may pack the same targets, and nothing is lost.
"""

import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

from data_pipeline.io.errors import InputError, error_reason, printable
from data_pipeline.io.files import atomic_write, require_unmoved
from data_pipeline.io.json_files import parse_json
from data_pipeline.io.zip_archive import (
    CHUNK_BYTES,
    DAMAGE,
    Archive,
    ArchiveLimits,
    Member,
    damage_as_input_error,
    open_archive,
)
from helixfold.results.archive import files_in, write_zip
from helixfold.results.file_table import PACKED, PACKED_ARCHIVE, RANKED, RANKING, FileKind
from helixfold.results.json_object import JsonObject
from helixfold.results.lock import LOCK_FILE, only_run

INDEX_FILE: Final = "index.jsonl"
TARGETS = 256  # of an archive
# Of an archive with more than one target.
_MOST_FILES, _MOST_BYTES = 2**16, 2**32
_LIMITS = ArchiveLimits(members=2**17, unpacked_bytes=2**36, harmless_bytes=2**30)
# What the index holds of a target that takes more is left out, and read from its files.
_MAX_ENTRY_BYTES = 2**17
_MAX_INDEX_BYTES = 2**26
_PARTIAL = re.compile(r"\..+\.[0-9a-f]{8}\.partial")
# Result of a target's directory for its line in the index.
Describe = Callable[[Path], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class _Index:
    """The targets of an archive, each with its line of JSON; None where the archive has no index that can be read."""

    path: Path
    lines: Mapping[str, bytes | None]


class PackedResults:
    """The packed targets of an output directory.

    A target is `in` it if it is in an archive and has no directory. `problems` are the archives that cannot be read,
    each with the sentence that says why; the targets in them count as not there. As a context, the object keeps the
    archive open from which it has unpacked last.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.problems: dict[Path, str] = {}
        self._seen: list[Path] = []
        self._places: dict[str, _Index] = {}
        self._opened: _Opened | None = None
        self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def refresh(self) -> None:
        """Read the indexes of archives that were added since."""
        archives = _archives(self.output)
        if archives == self._seen:
            return
        self._seen, self._places, self.problems = archives, {}, {}
        for path in archives:
            try:
                with damage_as_input_error(path):
                    status = path.stat()
                index = _read_index(path, status.st_mtime_ns, status.st_size)
            except InputError as error:
                self.problems[path] = str(error)
            else:
                self._places |= dict.fromkeys(index.lines, index)

    def __contains__(self, name: str) -> bool:
        return name in self._places and not os.path.lexists(self.output / name)

    def names(self) -> list[str]:
        """Return the names of all packed targets, archive by archive."""
        if not self._places:
            return []
        with os.scandir(self.output) as entries:
            others = {entry.name for entry in entries}
        return sorted(self._places.keys() - others, key=lambda name: self._places[name].path)

    def archive_of(self, name: str) -> Path | None:
        """Return the archive that counts for a target, packed or not; None if it is in none."""
        index = self._places.get(name)
        return None if index is None else index.path

    def line(self, name: str) -> bytes | None:
        """Return the line of JSON of a packed target in the index; None if there is none."""
        return self._places[name].lines[name]

    def entry(self, name: str) -> JsonObject | None:
        """Return the line of a packed target as an object; None if there is none or a damaged one."""
        line = self.line(name)
        try:
            return None if line is None else JsonObject(self._places[name].path, parse_json(line), name)
        except ValueError:
            return None

    @contextmanager
    def directory(self, name: str) -> Iterator[Path]:
        """Yield the directory of a target; of a packed one, a temporary directory with its files.

        Raise `InputError` if they cannot be unpacked.
        """
        if name not in self:
            yield self.output / name
            return
        with tempfile.TemporaryDirectory(prefix="helixfold-") as scratch:
            self.unpack(name, Path(scratch) / name)
            yield Path(scratch) / name

    def restore(self, name: str) -> Path:
        """Unpack a target into its own directory, which counts from then on, and return that.

        Raise `InputError` if it cannot be unpacked.
        """
        directory = self.output / name
        with _locked(self.output):
            scratch = _scratch(self.output, name)
            self.unpack(name, scratch, sync=True)
            with suppress(OSError):  # another process was faster
                scratch.rename(directory)
        return directory

    def unpack(self, name: str, directory: Path, only: FileKind | None = None, *, sync: bool = False) -> None:
        """Unpack the files of a target, or `only` those of a kind, into a directory, which is made.

        Raise `InputError` if they cannot be unpacked.
        """
        opened = self._open(name)
        directory.mkdir()
        for path, member in opened.files(name).items():
            if only is not None and only.match(path) is None:
                continue
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            with (directory / path).open("xb") as file:
                file.writelines(opened.pieces(member))
                if sync:
                    file.flush()
                    os.fsync(file.fileno())

    def equals_directory(self, name: str) -> bool:
        """Return whether the archive that counts for a target has the files of its directory, byte for byte."""
        directory = self.output / name
        files = {str(path.relative_to(directory)): path for path in files_in(directory)}
        try:
            opened = self._open(name)
            members = opened.files(name)
            return members.keys() == files.keys() and all(
                member.file_size == files[path].stat().st_size and _has(files[path], opened.pieces(member))
                for path, member in members.items()
            )
        except InputError:
            return False

    def _open(self, name: str) -> "_Opened":
        path = self._places[name].path
        if self._opened is None or self._opened.path != path:
            self._close()
            with ExitStack() as stack:
                archive = stack.enter_context(open_archive(path, _LIMITS))
                self._opened = _Opened(
                    path=path, archive=archive, stack=stack.pop_all(), members=_by_target(archive.infolist())
                )
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.stack.close()
            self._opened = None


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """An open archive and its files by target; all methods raise `InputError` if it is damaged."""

    path: Path
    archive: Archive
    stack: ExitStack
    members: Mapping[str, Sequence[Member]]

    def files(self, name: str) -> dict[str, Member]:
        """Return the files of a target by their paths in its directory."""
        found: dict[str, Member] = {}
        for member in self.members.get(name, ()):
            path = member.filename.removeprefix(f"{name}/")
            if not _is_plain(path) or stat.S_ISLNK(member.external_attr >> 16):
                raise InputError.at(self.path, f"{printable(member.filename)} in it is not the path of a plain file")
            found[path] = member
        if any(str(folder) in found for path in found for folder in PurePosixPath(path).parents):
            raise InputError.at(self.path, f"a file of {printable(name)} in it is a directory, too")
        return found

    def pieces(self, member: Member) -> Iterator[bytes]:
        """Yield the content of a file."""
        with ExitStack() as stack:
            with damage_as_input_error(self.path):
                source = stack.enter_context(self.archive.open(member))
            while True:
                with damage_as_input_error(self.path):
                    piece = source.read(CHUNK_BYTES)
                if not piece:
                    break
                yield piece


def _has(path: Path, pieces: Iterable[bytes]) -> bool:
    """Return whether a file has this content."""
    with path.open("rb") as file:
        return all(piece == file.read(len(piece)) for piece in pieces) and not file.read(1)


@contextmanager
def readable_target(path: Path) -> Iterator[Path]:
    """Yield a path; if there is nothing, and it names a packed target, a temporary directory with the target's files.

    Raise `InputError` if they cannot be unpacked.
    """
    if os.path.lexists(path):
        yield path
        return
    with PackedResults(path.parent) as packed, packed.directory(path.name) as directory:
        yield directory


@contextmanager
def readable_structures(path: Path) -> Iterator[Path]:
    """Yield a directory with the ranked structures of all targets of an output directory: itself if none is packed.

    If some are, it is a temporary directory, with links to the directories of the others. `path` may also be that of a
    target, packed or not.
    """
    with PackedResults(path) as packed, ExitStack() as stack:
        for problem in packed.problems.values():
            print(f"helixfold: {problem}; its targets are left out", file=sys.stderr)
        names = packed.names()
        if not names:
            yield stack.enter_context(readable_target(path))
            return
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="helixfold-")))
        for each in path.iterdir():
            if each.is_dir() and each != PACKED.path(path):
                (scratch / each.name).symlink_to(each.resolve())
        for name in names:
            try:
                packed.unpack(name, scratch / name, RANKED)
            except InputError as error:
                print(f"helixfold: {name}: left out: {error}", file=sys.stderr)
        yield scratch


def pack_targets(output: Path, names: Iterable[str], describe: Describe) -> dict[str, str]:
    """Pack finished targets, and remove their directories; return why others were not packed.

    `describe` returns what the index holds of the target in a directory, or raises InputError, ValueError or OSError.
    Other processes may pack at the same time, the same targets too: what has no directory is passed over.
    """
    problems: dict[str, str] = {}
    with _locked(output):
        waiting: list[_Waiting] = []
        with PackedResults(output) as packed:
            for name in dict.fromkeys(names):
                directory = output / name
                if not RANKING.path(directory).is_file() or directory.is_symlink():
                    continue
                # A run that was killed had packed it already.
                if packed.archive_of(name) is not None and packed.equals_directory(name):
                    _remove_directory(output, name)
                    continue
                try:
                    waiting.append(_Waiting.of(directory, describe))
                except (OSError, ValueError) as error:
                    if _mark(directory) is not None:
                        problems[name] = error_reason(error)
        for batch in _batches(waiting):
            for name in _write_archive(output, batch):
                _remove_directory(output, name)
    return problems


def remove_partial(output: Path) -> None:
    """Remove what killed processes had not finished packing or unpacking; wait for a process that does so now."""
    if (PACKED.path(output)).is_dir():
        with _locked(output):
            pass


@contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Let one process at a time pack or restore, and remove in the end what it, or a killed one, leaves unfinished."""
    directory = PACKED.path(output)
    require_unmoved(directory)
    directory.mkdir(exist_ok=True)
    with only_run(directory, LOCK_FILE, waits=True):
        try:
            yield
        finally:
            for path in directory.iterdir():
                if _PARTIAL.fullmatch(path.name):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A finished target that is to be packed, with its line in the index, and the mark that it is finished."""

    directory: Path
    line: bytes
    files: int
    size: int  # bytes
    mark: tuple[int, int, int]

    @classmethod
    def of(cls, directory: Path, describe: Describe) -> "_Waiting":
        if (mark := _mark(directory)) is None:
            raise FileNotFoundError(f"{RANKING.name()} is gone")
        if (reason := _unfit(directory)) is not None:
            raise InputError(reason)
        line = json.dumps(dict(describe(directory)), separators=(",", ":"), allow_nan=False).encode()
        files = files_in(directory)
        if len(files) > _MOST_FILES:
            raise InputError(f"it has {len(files):,} files, and an archive at most {_MOST_FILES:,}")
        return cls(
            directory=directory,
            line=line if len(line) <= _MAX_ENTRY_BYTES else b"null",
            files=len(files),
            size=sum(path.stat().st_size for path in files),
            mark=mark,
        )


def _unfit(directory: Path) -> str | None:
    """Say why a directory cannot be packed without a loss; None if it can."""
    if not _is_name(directory.name):
        return "its name is unfit for an archive"
    for path in directory.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            return f"{printable(path.name)} in its directory is not a file"
        str(path).encode()  # raises ValueError for a name that an archive cannot have
    return None


def _mark(directory: Path) -> tuple[int, int, int] | None:
    """Return what differs once ranking_debug.json was removed, as before any change of results, and written again."""
    try:
        status = RANKING.path(directory).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _batches(waiting: Iterable[_Waiting]) -> Iterator[list[_Waiting]]:
    """Yield the targets of each archive."""
    batch: list[_Waiting] = []
    files = size = 0
    for each in waiting:
        if batch and (len(batch) == TARGETS or files + each.files > _MOST_FILES or size + each.size > _MOST_BYTES):
            yield batch
            batch, files, size = [], 0, 0
        batch.append(each)
        files, size = files + each.files, size + each.size
    if batch:
        yield batch


def _write_archive(output: Path, batch: list[_Waiting]) -> list[str]:
    """Write the next archive, and return the names of the targets in it."""
    draft = _scratch(output, "draft")
    while batch:
        heading = {"targets": [each.directory.name for each in batch]}
        lines = [json.dumps(heading).encode(), *(each.line for each in batch)]
        with atomic_write(draft) as temporary:
            directories = {each.directory.name: each.directory for each in batch}
            write_zip(temporary, directories, {INDEX_FILE: b"\n".join(lines) + b"\n"})
        with open_archive(draft, _LIMITS):
            pass  # what could not be read again is not written
        # Without locks, another process may have packed and removed one meanwhile, or begun it again.
        whole = [each for each in batch if _mark(each.directory) == each.mark]
        if len(whole) == len(batch):
            _put_in_place(draft, PACKED.path(output))
            break
        batch = whole
    draft.unlink(missing_ok=True)
    return [each.directory.name for each in batch]


def _put_in_place(draft: Path, directory: Path) -> None:
    """Give an archive the next free number, also where another process without locks does the same."""
    number = 1 + max((int(path.stem) for path in _archives(directory.parent)), default=0)
    while True:
        path = PACKED_ARCHIVE.path(directory, number=number)
        try:
            os.link(draft, path)
            break
        except FileExistsError:
            number += 1
        except OSError:  # a file system without links
            if not path.exists():
                draft.rename(path)
                break
            number += 1
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems cannot
            os.fsync(descriptor)  # the archive before what it replaces is removed
    finally:
        os.close(descriptor)


def _remove_directory(output: Path, name: str) -> None:
    """Remove a target's directory at once, as seen from outside: half of one would count as the target."""
    scratch = _scratch(output, name)
    with suppress(FileNotFoundError):  # another process was faster
        (output / name).rename(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


def _scratch(output: Path, name: str) -> Path:
    return PACKED.path(output) / f".{name}.{secrets.token_hex(4)}.partial"


def _archives(output: Path) -> list[Path]:
    """Return the archives of an output directory, the first one first."""
    found = PACKED_ARCHIVE.files(PACKED.path(output))
    return [path for _, path in sorted((int(fields["number"]), path) for path, fields in found)]


@cache
def _read_index(path: Path, _modified: int, _size: int) -> _Index:
    """Read the index of an archive; raise `InputError` if the archive is damaged, incomplete or another kind of file.

    Archives are never changed, and each is read once.
    """
    with open_archive(path, _LIMITS) as archive:
        members = _by_target(archive.infolist())
        lines = _index_lines(archive)
    marked = [name for name, files in members.items() if any(f.filename == f"{name}/{RANKING.name()}" for f in files)]
    return _Index(path=path, lines={name: lines.get(name) for name in marked})


def _index_lines(archive: Archive) -> dict[str, bytes]:
    """Return the lines of an archive's index by target; none if it is missing, too large or damaged."""
    try:
        if archive.getinfo(INDEX_FILE).file_size > _MAX_INDEX_BYTES:
            return {}
        heading, *lines = archive.read(INDEX_FILE).removesuffix(b"\n").split(b"\n")
        names = parse_json(heading)["targets"]
        return {name: line for name, line in zip(names, lines, strict=True) if line != b"null"}
    except (*DAMAGE, LookupError, TypeError):
        return {}


def _by_target(members: Iterable[Member]) -> dict[str, list[Member]]:
    """Return the files of an archive by target, without those that belong to none."""
    found: dict[str, list[Member]] = {}
    for member in members:
        name, _, path = member.filename.partition("/")
        if path and not member.is_dir() and _is_name(name):
            found.setdefault(name, []).append(member)
    return found


def _is_plain(path: str) -> bool:
    """Return whether the path of a file in an archive leads nowhere else."""
    parts = PurePosixPath(path).parts
    return path == "/".join(parts) and ".." not in parts and "\0" not in path


def _is_name(name: object) -> bool:
    """Return whether something is a name that the directory of a target can have."""
    return isinstance(name, str) and re.fullmatch(r"[^./\0][^/\0]{0,199}", name) is not None
