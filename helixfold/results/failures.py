"""Failures of targets: their messages, failures.json, and the exit code of a batch.

`SOME_FAILED` and `SERVER_UNAVAILABLE` are exit codes.
"""

import traceback
from collections.abc import Collection, Mapping
from pathlib import Path

from data_pipeline.io.errors import InputError, InputProblems, ServerUnavailableError
from data_pipeline.io.json_files import read_json
from data_pipeline.parse.fasta import directory_name, target_name_problem
from helixfold.results.file_table import FAILURES
from helixfold.results.json_object import AGAIN
from helixfold.results.writing import to_json, write_file

# Exit codes of a batch with failures.
SOME_FAILED, SERVER_UNAVAILABLE = 1, 3
# Errors that folding a target may raise; any other error is a bug.
EXPECTED_ERRORS = (RuntimeError, MemoryError, OSError, ValueError)


def exit_code_for(failures: Mapping[str, str]) -> int:
    """Return the exit code of a batch with these failures (reasons by target).

    It is 0 without failures, 3 if all targets failed because a server is unavailable, and 1 otherwise.
    """
    if not failures:
        return 0
    unavailable = f"{ServerUnavailableError.__name__}: "
    return SERVER_UNAVAILABLE if all(text.startswith(unavailable) for text in failures.values()) else SOME_FAILED


def failure_text(error: Exception) -> str:
    """Return the reason of a failure: the error's type and message.

    For an error that is not one of `EXPECTED_ERRORS`, it also names the place in the program.
    """
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, EXPECTED_ERRORS):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} (in {Path(last.filename).name}, line {last.lineno}: a mistake in the program, please report it)"


def failures_of_input(problems: InputProblems, names: Collection[str]) -> dict[str, str]:
    """Return the errors of invalid targets by the names of their directories, as written to failures.json.

    `names` are the directories of valid targets. An error without its own directory, for example because the target's
    name is invalid or repeated, gets a number instead.
    """
    failures: dict[str, str] = {}
    for position, (name, text) in enumerate(problems.named, start=1):
        directory = "" if target_name_problem(name) else directory_name(name)
        is_unique = directory and directory not in names and directory not in failures
        failures[directory if is_unique else f"invalid input {position}"] = f"{InputError.__name__}: {text}"
    return failures


def write_failures(directory: Path, failures: Mapping[str, str], file: str = FAILURES.name()) -> None:
    """Write the reasons of failures by target name to `file` in a directory; delete the file if there are none."""
    write_file(directory / file, to_json(failures, indent=4) if failures else None)


def failures_in(output: Path) -> dict[str, str]:
    """Read the reasons of failed targets, by name, from failures.json in an output directory.

    Return an empty dict if it is missing. If it is damaged, the error is returned as the reason of "failures.json".
    """
    path = FAILURES.path(output)
    if not path.is_file():
        return {}
    try:
        content = read_json(path, AGAIN)
    except InputError as error:
        return {FAILURES.name(): str(error)}
    return {str(name): str(why) for name, why in content.items()} if isinstance(content, dict) else {}
