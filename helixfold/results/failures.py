"""Targets that failed: the errors that are expected of one, failures.json, and the exit code of a batch."""

import traceback
from collections.abc import Collection, Mapping
from pathlib import Path

from data_pipeline.io.errors import InputError, InputProblems, ServerUnavailableError
from data_pipeline.io.json_files import read_json
from data_pipeline.parse.fasta import directory_name, target_name_problem
from helixfold.results.file_table import FAILURES
from helixfold.results.json_object import AGAIN
from helixfold.results.writing import to_json, write_file

SOME_FAILED, SERVER_UNAVAILABLE = 1, 3
# Errors that a target is known to end with; any other is a mistake in the program.
EXPECTED_ERRORS = (RuntimeError, MemoryError, OSError, ValueError)


def exit_code_for(failures: Mapping[str, str]) -> int:
    """Return the exit code of a batch whose targets failed for these reasons.

    It is 0 if none failed, 3 if all failed because a server is unavailable, and 1 otherwise.
    """
    if not failures:
        return 0
    unavailable = f"{ServerUnavailableError.__name__}: "
    return SERVER_UNAVAILABLE if all(text.startswith(unavailable) for text in failures.values()) else SOME_FAILED


def failure_text(error: Exception) -> str:
    """Say why an item failed, with the place in the program if the error is unexpected."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, EXPECTED_ERRORS):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} (in {Path(last.filename).name}, line {last.lineno}: a mistake in the program, please report it)"


def failures_of_input(problems: InputProblems, names: Collection[str]) -> dict[str, str]:
    """Return the errors of invalid targets as failures.json has them, by the names of their directories.

    `names` are the directories of valid targets. An error of no target, such as a missing name, is counted instead, and
    so is an error of a target whose directory another one has.
    """
    found: dict[str, str] = {}
    for number, (name, text) in enumerate(problems.named, start=1):
        directory = "" if target_name_problem(name) else directory_name(name)
        is_own = directory and directory not in names and directory not in found
        found[directory if is_own else f"invalid input {number}"] = f"{InputError.__name__}: {text}"
    return found


def write_failures(directory: Path, failures: Mapping[str, str], file: str = FAILURES.name()) -> None:
    """Write the reasons of failures by target name to failures.json; delete the file if there are none."""
    write_file(directory / file, to_json(failures, indent=4) if failures else None)


def failures_in(output: Path) -> dict[str, str]:
    """Return the reasons of the targets that failed, from failures.json of an output directory."""
    path = FAILURES.path(output)
    if not path.is_file():
        return {}
    try:
        content = read_json(path, AGAIN)
    except InputError as error:
        return {FAILURES.name(): str(error)}
    return {str(name): str(why) for name, why in content.items()} if isinstance(content, dict) else {}
