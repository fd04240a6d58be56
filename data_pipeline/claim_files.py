"""The files by which processes on several machines claim work in one directory, on any file system.

Locks of the operating system do not reach over every network file system, and clocks of machines differ. A file that
is made by a hard link is there for exactly one of those who try, and all times are those of the file server.
"""

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from data_pipeline.files import require_unmoved


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
            # An answer that a network lost: the link was made all the same if the draft has two names.
            return draft.stat().st_nlink == 2
        finally:
            draft.unlink()
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a file anew at once."""
        os.replace(self._draft(content), self.directory / name)

    def touch(self, name: str) -> None:
        """Set a file's time to the file server's present; raise `OSError` if it cannot be done."""
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
        """Return the file server's present time, which is that of a file written just now."""
        name = f"clock-{self._own}"
        self.replace(name, b"")
        seen = self.read(name)
        assert seen is not None
        return seen.time

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
