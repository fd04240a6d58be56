"""The files of the service: inputs and results of each job, in directories that are named by ids alone.

DATA/service.sqlite, tokens.json, secret.key
DATA/jobs/<id>/inputs/<name>           what a user uploaded, under names given here
DATA/jobs/<id>/<attempt>/<path>        what a worker sent of that attempt
"""

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write, os_errors_as_input_errors, remove_partial_files
from data_pipeline.parse.fasta import file_name_problem
from helixfold.apps.serve.queue.jobs import Job
from helixfold.apps.serve.transfer import checked_input_name, checked_result_path

DATABASE_FILE: Final = "service.sqlite"
TOKEN_FILE: Final = "tokens.json"
TOKEN_LOCK: Final = "tokens.lock"
SERVER_LOCK: Final = "server.lock"
_SECRET_FILE: Final = "secret.key"
_INPUTS: Final = "inputs"
_OWN_FILES: Final = (
    *(DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"),
    *(TOKEN_FILE, TOKEN_LOCK, SERVER_LOCK, _SECRET_FILE),
)
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Storage:
    """The data directory of a service."""

    directory: Path

    def prepare(self) -> None:
        """Make the directory, which only its owner can read. Raise `InputError` if that cannot be done."""
        make_private(self.directory)
        with os_errors_as_input_errors(self.directory, "cannot be prepared"):
            remove_partial_files([self.directory], re.escape(_SECRET_FILE))
            # Earlier versions kept the uploads of refused forms there.
            shutil.rmtree(self.directory / "drafts", ignore_errors=True)
            jobs = self.directory / "jobs"
            jobs.mkdir(exist_ok=True, mode=0o700)
            for folder, _, files in os.walk(jobs):
                _restrict(Path(folder), *(Path(folder, name) for name in files))
            for flushed in (self.directory, self.directory.parent):
                _flush_folder(flushed)

    @property
    def database(self) -> Path:
        """Return the file of the database."""
        return self.directory / DATABASE_FILE

    def secret(self) -> bytes:
        """Return the secret of this service, by which it signs sessions; it is made at the first start."""
        path = self.directory / _SECRET_FILE
        if not path.is_file() or path.stat().st_size < 32:
            with atomic_write(path) as temporary:
                temporary.write_bytes(secrets.token_bytes(32))
            path.chmod(0o600)
            _flush_folder(self.directory)
        return path.read_bytes()

    def job(self, job: str) -> Path:
        """Return the directory of a job. Raise ValueError for what is no id."""
        if not _ID.fullmatch(job):
            raise ValueError("not a job id")
        return self.directory / "jobs" / job

    def inputs(self, job: str) -> Path:
        """Return the directory of what was uploaded for a job."""
        return self.job(job) / _INPUTS

    def input_file(self, job: str, name: str) -> Path:
        """Return a file that was uploaded for a job. Raise `InputError` for a name that the server does not give."""
        return self.inputs(job) / checked_input_name(name)

    def attempt(self, job: str, attempt: int) -> Path:
        """Return the directory of what a worker sends of an attempt."""
        return self.job(job) / str(attempt)

    def attempt_file(self, job: str, attempt: int, path: str) -> Path:
        """Return where a file of an attempt lies. Raise `InputError` for a path that may lead elsewhere."""
        return self.attempt(job, attempt) / checked_result_path(path)

    def results(self, job: Job) -> Iterator[tuple[str, int]]:
        """Yield the path and the size of each file of a job's result, by name."""
        if job.result is None:
            return
        directory = self.attempt(job.id, job.result)
        for path in sorted(directory.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(directory).as_posix(), path.stat().st_size

    def result_file(self, job: Job, path: str) -> Path | None:
        """Return a file of a job's result; None if there is none at this path."""
        if job.result is None:
            return None
        try:
            found = self.attempt_file(job.id, job.result, path)
        except ValueError:
            return None
        return found if found.is_file() and not found.is_symlink() else None

    def remove(self, job: str) -> None:
        """Remove all files of a job."""
        shutil.rmtree(self.job(job), ignore_errors=True)

    def remove_other_attempts(self, job: Job) -> None:
        """Remove what workers sent of attempts that are not the result."""
        for path in self.job(job.id).glob("[0-9]*"):
            if path.is_dir() and path.name != str(job.result):
                shutil.rmtree(path, ignore_errors=True)

    def remove_unknown(self, known: set[str]) -> None:
        """Remove the files of jobs that are not in the database: a server was killed before they were."""
        for path in (self.directory / "jobs").iterdir():
            if path.name not in known:
                shutil.rmtree(path, ignore_errors=True)

    def flush_names(self, directory: Path) -> None:
        """Let the names of all files in a directory, and its own, survive a power cut, as their content does."""
        above = takewhile(lambda folder: folder != self.directory.parent, directory.parents)
        for folder in (*(Path(folder) for folder, _, _ in os.walk(directory)), *above):
            _flush_folder(folder)

    def sizes(self, directory: Path) -> dict[Path, int]:
        """Return the bytes of each file below a directory."""
        return {path: path.stat().st_size for path in directory.rglob("*") if path.is_file()}


def make_private(directory: Path) -> None:
    """Make the data directory of a service, and let only its owner read what the service keeps there.

    The modes of a directory that others could read are repaired. Raise `InputError` if that cannot be done.
    """
    with os_errors_as_input_errors(directory, "cannot be made private"):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if directory.stat().st_mode & stat.S_ISVTX:
            raise InputError.at(directory, "all users of this machine share it; choose another --data directory")
        _restrict(directory)
        lock = directory / TOKEN_LOCK
        if lock.exists() and lock.stat().st_mode & 0o077:
            lock.unlink()  # another user may have opened it, and could hold it for ever
        _restrict(*(directory / name for name in _OWN_FILES))


def _restrict(*paths: Path) -> None:
    """Let only their owner use those of these directories and files that exist."""
    for path in paths:
        if path.exists() and not path.is_symlink():
            mode = 0o700 if path.is_dir() else 0o600
            if stat.S_IMODE(path.stat().st_mode) != mode:
                path.chmod(mode)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that its content survives a power cut; its name does once its directory is flushed."""
    with os_errors_as_input_errors(path.name, "cannot be stored"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def file_name_of(name: str) -> str:
    """Return a name for files of a job from the user's name of it: ASCII letters, digits, '_' and '-' alone."""
    letters = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_-")[:60].rstrip("_-")
    if not letters:
        return "protein"
    # Some names are devices on Windows.
    return letters if file_name_problem(letters) is None else f"protein_{letters}"


def checked_name(name: str) -> str:
    """Return the name that a user gives a job, for people. Raise `InputError` for one that cannot be shown."""
    text = " ".join(name.split())
    if len(text) > 120 or not text.isprintable():
        raise InputError(f"a job name must have at most 120 printable characters, got '{printable(name, 40)}'")
    return text
