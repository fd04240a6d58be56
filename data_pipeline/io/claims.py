"""Share targets among independent processes that write into one directory: each claims a target before it begins.

A claim is a file that only one process can create. The process renews the file's time while it runs. If the time is
older than `EXPIRY` seconds, or if the process has ended, another process claims the target with the next number. A
process that reads an old state therefore cannot take a claim from one that still runs.

File locks do not work on every network file system, and the clocks of machines differ. Creating a hard link succeeds
for exactly one process, and all times come from the file server.

Each process also renews a file of its own, a clock, until it closes its claims. When no process is left, the claims say
nothing that the next one needs, and the directory can be removed.
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
    """The content of a file, and the file server's time at which it was written or touched."""

    content: bytes
    time: float  # seconds


@dataclass(frozen=True)
class ClaimFiles:
    """Access to a directory of claims, which is made when it is first written to."""

    directory: Path
    _own: str = field(default_factory=lambda: secrets.token_hex(8))  # in names of files that only this process uses

    def create(self, name: str, content: bytes) -> bool:
        """Make a file with its content at once; return False, and change nothing, if there is one of this name."""
        draft = self._draft(content)
        try:
            os.link(draft, self.directory / name)
        except OSError:
            # An answer that a network lost: the link was made all the same if the draft has two names. The draft is
            # gone if the directory was removed meanwhile.
            return draft.exists() and draft.stat().st_nlink == 2
        finally:
            draft.unlink(missing_ok=True)
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file atomically; make the directory again if it is removed meanwhile."""
        while True:
            with suppress(FileNotFoundError):
                os.replace(self._draft(content), self.directory / name)
                return

    def touch(self, name: str) -> None:
        """Set a file's time to the current time of the file server; raise `OSError` on failure."""
        os.utime(self.directory / name)

    def read(self, name: str) -> SeenFile | None:
        """Return a file as the server has it now, or None if there is none.

        It is opened, because network file systems answer from memory for files that are not.
        """
        try:
            with (self.directory / name).open("rb") as file:
                return SeenFile(file.read(), os.fstat(file.fileno()).st_mtime)
        except FileNotFoundError:
            return None

    def now(self) -> float:
        """Return the current time of the file server, read from a file that has just been written."""
        name = f"clock-{self._own}"
        self.replace(name, _this_process().encode())
        while (seen := self.read(name)) is None:
            self.replace(name, _this_process().encode())
        return seen.time

    def has_others(self, expiry: float) -> bool:
        """Return whether another process has renewed its clock in the last `expiry` seconds, and not ended since."""
        now, own = self.now(), self.directory / f"clock-{self._own}"
        clocks = [self.read(path.name) for path in self.directory.glob("clock-*") if path != own]
        own.unlink(missing_ok=True)
        return any(
            seen is not None and now - seen.time <= expiry and not _has_ended(seen.content.decode(errors="replace"))
            for seen in clocks
        )

    def remove_clocks(self, expiry: float) -> None:
        """Remove the file that `now` has written, and what processes left that were killed `expiry` seconds ago."""
        with suppress(OSError):
            (self.directory / f"clock-{self._own}").unlink(missing_ok=True)
            left = [*self.directory.glob("clock-*"), *self.directory.glob("draft-*")]
            latest = max((path.stat().st_mtime for path in self.directory.iterdir()), default=0.0)
            for path in left:
                if latest - path.stat().st_mtime > expiry:
                    path.unlink(missing_ok=True)

    def _draft(self, content: bytes) -> Path:
        require_unmoved(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        draft = self.directory / f"draft-{self._own}-{secrets.token_hex(4)}"
        draft.write_bytes(content)
        return draft


DIRECTORY = ".claims"
# Longer than network file systems answer from memory, and than a busy server is silent.
EXPIRY, RENEWAL = 300.0, 30.0
State = Literal["held", "finished", "failed", "released"]
# What `take` says of a target: it is this process's now, another's, or done since this process began.
Answer = Literal["taken", "held", "done"]
# What `work_on` says of a target.
Work = Literal["none", "held", "lost"]


class LostClaimError(RuntimeError):
    """Error for work on a target that another process has claimed, because this one was silent for too long."""


@dataclass(frozen=True)
class Claim:
    """A claim as its file says it."""

    number: int
    state: State
    owner: str
    failure: str | None
    time: float  # of the file server, at which it was renewed or ended


class Claims:
    """The claims of this process in a directory that it shares with others."""

    def __init__(
        self, files: ClaimFiles, *, expiry: float = EXPIRY, renewal: float = RENEWAL, began: float | None = None
    ) -> None:
        self._files, self._expiry, self._renewal = files, expiry, renewal
        self._held: dict[str, int] = {}  # by target, the number of the claim
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

        What others have ended since `began`, a time of the file server, counts as done; by default, that is now.
        """
        claims = cls(ClaimFiles(output.absolute() / DIRECTORY), began=began)
        claims._thread = threading.Thread(target=claims._renew_always, name="claims", daemon=True)
        claims._thread.start()
        return claims

    def take(self, target: str, *, retry: bool = False) -> Answer:
        """Claim a target, and say whether this process has it now.

        A target that another process has finished or given up since this one began is "done"; one that was ended
        before is claimed again, for the caller to see what is left to do, and so is one that has failed, to `retry`.
        """
        latest = self._latest(target)
        if latest is not None:
            is_over = latest.state == "finished" or (latest.state == "failed" and not retry)
            if is_over and latest.time >= self.began:
                return "done"
            if latest.state == "held" and not self.is_dead(latest):
                return "held"
        number = 1 if latest is None else latest.number + 1
        if not self._files.create(_file(target, number), self._content(target, "held")):
            return "held"  # another process was faster
        with self._lock:
            self._held[target] = number
            self._lost.discard(target)
        return "taken"

    def holds(self, target: str) -> bool:
        """Return whether this process has claimed a target."""
        return target in self._held

    def require_held(self, target: str) -> None:
        """Raise `LostClaimError` if another process has claimed the target meanwhile."""
        if target in self._lost:
            raise LostClaimError("another process goes on with this target, because this one was silent for too long")

    def end(self, target: str, state: State, failure: str | None = None) -> None:
        """Say how work on a claimed target has ended: "finished", "failed", or "released" for others to go on."""
        with self._lock:
            number = self._held.pop(target, None)
        if number is not None:
            self._files.replace(_file(target, number), self._content(target, state, failure))

    def failures(self, targets: Iterable[str]) -> dict[str, str]:
        """Return why targets failed in any process, by target."""
        latest = {target: self._latest(target) for target in targets}
        return {
            target: claim.failure or "for an unknown reason"
            for target, claim in latest.items()
            if claim is not None and claim.state == "failed" and claim.time >= self.began
        }

    def work_on(self, target: str) -> Work:
        """Say whether a process works on a target, or one did that has died; "none" if it was ended, or never begun."""
        latest = self._latest(target)
        if latest is None or latest.state != "held":
            return "none"
        return "lost" if self.is_dead(latest) else "held"

    def history(self, target: str) -> list[Claim]:
        """Return the claims on a target that were renewed or ended since this process began, and the latest one."""
        claims = self._all(target)
        return [claim for claim in claims[:-1] if claim.time >= self.began] + claims[-1:]

    def is_dead(self, claim: Claim) -> bool:
        """Return whether the process of a held claim has ended, or was silent for too long."""
        return _has_ended(claim.owner) or self._files.now() - claim.time > self._expiry

    def renewed(self, target: str) -> float | None:
        """Return the file server's time at which the claim on a target was last renewed; None if there is none."""
        latest = self._latest(target)
        return None if latest is None else latest.time

    def renew(self) -> None:
        """Renew the clock and all claims of this process, and notice which of them others have."""
        with suppress(OSError):
            self._files.now()
        with self._lock:
            held = dict(self._held)
        for target, number in held.items():
            with suppress(OSError):  # a server that is away for a while
                self._files.touch(_file(target, number))
                if self._files.read(_file(target, number + 1)) is not None:
                    self._lost.add(target)

    def close(self) -> None:
        """Release what is still claimed, and stop the renewal."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        for target in list(self._held):
            with suppress(OSError):
                self.end(target, "released")
        self._files.remove_clocks(self._expiry)

    def _renew_always(self) -> None:
        while not self._closed.wait(self._renewal):
            self.renew()

    def _latest(self, target: str) -> Claim | None:
        """Return the claim with the highest number."""
        return next(reversed(self._all(target)), None)

    def _all(self, target: str) -> list[Claim]:
        """Return all claims on a target. Directories are not listed: network file systems list them late."""
        found: list[Claim] = []
        while (seen := self._files.read(_file(target, len(found) + 1))) is not None:
            found.append(_claim(len(found) + 1, seen))
        return found

    def _content(self, target: str, state: State, failure: str | None = None) -> bytes:
        words = {"target": target, "state": state, "owner": self._owner, "failure": failure}
        return json.dumps(words).encode()


def remove_claims(output: Path) -> None:
    """Remove the claims in an output directory and unfinished files of killed processes, unless a process uses them.

    A process that starts meanwhile may lose its claims; where there are locks, the caller lets none start.
    """
    directory = output / DIRECTORY
    if directory.is_dir() and not ClaimFiles(directory).has_others(EXPIRY):
        shutil.rmtree(directory, ignore_errors=True)
        remove_partial_files([output])


def _file(target: str, number: int) -> str:
    """Return the name of a claim's file; targets may have names that are too long with a number."""
    return f"{hashlib.sha256(target.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.{number}"


def _claim(number: int, seen: SeenFile) -> Claim:
    try:
        words = json.loads(seen.content)
        return Claim(number, words["state"], words["owner"], words["failure"], seen.time)
    except (ValueError, KeyError, TypeError):
        return Claim(number, "held", "", None, seen.time)  # damaged: it expires, as if its process were dead


@lru_cache(maxsize=1)
def _machine() -> str:
    """Return what tells this start of this machine, and this container, from others; empty if the system says none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _this_process() -> str:
    return f"{_machine()} {os.getpid()} {_start_of(os.getpid())}"


def _has_ended(owner: str) -> bool:
    """Return whether a process of this machine has ended; of others, nothing is known."""
    machine, _, rest = owner.rpartition(" ")
    machine, _, process = machine.rpartition(" ")
    return bool(machine) and machine == _machine() and process.isdecimal() and _start_of(int(process)) != rest


def _start_of(process: int) -> str:
    """Return the time at which a process started, in the kernel's ticks; empty if there is none. Numbers recur."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
