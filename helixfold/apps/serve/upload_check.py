"""Check uploaded files in a separate process with limited memory, time and open files.

The process uses the parsers of `helixfold predict` and returns their error message. A file that exhausts the limits
ends this process only.
"""

import multiprocessing
import os
import resource
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from data_pipeline.features.complexes.target_files import read_targets
from data_pipeline.io.child_processes import leave_interruptions_to_parent
from data_pipeline.io.errors import InputError
from data_pipeline.parse.text_files import read_chunks
from helixfold.apps.serve.storage import file_name_of

# Reading an mmCIF file takes up to 26 times its size in memory; reading an alignment takes little.
_MAX_ADDED_MEMORY: Final = 160 * 2**20  # in addition to what the process has when it starts
_MAX_UNPACKED_BYTES: Final = 64 * 2**20  # bytes of all files of an upload
_MAX_SECONDS: Final = 30  # until the answer, and of processor time
_MAX_OPEN_FILES: Final = 256
_START_METHOD: Final = "forkserver"


def prepare_checks() -> None:
    """Start the process from which the checking processes are forked, with the parsers imported to save time.

    Return after a first process without a task has ended.
    """
    context = multiprocessing.get_context(_START_METHOD)
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_nothing)
    process.start()
    process.join()


def check_upload(request: Mapping[str, Any], directory: Path) -> None:
    """Read the uploaded files of a request, in `directory`, in a new process.

    Raise `InputError` if they cannot be used for its sequence, or if reading them exceeds the limits.
    """
    context = multiprocessing.get_context(_START_METHOD)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_check, args=(dict(request), directory, sender), daemon=True)
    process.start()
    sender.close()
    try:
        problem = receiver.recv() if receiver.poll(_MAX_SECONDS) else _too_much("time")
    except EOFError:
        problem = _too_much("memory or time")
    finally:
        process.kill()
        process.join()
        receiver.close()
    if problem is not None:
        raise InputError(problem)


def request_targets(request: Mapping[str, Any], directory: Path) -> Any:
    """Return the targets of a request with its files in `directory`, read as by `helixfold predict`.

    This writes the sequence to a FASTA file in `directory`. Raise `InputError` for invalid files.
    """
    fasta = directory / "target.fasta"
    fasta.write_text(fasta_of(request))
    alignments = [directory / each for each in request["alignments"]]
    templates = [directory / each for each in request["templates"]]
    return read_targets([fasta], alignments, templates, pair_mode=request["options"]["pairing"])


def fasta_of(request: Mapping[str, Any]) -> str:
    """Return the FASTA text of a request, with its chain ids in the header if it has any."""
    ids = ":".join(request["chain_ids"])
    header = f">{file_name_of(str(request['name']))}" + (f" chain_ids={ids}" if ids else "")
    return f"{header}\n{request['sequence']}\n"


def _nothing() -> None:
    """Do nothing, so that the process that runs this has only imported the parsers."""
    pass


def _too_much(what: str) -> str:
    """Return the message for uploads that take too much of `what`, memory or time."""
    return f"reading the uploaded files takes too much {what}; upload smaller files"


def _check(request: dict[str, Any], directory: Path, answer: Connection) -> None:
    """Read the uploaded files with limited resources, and send the problem, or None, to the server."""
    leave_interruptions_to_parent()
    os.nice(10)  # so that the server still answers other requests quickly
    for kind, limit in (
        (resource.RLIMIT_DATA, _writable_memory() + _MAX_ADDED_MEMORY),
        (resource.RLIMIT_CPU, _MAX_SECONDS),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    try:
        bytes_left = _MAX_UNPACKED_BYTES
        for name in (*request["alignments"], *request["templates"]):
            bytes_left -= sum(map(len, read_chunks(directory / name, bytes_left)))
        request_targets(request, directory)
    except (InputError, ValueError) as error:
        answer.send(str(error).replace(f"{directory}{os.sep}", ""))
    except MemoryError:
        answer.send(_too_much("memory"))
    else:
        answer.send(None)


def _writable_memory() -> int:
    """Return the writable memory of this process in bytes, as RLIMIT_DATA counts it (on Linux; 0 elsewhere)."""
    statistics_file = Path("/proc/self/statm")
    return int(statistics_file.read_text().split()[5]) * resource.getpagesize() if statistics_file.is_file() else 0
