"""Do a job of a service on a node of a cluster, whose worker is on another machine and shares a directory with it.

They speak by files in the job's directory: how far the job is, and that it shall stop.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from data_pipeline.errors import InputError
from data_pipeline.files import atomic_write
from data_pipeline.json_files import read_json
from helixfold.serve.worker.options import WorkerOptions
from helixfold.serve.worker.process import JobProcess, Outcome, Progress

_PROGRESS_FILE: Final = "progress.json"
_STOP_FILE: Final = "stop"
# The process that predicts, which stays for the next job of this worker on the node.
_process: JobProcess | None = None


def do_on_node(kind: str, content: Mapping[str, Any], directory: Path, options: WorkerOptions) -> Outcome:
    """Do a job whose files lie in a directory, until it is told to stop or the directory is gone."""
    global _process  # noqa: PLW0603  # Parsl calls a function, and keeps the process around it
    if _process is None:
        _process = JobProcess(options)
    told: dict[str, Any] = {}

    def keep_on(progress: Progress) -> bool:
        nonlocal told
        if is_stopped(directory):
            return False
        if progress.to_dict() != told:
            told = progress.to_dict()
            with atomic_write(directory / _PROGRESS_FILE, sync=False) as temporary:
                temporary.write_text(json.dumps(told))
        return True

    if is_stopped(directory):
        return Outcome(error="stopped")
    return _process.do(kind, content, directory, keep_on)


def read_progress(directory: Path) -> Progress | None:
    """Return how far a node is with a job; None if it has not begun."""
    try:
        content = read_json(directory / _PROGRESS_FILE, "it is written again")
    except InputError:
        return None
    return Progress(stages=list(content["stages"]), lines=list(content["lines"]))


def stop_on_node(directory: Path) -> None:
    """Let the node that does a job stop."""
    (directory / _STOP_FILE).touch()


def is_stopped(directory: Path) -> bool:
    """Return whether a job shall not go on: its worker said so, or has removed its directory."""
    return not directory.is_dir() or (directory / _STOP_FILE).exists()
