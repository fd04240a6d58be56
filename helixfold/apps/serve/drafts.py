"""Uploads of forms that were not submitted yet, kept for a while so that their users need not choose them again."""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from data_pipeline.io.errors import printable
from helixfold.apps.serve.queue.jobs import new_id
from helixfold.apps.serve.storage import write_durably
from helixfold.apps.serve.submission import MAX_FILES, UploadedFile

_KEEP_SECONDS: Final = 3_600.0
_MOST_DRAFTS: Final = 3  # of a user
_INDEX_FILE: Final = "index.json"
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Drafts:
    """Drafts in a directory; each has at most so many bytes, and is found by its user alone."""

    directory: Path
    max_bytes: int
    clock: Callable[[], float] = time.time

    def keep(self, user: str, files: Sequence[UploadedFile]) -> str | None:
        """Keep the files of a form and return their id; None if there are none, or too many to keep."""
        if not 0 < len(files) <= MAX_FILES or sum(len(file.content) for file in files) > self.max_bytes:
            return None
        draft, own = new_id(), self._of_user(user)
        for number, file in enumerate(files):
            write_durably(own / draft / str(number), file.content)
        index = [{"kind": file.kind, "name": printable(file.name, 200)} for file in files]
        write_durably(own / draft / _INDEX_FILE, json.dumps(index).encode())
        for old in sorted(own.iterdir(), key=_modified)[:-_MOST_DRAFTS]:
            shutil.rmtree(old, ignore_errors=True)
        return draft

    def files(self, user: str, draft: str) -> list[UploadedFile]:
        """Return the files of a user's draft; none if it has ended or never was."""
        folder = self._of_user(user) / draft
        if not _ID.fullmatch(draft) or not (folder / _INDEX_FILE).is_file():
            return []
        try:
            index = json.loads((folder / _INDEX_FILE).read_text())
            content = [(folder / str(number)).read_bytes() for number in range(len(index))]
        except FileNotFoundError:  # another request of the user, with a newer draft, removes this one
            return []
        return [UploadedFile(**entry, content=each) for entry, each in zip(index, content, strict=True)]

    def remove(self, user: str, draft: str) -> None:
        """Remove a user's draft, if there is one."""
        if _ID.fullmatch(draft):
            shutil.rmtree(self._of_user(user) / draft, ignore_errors=True)

    def remove_old(self) -> None:
        """Remove the drafts that nobody has submitted for an hour."""
        for folder in self.directory.glob("*/*"):
            if _modified(folder) < self.clock() - _KEEP_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

    def _of_user(self, user: str) -> Path:
        return self.directory / hashlib.sha256(user.encode()).hexdigest()[:32]


def _modified(folder: Path) -> float:
    """Return when a draft was written; 0 if another request has just removed it."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
