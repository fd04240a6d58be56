"""What a disk may hold after a power cut: the writes and flushes of a service are recorded, and cut off anywhere.

    python -m tests.apps.serve.power_cut DIRECTORY JOBS

runs a service, its user and its worker in one process and says in a file what was answered. `record` does so under
strace, which writes every change of a file and every flush down. Of what was not flushed, a disk holds any part after
the cut: a write of it, some of its sectors of 512 bytes, or its length alone; names are certain once their folder was
flushed.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.sources import ROOT

SECTOR = 512
SAID = "said.txt"
_CALLS = "write,pwrite64,ftruncate,fsync,fdatasync,openat,mkdir,rename,unlink,unlinkat,rmdir"
_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>(.*)|(\w+)\((.*))", re.DOTALL)
_FILE = re.compile(r"(?:\d+|AT_FDCWD)<([^>]*)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass(frozen=True)
class Event:
    """One change, or the beginning or end of a flush; `path` and `other` are relative to the recorded directory."""

    kind: str
    path: str
    content: bytes = b""
    number: int = 0  # of a write, its offset, or -1 for the end of the file; of a truncation, the size
    other: str = ""


def record(directory: Path, jobs: int) -> list[Event]:
    """The events of a service that does so many jobs with its data in a directory."""
    log = directory.with_suffix(".strace")
    words = ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", "1000000", "-e", f"trace={_CALLS}"]
    command = [sys.executable, "-m", "tests.apps.serve.power_cut", str(directory), str(jobs)]
    subprocess.run([*words, "-o", str(log), *command], timeout=300, cwd=ROOT, check=True)
    return list(_events(log, f"{directory}/"))


def _events(log: Path, below: str) -> Iterator[Event]:
    open_calls: dict[str, tuple[str, str]] = {}
    with log.open() as lines:
        for line in lines:
            found = _LINE.match(line)
            if found is None:
                continue
            process, resumed, rest, name, words = found.groups()
            if resumed:
                name, words = open_calls.pop(process)
                if name in ("fsync", "fdatasync"):
                    yield from _within(Event("flushed", _file(words)), below)
                elif name not in ("write", "pwrite64"):
                    yield from _within(_event(name, words + rest), below)
                continue
            is_unfinished = words.rstrip().endswith("<unfinished ...>")
            if is_unfinished:
                words = words.rpartition("<unfinished")[0]
                open_calls[process] = name, words
            elif re.search(r"\) += -1 ", words):
                continue
            if name in ("fsync", "fdatasync"):
                yield from _within(Event("flush", _file(words)), below)
                if not is_unfinished:
                    yield from _within(Event("flushed", _file(words)), below)
            elif name in ("write", "pwrite64") or not is_unfinished:
                yield from _within(_event(name, words), below)


def _within(event: Event | None, below: str) -> Iterator[Event]:
    if event is not None and f"{event.path}/".startswith(below):
        path = event.path[len(below) :]
        yield Event(event.kind, path, event.content, event.number, event.other[len(below) :])


def _event(name: str, words: str) -> Event | None:  # noqa: PLR0911  # one for each call
    """The change that a call makes; None if it makes none."""
    if re.search(r"\) += -1 ", words):
        return None
    match name:
        case "write":
            return Event("write", _file(words), _texts(words)[0], -1)
        case "pwrite64":
            numbers = words.rpartition('"')[2].partition(")")[0].split(",")
            return Event("write", _file(words), _texts(words)[0], int(numbers[2]))
        case "ftruncate":
            return Event("truncate", _file(words), number=int(words.rpartition(">, ")[2].partition(")")[0]))
        case "openat":
            if "O_CREAT" not in words and "O_TRUNC" not in words:
                return None
            kind = "empty" if "O_TRUNC" in words else "create"
            return Event(kind, _text(re.findall(r"<([^>]*)>", words)[-1]))
        case "mkdir":
            return Event("mkdir", _texts(words)[0].decode())
        case "rename":
            old, new = _texts(words)
            return Event("rename", old.decode(), other=new.decode())
        case "unlink" | "rmdir":
            return Event("unlink", _texts(words)[0].decode())
        case "unlinkat":
            return Event("unlink", os.path.join(_file(words), _texts(words)[0].decode()))
    return None


def _file(words: str) -> str:
    found = _FILE.match(words)
    return "" if found is None else _text(found[1])


def _text(text: str) -> str:
    return bytes.fromhex(text.replace("\\x", "")).decode() if text.startswith("\\x") else text


def _texts(words: str) -> list[bytes]:
    return [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(words)]


@dataclass
class _Inode:
    """A file or folder: what of it is on the disk for certain, and the changes since."""

    is_folder: bool = False
    content: bytearray = field(default_factory=bytearray)
    pending: list[Event] = field(default_factory=list)
    size: int = 0  # as the process sees it
    flushing: list[int] = field(default_factory=list)  # changes that each flush under way will have put on the disk


class Disk:
    """A disk while a service runs, from which the power may be cut."""

    def __init__(self) -> None:
        self.seen: dict[str, _Inode] = {"": _Inode(is_folder=True)}  # by the process, by path
        self.names: dict[str, _Inode] = {"": self.seen[""]}  # on the disk for certain
        self._changes: dict[str, list[tuple[str, str, _Inode]]] = {}  # of names by folder, not flushed

    def apply(self, event: Event) -> None:
        """Let the process make a change."""
        match event.kind:
            case "create" | "empty" | "mkdir":
                if event.path not in self.seen:
                    self._name("link", event.path, _Inode(is_folder=event.kind == "mkdir"))
                if event.kind == "empty":
                    self._change(Event("truncate", event.path))
            case "write" | "truncate":
                self._change(event)
            case "rename":
                self._name("link", event.other, self.seen.pop(event.path))
            case "unlink":
                if event.path in self.seen:
                    self._name("unlink", event.path, self.seen[event.path])
            case "flush" if event.path in self.seen:
                changes = self._changes.get(event.path, [])
                self.seen[event.path].flushing.append(len(self.seen[event.path].pending) + len(changes))
            case "flushed" if event.path in self.seen:
                self._flushed(event.path)

    def _name(self, kind: str, path: str, inode: _Inode) -> None:
        if kind == "link":
            self.seen[path] = inode
        else:
            del self.seen[path]
        self._changes.setdefault(os.path.dirname(path), []).append((kind, path, inode))

    def _change(self, event: Event) -> None:
        inode = self.seen.get(event.path)
        if inode is None:
            return
        offset = inode.size if event.number < 0 else event.number
        inode.size = offset if event.kind == "truncate" else max(inode.size, offset + len(event.content))
        inode.pending.append(Event(event.kind, event.path, event.content, offset))

    def _flushed(self, path: str) -> None:
        inode = self.seen[path]
        count = inode.flushing.pop(0)
        for event in inode.pending[:count]:
            _write(inode.content, event)
        del inode.pending[:count]
        inode.flushing = [max(0, left - count) for left in inode.flushing]
        changes = self._changes.get(path, [])
        for change in changes[:count]:
            _link(self.names, *change)
        del changes[:count]

    def cut(self, rng: random.Random) -> dict[str, bytes]:
        """What is found after a cut now: the content of each file by its path."""
        keep = rng.choice([lambda: True, lambda: False, lambda: rng.random() < 0.5])
        names = dict(self.names)
        for changes in self._changes.values():
            for change in changes:
                if keep():
                    _link(names, *change)
        return {
            path: _remains(inode, keep, rng)
            for path, inode in names.items()
            if not inode.is_folder and all(folder in names for folder in _folders(path))
        }


def _folders(path: str) -> Iterator[str]:
    while path := os.path.dirname(path):
        yield path


def _link(names: dict[str, _Inode], kind: str, path: str, inode: _Inode) -> None:
    if kind == "link":
        for other in [name for name, each in names.items() if each is inode]:
            del names[other]  # it was renamed
        names[path] = inode
    elif names.get(path) is inode:
        del names[path]


def _write(content: bytearray, event: Event) -> None:
    if event.kind == "truncate":
        del content[event.number :]
        content.extend(bytes(event.number - len(content)))
        return
    content.extend(bytes(max(0, event.number - len(content))))
    content[event.number : event.number + len(event.content)] = event.content


def _remains(inode: _Inode, keep: Callable[[], bool], rng: random.Random) -> bytes:
    """What is left of a file: what was flushed, and any part of what was written since."""
    content = bytearray(inode.content)
    for event in inode.pending:
        if event.kind == "truncate" or keep():
            if event.kind != "truncate" or keep():
                _write(content, event)
            continue
        if rng.random() < 0.5:  # its length alone, and some of its sectors
            end = event.number + len(event.content)
            content.extend(bytes(max(0, end - len(content))))
            for start in range(0, len(event.content), SECTOR):
                if keep():
                    part = event.content[start : start + SECTOR]
                    content[event.number + start : event.number + start + len(part)] = part
    return bytes(content)


def after_cut(events: Sequence[Event], number: int, rng: random.Random, directory: Path) -> list[list[str]]:
    """Write what a disk may hold when the power is cut before an event; return what had been said until then."""
    disk, said = Disk(), b""
    for event in events[:number]:
        if event.path == SAID:
            said += event.content
        else:
            disk.apply(event)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for path, content in disk.cut(rng).items():
        if not path.endswith("-shm"):  # SQLite makes it anew when it opens the database
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(content)
    return [line.split() for line in said.decode().splitlines()]


def work(directory: Path, jobs: int) -> None:
    """Run a service, one user of it and one worker, and say in a file what each of them was answered."""
    from tests.apps.serve.running import running  # noqa: PLC0415  # not where events are only read

    directory.mkdir()
    said = os.open(directory / SAID, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    rows = [{"name": "rows.a3m", "content": ">query\nMKTAYIAKQR\n"}]
    with running(directory / "data") as server:
        # So that what is committed is moved from the log to the database many times in these few jobs.
        server.service.database._writer.execute("PRAGMA wal_autocheckpoint = 30")

        def submit() -> None:
            for number in range(jobs):
                body = {"sequence": "MKTAYIAKQR", "alignments": rows if number % 3 == 0 else []}
                headers = {"Idempotency-Key": f"key-{number}"}
                job = server.json("POST", "/api/v1/jobs", body, headers=headers)["id"]
                os.write(said, f"submitted {job} {number}\n".encode())

        thread, done = threading.Thread(target=submit), 0
        thread.start()
        while done < jobs and (thread.is_alive() or server.service.views.counts().get(("prediction", "queued"))):
            if (claimed := server.claim()) is None:
                continue
            server.finish(claimed, {"ranked_0.pdb": claimed["id"].encode(), "msas/rows.a3m": b">q\n"})
            os.write(said, f"done {claimed['id']}\n".encode())
            done += 1
        thread.join()
    os.close(said)


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
