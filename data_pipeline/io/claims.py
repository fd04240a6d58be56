"""Divide targets among independent processes that write to one directory; each claims a target before it starts.

A claim is a file that only one process can create. The process renews the modification time of the file while it runs.
If the time is older than `EXPIRY` seconds, or if the process has ended, another process claims the target with a new
file, which has the next number. A process with an outdated view therefore cannot take a claim from a running process.

File locks do not work on every network file system, and the clocks of machines differ. Creating a hard link succeeds
for exactly one process, and all times come from the file server.

Each process also renews its own clock file until it closes its claims. When no process is left, the claims are no
longer needed, and the directory can be removed. `DIRECTORY` is its name in the output directory. A claim is renewed
every `RENEWAL` seconds. `State` is the state of a claim, of which all but "held" are ends. `Answer` is the result of
`take`, and `Work` the result of `work_on`.
"""

import hashlib
import json
import os
import platform
import secrets
import shutil
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from data_pipeline.io.files import remove_partial_files, require_unmoved


@dataclass(frozen=True)
class SeenFile:
    """The content of a file, and its modification time on the file server, in seconds."""

    content: bytes
    time: float  # seconds


@dataclass(frozen=True)
class ClaimFiles:
    """Access to a directory of claims, which is created on the first write."""

    directory: Path
    _own: str = field(default_factory=lambda: secrets.token_hex(8))  # in the names of this process's own files

    def create(self, name: str, content: bytes) -> bool:
        """Create a file with its content atomically, and return whether this process created it.

        If it exists or cannot be linked, nothing is changed. Other system errors are raised.
        """
        draft = self._draft(content)
        try:
            os.link(draft, self.directory / name)
        except OSError:
            # The network may have lost a positive answer: the link exists if the draft has two names. The draft is
            # missing if the directory was removed meanwhile.
            return draft.exists() and draft.stat().st_nlink == 2
        finally:
            draft.unlink(missing_ok=True)
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file atomically; create the directory again if it was removed meanwhile."""
        while True:
            with suppress(FileNotFoundError):
                os.replace(self._draft(content), self.directory / name)
                return

    def touch(self, name: str) -> None:
        """Set the modification time of a file to the current time of the file server; raise `OSError` on failure."""
        os.utime(self.directory / name)

    def read(self, name: str) -> SeenFile | None:
        """Return the current state of a file on the server, or None if it does not exist.

        The file is opened, because network file systems use cached answers for files that are not open.
        """
        try:
            with (self.directory / name).open("rb") as file:
                return SeenFile(file.read(), os.fstat(file.fileno()).st_mtime)
        except FileNotFoundError:
            return None

    def now(self) -> float:
        """Return the current time of the file server in seconds, from this process's clock file, which is rewritten."""
        name = f"clock-{self._own}"
        self.replace(name, _this_process().encode())
        while (seen := self.read(name)) is None:
            self.replace(name, _this_process().encode())
        return seen.time

    def has_others(self, expiry: float) -> bool:
        """Return whether another process renewed its clock in the last `expiry` seconds and has not ended since.

        The clock of this process is removed.
        """
        now, own = self.now(), self.directory / f"clock-{self._own}"
        clocks = [self.read(path.name) for path in self.directory.glob("clock-*") if path != own]
        own.unlink(missing_ok=True)
        return any(
            seen is not None and now - seen.time <= expiry and not _has_ended(seen.content.decode(errors="replace"))
            for seen in clocks
        )

    def remove_clocks(self, expiry: float) -> None:
        """Remove this process's clock, and clocks and drafts more than `expiry` seconds older than the newest file.

        System errors are ignored.
        """
        with suppress(OSError):
            (self.directory / f"clock-{self._own}").unlink(missing_ok=True)
            clock_files = [*self.directory.glob("clock-*"), *self.directory.glob("draft-*")]
            latest = max((path.stat().st_mtime for path in self.directory.iterdir()), default=0.0)
            for path in clock_files:
                if latest - path.stat().st_mtime > expiry:
                    path.unlink(missing_ok=True)

    def _draft(self, content: bytes) -> Path:
        """Write `content` to a new file in the directory, whose name no other process uses, and return its path."""
        require_unmoved(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        draft = self.directory / f"draft-{self._own}-{secrets.token_hex(4)}"
        draft.write_bytes(content)
        return draft


DIRECTORY = ".claims"
# Longer than network file systems cache answers, and longer than a busy server takes to answer.
EXPIRY, RENEWAL = 300.0, 30.0
State = Literal["held", "finished", "failed", "released"]
# Result of `take`: claimed by this process, held by another process, or done since this process started.
Answer = Literal["taken", "held", "done"]
# Result of `work_on`.
Work = Literal["none", "held", "lost"]


class LostClaimError(RuntimeError):
    """Error for a target that another process has claimed because this process did not renew its claim in time."""


@dataclass(frozen=True)
class Claim:
    """The content of a claim's file; a later claim on the same target has the next `index`, from 1.

    `owner` identifies machine and process. `failure` is the reason if `state` is "failed". `time` is when it was last
    renewed or ended, in seconds on the file server.
    """

    index: int
    state: State
    owner: str
    failure: str | None
    time: float  # of the last renewal or the end, on the file server


class Claims:
    """The claims of this process in a directory that it shares with others.

    All times are in seconds. A held claim that was not renewed for `expiry` counts as lost. `began` is a time on the
    file server: targets that ended since then are done. The constructor starts no thread, so `renew` must be called
    every `renewal` seconds.
    """

    def __init__(
        self, files: ClaimFiles, *, expiry: float = EXPIRY, renewal: float = RENEWAL, began: float | None = None
    ) -> None:
        self._files, self._expiry, self._renewal = files, expiry, renewal
        self._held: dict[str, int] = {}  # index of the claim, by target
        self._lost: set[str] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._owner = _this_process()
        now = files.now()
        self.began = now if began is None else began
        self._thread: threading.Thread | None = None

    @classmethod
    def in_directory(cls, output: Path, began: float | None = None) -> "Claims":
        """Return the claims in an output directory, renewed by a thread until `close`.

        Targets that other processes ended since `began`, a time on the file server, count as done (default: now).
        """
        claims = cls(ClaimFiles(output.absolute() / DIRECTORY), began=began)
        claims._thread = threading.Thread(target=claims._renew_always, name="claims", daemon=True)
        claims._thread.start()
        return claims

    def take(self, target: str, *, retry: bool = False) -> Answer:
        """Try to claim a target; return "taken", "held" by another process, or "done".

        A target that another process has finished or given up since this process started is "done". A target that ended
        earlier is claimed again, so that the caller can check what is left to do. With `retry`, failed targets are
        claimed again too.
        """
        latest = self._latest(target)
        if latest is not None:
            is_over = latest.state == "finished" or (latest.state == "failed" and not retry)
            if is_over and latest.time >= self.began:
                return "done"
            if latest.state == "held" and not self.is_dead(latest):
                return "held"
        index = 1 if latest is None else latest.index + 1
        if not self._files.create(_file(target, index), self._content(target, "held")):
            return "held"  # another process was faster
        with self._lock:
            self._held[target] = index
            self._lost.discard(target)
        return "taken"

    def holds(self, target: str) -> bool:
        """Return whether this process has claimed a target and not ended it, even if the claim was lost meanwhile."""
        return target in self._held

    def require_held(self, target: str) -> None:
        """Raise `LostClaimError` if `renew` found that another process has claimed the target in the meantime."""
        if target in self._lost:
            raise LostClaimError("another process continues this target, because this process did not renew its claim")

    def end(self, target: str, state: State, failure: str | None = None) -> None:
        """Record how a claimed target ended: "finished", "failed", or "released" for other processes.

        `failure` is the reason. Without a claim of this process, nothing happens.
        """
        with self._lock:
            index = self._held.pop(target, None)
        if index is not None:
            self._files.replace(_file(target, index), self._content(target, state, failure))

    def failures(self, targets: Iterable[str]) -> dict[str, str]:
        """Return the reasons why targets failed in any process since this one started, by target."""
        latest = {target: self._latest(target) for target in targets}
        return {
            target: claim.failure or "for an unknown reason"
            for target, claim in latest.items()
            if claim is not None and claim.state == "failed" and claim.time >= self.began
        }

    def work_on(self, target: str) -> Work:
        """Return whether a process holds a target, or "lost" it by dying; "none" if the target ended or never began."""
        latest = self._latest(target)
        if latest is None or latest.state != "held":
            return "none"
        return "lost" if self.is_dead(latest) else "held"

    def history(self, target: str) -> list[Claim]:
        """Return the claims on a target that were renewed or ended since this process started, and the latest claim."""
        claims = self._all(target)
        return [claim for claim in claims[:-1] if claim.time >= self.began] + claims[-1:]

    def is_dead(self, claim: Claim) -> bool:
        """Return whether the process of a held claim has ended, or has not renewed the claim for too long."""
        return _has_ended(claim.owner) or self._files.now() - claim.time > self._expiry

    def renewed(self, target: str) -> float | None:
        """Return the time on the file server when the latest claim on a target was renewed or ended, or None."""
        latest = self._latest(target)
        return None if latest is None else latest.time

    def renew(self) -> None:
        """Renew the clock and all claims of this process, and detect claims lost to other processes."""
        with suppress(OSError):
            self._files.now()
        with self._lock:
            held = dict(self._held)
        for target, index in held.items():
            with suppress(OSError):  # the server may be unreachable for a while
                self._files.touch(_file(target, index))
                if self._files.read(_file(target, index + 1)) is not None:
                    self._lost.add(target)

    def close(self) -> None:
        """Stop the renewal, release all remaining claims, and remove the clock of this process."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        for target in list(self._held):
            with suppress(OSError):
                self.end(target, "released")
        self._files.remove_clocks(self._expiry)

    def _renew_always(self) -> None:
        """Renew the claims at intervals until they are closed."""
        while not self._closed.wait(self._renewal):
            self.renew()

    def _latest(self, target: str) -> Claim | None:
        """Return the latest claim on a target."""
        return next(reversed(self._all(target)), None)

    def _all(self, target: str) -> list[Claim]:
        """Return all claims on a target without listing directories, which network file systems update late."""
        claims: list[Claim] = []
        while (seen := self._files.read(_file(target, len(claims) + 1))) is not None:
            claims.append(_claim(len(claims) + 1, seen))
        return claims

    def _content(self, target: str, state: State, failure: str | None = None) -> bytes:
        """Return the content of a claim's file."""
        words = {"target": target, "state": state, "owner": self._owner, "failure": failure}
        return json.dumps(words).encode()


def remove_claims(output: Path) -> None:
    """Remove claims and unfinished files of killed processes from an output directory, unless a process uses them.

    A process that starts in the meantime may lose its claims; the caller prevents this with a lock where possible.
    """
    directory = output / DIRECTORY
    if directory.is_dir() and not ClaimFiles(directory).has_others(EXPIRY):
        shutil.rmtree(directory, ignore_errors=True)
        remove_partial_files([output])


def _file(target: str, index: int) -> str:
    """Return the file name of a claim; it has a hash, because some target names are too long for a suffix."""
    return f"{hashlib.sha256(target.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.{index}"


def _claim(index: int, seen: SeenFile) -> Claim:
    """Return the claim in a file; an unreadable file counts as held by an unknown owner."""
    try:
        words = json.loads(seen.content)
        return Claim(index, words["state"], words["owner"], words["failure"], seen.time)
    except (ValueError, KeyError, TypeError):
        return Claim(index, "held", "", None, seen.time)  # damaged: expires as if the process were dead


@lru_cache(maxsize=1)
def _machine() -> str:
    """Return an id of this machine's boot and this container, or "" if the system has none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _this_process() -> str:
    """Return machine, process id and start of this process, which no other process shares."""
    return f"{_machine()} {os.getpid()} {_start_of(os.getpid())}"


def _has_ended(owner: str) -> bool:
    """Return whether a process of this machine has ended; False for other machines, where this is unknown."""
    machine, _, rest = owner.rpartition(" ")
    machine, _, process = machine.rpartition(" ")
    return bool(machine) and machine == _machine() and process.isdecimal() and _start_of(int(process)) != rest


def _start_of(process: int) -> str:
    """Return the start time of a process in kernel ticks, or "" if the process does not exist; ids are reused."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
