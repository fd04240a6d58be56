"""The files of the service: inputs and results of each job, in directories named by the ids of the jobs.

DATA/service.sqlite, tokens.json, secret.key
DATA/jobs/<id>/inputs/<name>           uploaded files, under names that the server assigns
DATA/jobs/<id>/<attempt>/<path>        result files that a worker sent in this attempt
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
from data_pipeline.io.files import atomic_write, flush_to_disk, os_errors_as_input_errors, remove_partial_files
from data_pipeline.parse.fasta import file_name_problem
from helixfold.apps.serve.queue.jobs import Job
from helixfold.apps.serve.transfer import checked_input_name, checked_result_path

DATABASE_FILE: Final = "service.sqlite"
TOKEN_FILE: Final = "tokens.json"
TOKEN_LOCK: Final = "tokens.lock"
SERVER_LOCK: Final = "server.lock"
_SECRET_FILE: Final = "secret.key"
_INPUTS_FOLDER: Final = "inputs"
_PRIVATE_FILES: Final = (
    *(DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"),
    *(TOKEN_FILE, TOKEN_LOCK, SERVER_LOCK, _SECRET_FILE),
)
_JOB_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Storage:
    """The data directory of a service."""

    directory: Path

    def prepare(self) -> None:
        """Create the directory and its subdirectory for jobs, or correct its permissions: only the owner can read it.

        Also remove incomplete secret files of a killed server. Raise `InputError` if this fails.
        """
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
                flush_to_disk(flushed)

    @property
    def database(self) -> Path:
        """Return the path of the database."""
        return self.directory / DATABASE_FILE

    def secret(self) -> bytes:
        """Return the secret with which this service signs sessions and derives the ids of searches.

        At the first call, 32 random bytes are stored as the secret.
        """
        path = self.directory / _SECRET_FILE
        if not path.is_file() or path.stat().st_size < 32:
            with atomic_write(path) as temporary:
                temporary.write_bytes(secrets.token_bytes(32))
            path.chmod(0o600)
            flush_to_disk(self.directory)
        return path.read_bytes()

    def job(self, job: str) -> Path:
        """Return the directory of a job. Raise ValueError if `job` is not an id."""
        if not _JOB_ID.fullmatch(job):
            raise ValueError("not a job id")
        return self.directory / "jobs" / job

    def inputs(self, job: str) -> Path:
        """Return the directory of the files that were uploaded for a job."""
        return self.job(job) / _INPUTS_FOLDER

    def input_file(self, job: str, name: str) -> Path:
        """Return the path of an uploaded file. Raise `InputError` for a name that the server does not assign."""
        return self.inputs(job) / checked_input_name(name)

    def attempt(self, job: str, attempt: int) -> Path:
        """Return the directory of the result files that a worker sends in an attempt."""
        return self.job(job) / str(attempt)

    def attempt_file(self, job: str, attempt: int, path: str) -> Path:
        """Return the path of a result file of an attempt. Raise `InputError` if it may be outside the directory."""
        return self.attempt(job, attempt) / checked_result_path(path)

    def results(self, job: Job) -> Iterator[tuple[str, int]]:
        """Yield the relative path and the size in bytes of each file of a job's result, sorted by path.

        Yield nothing for a job without a result. Symbolic links are left out.
        """
        if job.result is None:
            return
        directory = self.attempt(job.id, job.result)
        for path in sorted(directory.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(directory).as_posix(), path.stat().st_size

    def result_file(self, job: Job, path: str) -> Path | None:
        """Return the path at which a file of a job's result is stored; None if it does not exist.

        `path` is relative to the result. An invalid path and a symbolic link count as missing.
        """
        if job.result is None:
            return None
        try:
            file = self.attempt_file(job.id, job.result, path)
        except ValueError:
            return None
        return file if file.is_file() and not file.is_symlink() else None

    def remove(self, job: str) -> None:
        """Remove the directory of a job with all its files, if it exists."""
        shutil.rmtree(self.job(job), ignore_errors=True)

    def remove_other_attempts(self, job: Job) -> None:
        """Remove the files of all attempts except the one that is the result."""
        for path in self.job(job.id).glob("[0-9]*"):
            if path.is_dir() and path.name != str(job.result):
                shutil.rmtree(path, ignore_errors=True)

    def remove_unknown(self, job_ids: set[str]) -> None:
        """Remove the files of jobs other than `job_ids`, because the server was killed before it stored these jobs."""
        for path in (self.directory / "jobs").iterdir():
            if path.name not in job_ids:
                shutil.rmtree(path, ignore_errors=True)

    def flush_names(self, directory: Path) -> None:
        """Flush a directory, its subdirectories and the directories above, so that file names survive a power cut."""
        directories_above = takewhile(lambda folder: folder != self.directory.parent, directory.parents)
        for folder in (*(Path(folder) for folder, _, _ in os.walk(directory)), *directories_above):
            flush_to_disk(folder)

    def sizes(self, directory: Path) -> dict[Path, int]:
        """Return the size in bytes of each file below a directory, by path."""
        return {path: path.stat().st_size for path in directory.rglob("*") if path.is_file()}


def make_private(directory: Path) -> None:
    """Create the data directory of a service, or correct its permissions, so that only its owner can read it.

    Raise `InputError` if this fails, or if all users share the directory, as /tmp. A token lock that other users could
    open is removed.
    """
    with os_errors_as_input_errors(directory, "cannot be made private"):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if directory.stat().st_mode & stat.S_ISVTX:
            raise InputError.at(directory, "all users of this machine share it; choose another --data directory")
        _restrict(directory)
        lock = directory / TOKEN_LOCK
        if lock.exists() and lock.stat().st_mode & 0o077:
            lock.unlink()  # another user may have opened it, and could hold it forever
        _restrict(*(directory / name for name in _PRIVATE_FILES))


def _restrict(*paths: Path) -> None:
    """Give only the owner access to these directories and files; skip those that do not exist."""
    for path in paths:
        if path.exists() and not path.is_symlink():
            mode = 0o700 if path.is_dir() else 0o600
            if stat.S_IMODE(path.stat().st_mode) != mode:
                path.chmod(mode)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that its content survives a power cut. Its name survives once `flush_names` was called.

    Missing directories are created. Raise `InputError` if the file cannot be written.
    """
    with os_errors_as_input_errors(path.name, "cannot be stored"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def file_name_of(name: str) -> str:
    """Convert the name of a job to a file name of at most 60 ASCII letters, digits, '_' and '-'.

    If none are left, return "protein"; a name that Windows reserves gets the prefix "protein_".
    """
    letters = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_-")[:60].rstrip("_-")
    if not letters:
        return "protein"
    # Some names are devices on Windows.
    return letters if file_name_problem(letters) is None else f"protein_{letters}"


def checked_name(name: str) -> str:
    """Return a job name with single spaces between words.

    Raise `InputError` if it has more than 120 characters or is not printable.
    """
    text = " ".join(name.split())
    if len(text) > 120 or not text.isprintable():
        raise InputError(f"a job name must have at most 120 printable characters, got '{printable(name, 40)}'")
    return text
