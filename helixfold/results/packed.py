"""Pack finished targets into archives of many targets, so that a large batch does not create millions of files.

`packed/000001.zip` in the output directory holds up to `TARGETS` targets, with each file under `<target>/` as it was in
the target's directory. Archives are never changed. If several archives have the same target, the last one counts, and a
target's directory counts before all archives. The first member, `index.jsonl`, has a line for each target, so that most
queries need no unpacking.

A target is packed once it is finished. Its directory is removed after its archive is complete, so that a killed process
leaves at least one of them intact. Processes that pack or restore targets wait for each other. On file systems without
locks, such as some network file systems, several processes may pack the same targets, but nothing is lost.
"""

import itertools
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

from data_pipeline.io.errors import InputError, error_reason, printable
from data_pipeline.io.files import FileState, file_state, flush_to_disk, require_unmoved
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
TARGETS = 256  # maximum number of targets per archive
# Limits of an archive with more than one target.
_MAX_FILES, _MAX_BYTES = 2**16, 2**32
_LIMITS = ArchiveLimits(members=2**17, unpacked_bytes=2**36, harmless_bytes=2**30)
# Larger index entries are left out; the target's files are read instead.
_MAX_ENTRY_BYTES = 2**17
_MAX_INDEX_BYTES = 2**26
_PARTIAL_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.partial")
# Function that returns the index entry of a target, from its directory.
Describe = Callable[[Path], Mapping[str, Any]]


class PackedResults:
    """The packed targets of an output directory, as read from its archives.

    `name in packed` is true if a target is in an archive and has no directory. `problems` are the archives that cannot
    be read, each with the reason; targets in them are treated as missing. Within a context, the archive that was
    unpacked from last stays open.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.problems: dict[Path, str] = {}
        self._archives: list[Path] = []
        # The last archive of each target, and the target's line of JSON there; None if the index has no readable line.
        self._targets: dict[str, tuple[Path, bytes | None]] = {}
        self._opened, self._opened_path = ExitStack(), Path()
        self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened_path = Path()
        self._opened.close()

    def refresh(self) -> None:
        """Read the indexes again, and forget earlier problems, if the list of archives has changed."""
        archives = _archives(self.output)
        if archives == self._archives:
            return
        self._archives, self._targets, self.problems = archives, {}, {}
        for path in archives:
            try:
                lines = _read_index(path, file_state(path))
            except InputError as error:
                self.problems[path] = str(error)
            else:
                self._targets |= {name: (path, line) for name, line in lines.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._targets and not os.path.lexists(self.output / name)

    def names(self) -> list[str]:
        """Return the names of all packed targets that have no directory, in the order of their archives."""
        if not self._targets:
            return []
        return sorted(self._targets.keys() - set(os.listdir(self.output)), key=lambda name: self._targets[name][0])

    def archive_of(self, name: str) -> Path | None:
        """Return the last archive that has a target, even if it also has a directory; None if no archive has it."""
        return self._targets[name][0] if name in self._targets else None

    def line(self, name: str) -> tuple[Path, bytes | None]:
        """Return the last archive that has a target, and the target's line of JSON in its index; None if it has none.

        Raise `KeyError` if no archive has the target.
        """
        return self._targets[name]

    def entry(self, name: str) -> JsonObject | None:
        """Return a packed target's index entry, its parsed line; None if it is missing or damaged."""
        path, line = self.line(name)
        try:
            return None if line is None else JsonObject(path, parse_json(line), name)
        except ValueError:
            return None

    @contextmanager
    def directory(self, name: str) -> Iterator[Path]:
        """Yield the directory of a target; for a packed target, this is a temporary directory with its files.

        Raise `InputError` if the files cannot be unpacked.
        """
        if name not in self:
            yield self.output / name
            return
        with tempfile.TemporaryDirectory(prefix="helixfold-") as scratch:
            self.unpack(name, Path(scratch) / name)
            yield Path(scratch) / name

    def restore(self, name: str) -> Path:
        """Unpack a target into its directory, which is then used instead of the archive, and return the directory.

        Raise `InputError` if the target cannot be unpacked.
        """
        directory = self.output / name
        with _locked(self.output):
            scratch = _scratch(self.output, name)
            self.unpack(name, scratch, sync=True)
            with suppress(OSError):  # Another process was faster.
                scratch.rename(directory)
        return directory

    def unpack(self, name: str, directory: Path, only: FileKind | None = None, *, sync: bool = False) -> None:
        """Unpack the files of a target, or `only` files of one kind, into a new directory.

        With `sync`, the files are flushed to the disk. Raise `InputError` if they cannot be unpacked.
        """
        members = self._members_of(name)
        directory.mkdir()
        for path, member in members.items():
            if only is not None and only.match(path) is None:
                continue
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            with (directory / path).open("xb") as file:
                file.writelines(self._pieces(name, member))
                if sync:
                    file.flush()
                    os.fsync(file.fileno())

    def equals_directory(self, name: str) -> bool:
        """Return whether the last archive that has a target holds exactly the files of its directory."""
        directory = self.output / name
        files = {str(path.relative_to(directory)): path for path in files_in(directory)}
        try:
            members = self._members_of(name)
            return members.keys() == files.keys() and all(
                member.file_size == files[path].stat().st_size and _has_content(files[path], self._pieces(name, member))
                for path, member in members.items()
            )
        except InputError:
            return False

    def _members_of(self, name: str) -> dict[str, Member]:
        """Open the archive of a target if it is not open, and return the target's members by path in its directory.

        Raise `InputError` if the archive is damaged, or if its members are not plain files of a directory.
        """
        archive_path, _ = self._targets[name]
        if self._opened_path != archive_path:
            self._opened_path = Path()
            self._opened.close()
            self._archive = self._opened.enter_context(open_archive(archive_path, _LIMITS))
            self._members = _by_target(self._archive.infolist())
            self._opened_path = archive_path
        files: dict[str, Member] = {}
        for member in self._members.get(name, ()):
            path = member.filename.removeprefix(f"{name}/")
            if not _is_plain(path) or stat.S_ISLNK(member.external_attr >> 16):
                raise InputError.at(archive_path, f"its member {printable(member.filename)} is not a plain file")
            files[path] = member
        if any(str(folder) in files for path in files for folder in PurePosixPath(path).parents):
            raise InputError.at(archive_path, f"it has a file of {printable(name)} that is also a directory")
        return files

    def _pieces(self, name: str, member: Member) -> Iterator[bytes]:
        """Yield the content of a target's member in pieces. Raise `InputError` if it is damaged."""
        with damage_as_input_error(self._targets[name][0]), self._archive.open(member) as source:
            while piece := source.read(CHUNK_BYTES):
                yield piece


def _has_content(path: Path, pieces: Iterable[bytes]) -> bool:
    """Return whether a file has this content."""
    with path.open("rb") as file:
        return all(piece == file.read(len(piece)) for piece in pieces) and not file.read(1)


@contextmanager
def readable_target(path: Path) -> Iterator[Path]:
    """Yield a path, or if it does not exist but names a packed target, a temporary directory with the target's files.

    Raise `InputError` if the files cannot be unpacked.
    """
    if os.path.lexists(path):
        yield path
        return
    with PackedResults(path.parent) as packed, packed.directory(path.name) as directory:
        yield directory


@contextmanager
def readable_structures(path: Path) -> Iterator[Path]:
    """Yield a directory with the ranked structures of all targets of an output directory.

    This is the output directory itself if no target is packed, and otherwise a temporary directory with links to the
    directories of unpacked targets. `path` may also be the path of one target, packed or not.
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
    """Pack finished targets and remove their directories. Return the reasons why some targets were not packed.

    Targets without ranking_debug.json are not finished and are left alone, without a reason. `describe` returns a
    target's index entry from its directory, or raises `InputError`, `ValueError` or `OSError`. Other processes may pack
    at the same time, even the same targets; targets without a directory are skipped.
    """
    problems: dict[str, str] = {}
    with _locked(output):
        waiting: list[_Waiting] = []
        with PackedResults(output) as packed:
            for name in dict.fromkeys(names):
                directory = output / name
                ranking = RANKING.path(directory)
                if not ranking.is_file() or directory.is_symlink():
                    continue
                # A killed run has already packed this target.
                if packed.archive_of(name) is not None and packed.equals_directory(name):
                    _remove_directory(output, name)
                    continue
                try:
                    waiting.append(_Waiting.of(directory, describe))
                except (OSError, ValueError) as error:
                    if ranking.is_file():
                        problems[name] = error_reason(error)
        for batch in _batches(waiting):
            for name in _write_archive(output, batch):
                _remove_directory(output, name)
    return problems


def remove_partial(output: Path) -> None:
    """Remove incomplete archives of killed processes, after waiting for a process that packs or unpacks now."""
    if (PACKED.path(output)).is_dir():
        with _locked(output):
            pass


@contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Let one process at a time pack or restore, and remove incomplete files at the end."""
    directory = PACKED.path(output)
    require_unmoved(directory)
    directory.mkdir(exist_ok=True)
    with only_run(directory, LOCK_FILE, waits=True):
        try:
            yield
        finally:
            for path in directory.iterdir():
                if _PARTIAL_NAME.fullmatch(path.name):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A finished target that will be packed, and its line in the index."""

    directory: Path
    line: bytes
    files: int
    size: int  # bytes
    state: FileState  # of ranking_debug.json, which changes if the target is predicted again

    @classmethod
    def of(cls, directory: Path, describe: Describe) -> "_Waiting":
        if (state := file_state(RANKING.path(directory))) is None:
            raise FileNotFoundError(f"{RANKING.name()} is missing")
        _require_packable(directory)
        line = json.dumps(dict(describe(directory)), separators=(",", ":"), allow_nan=False).encode()
        files = files_in(directory)
        if len(files) > _MAX_FILES:
            raise InputError(f"it has {len(files):,} files; an archive holds at most {_MAX_FILES:,}")
        return cls(
            directory=directory,
            line=line if len(line) <= _MAX_ENTRY_BYTES else b"null",
            files=len(files),
            size=sum(path.stat().st_size for path in files),
            state=state,
        )


def _require_packable(directory: Path) -> None:
    """Raise `InputError` or `ValueError` if a directory cannot be packed without loss."""
    if not _is_name(directory.name):
        raise InputError("its name is not allowed in an archive")
    for path in directory.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise InputError(f"{printable(path.name)} in its directory is not a file")
        str(path).encode()  # Raises ValueError for a name that an archive cannot have.


def _batches(waiting: Iterable[_Waiting]) -> Iterator[list[_Waiting]]:
    """Yield the targets of each archive."""
    batch: list[_Waiting] = []
    files = size = 0
    for each in waiting:
        if batch and (len(batch) == TARGETS or files + each.files > _MAX_FILES or size + each.size > _MAX_BYTES):
            yield batch
            batch, files, size = [], 0, 0
        batch.append(each)
        files, size = files + each.files, size + each.size
    if batch:
        yield batch


def _write_archive(output: Path, batch: list[_Waiting]) -> list[str]:
    """Write the next archive and return the names of the targets in it."""
    draft = _scratch(output, "draft")
    while batch:
        heading = {"targets": [each.directory.name for each in batch]}
        lines = [json.dumps(heading).encode(), *(each.line for each in batch)]
        directories = {each.directory.name: each.directory for each in batch}
        write_zip(draft, directories, {INDEX_FILE: b"\n".join(lines) + b"\n"})
        with open_archive(draft, _LIMITS):
            pass  # Raises if the archive could not be read again.
        # Without locks, another process may have packed and removed a target meanwhile, or started it again.
        unchanged = [each for each in batch if file_state(RANKING.path(each.directory)) == each.state]
        if len(unchanged) == len(batch):
            _put_in_place(draft, PACKED.path(output))
            break
        batch = unchanged
    draft.unlink(missing_ok=True)
    return [each.directory.name for each in batch]


def _put_in_place(draft: Path, directory: Path) -> None:
    """Give an archive the next free number, even if another process does the same on a file system without locks."""
    last = max((int(path.stem) for path in _archives(directory.parent)), default=0)
    for number in itertools.count(last + 1):
        path = PACKED_ARCHIVE.path(directory, number=number)
        try:
            os.link(draft, path)
        except FileExistsError:
            continue
        except OSError:  # The file system has no links.
            if path.exists():
                continue
            draft.rename(path)
        break
    with suppress(OSError):  # Some file systems cannot flush a directory.
        flush_to_disk(directory)  # The archive must be on disk before the directories are removed.


def _remove_directory(output: Path, name: str) -> None:
    """Remove a target's directory. It is renamed first, because part of a directory would count as the target."""
    scratch = _scratch(output, name)
    with suppress(FileNotFoundError):  # Another process was faster.
        (output / name).rename(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


def _scratch(output: Path, name: str) -> Path:
    return PACKED.path(output) / f".{name}.{secrets.token_hex(4)}.partial"


def _archives(output: Path) -> list[Path]:
    """Return the archives of an output directory in the order of their numbers."""
    files = PACKED_ARCHIVE.files(PACKED.path(output))
    return [path for _, path in sorted((int(fields["number"]), path) for path, fields in files)]


@cache
def _read_index(path: Path, _: FileState | None) -> dict[str, bytes | None]:
    """Return the targets of an archive, each with its line of JSON, or None where the index has no readable line.

    The result is cached by the path and state of the archive, because archives are never changed. Raise `InputError` if
    the archive is damaged, incomplete or another kind of file.
    """
    with open_archive(path, _LIMITS) as archive:
        members = _by_target(archive.infolist())
        lines = _index_lines(archive)
    targets = [name for name, files in members.items() if any(f.filename == f"{name}/{RANKING.name()}" for f in files)]
    return {name: lines.get(name) for name in targets}


def _index_lines(archive: Archive) -> dict[str, bytes]:
    """Return the lines of an archive's index by target; empty if the index is missing, too large or damaged."""
    try:
        if archive.getinfo(INDEX_FILE).file_size > _MAX_INDEX_BYTES:
            return {}
        heading, *lines = archive.read(INDEX_FILE).removesuffix(b"\n").split(b"\n")
        names = parse_json(heading)["targets"]
        return {name: line for name, line in zip(names, lines, strict=True) if line != b"null"}
    except (*DAMAGE, LookupError, TypeError):
        return {}


def _by_target(members: Iterable[Member]) -> dict[str, list[Member]]:
    """Return an archive's members by target; members that belong to no target are left out."""
    by_target: dict[str, list[Member]] = {}
    for member in members:
        name, _, path = member.filename.partition("/")
        if path and not member.is_dir() and _is_name(name):
            by_target.setdefault(name, []).append(member)
    return by_target


def _is_plain(path: str) -> bool:
    """Return whether a member's path stays within its target's directory."""
    parts = PurePosixPath(path).parts
    return path == "/".join(parts) and ".." not in parts and "\0" not in path


def _is_name(name: object) -> bool:
    """Return whether a value is a valid name of a target's directory."""
    return isinstance(name, str) and re.fullmatch(r"[^./\0][^/\0]{0,199}", name) is not None
