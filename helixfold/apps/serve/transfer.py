"""Names and sizes of the files that servers, workers and clients send each other; each side checks what it receives."""

import re
from typing import Final

from data_pipeline.io.errors import InputError, printable

MAX_INPUT_BYTES: Final = 2**30  # of all files that are uploaded for a job
MAX_RESULT_FILES: Final = 2_000
# The names that `UploadedFile.stored_name` gives.
_INPUT = re.compile(r"(alignment|template)_[0-9]{1,2}(\.[a-z0-9]{1,5}){1,2}")
# A name begins with a letter or digit: it is not hidden, does not lead elsewhere, and is not read as an option.
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.=+-]{0,199}"
_PATH = re.compile(rf"{_NAME}(/{_NAME}){{0,4}}")


def checked_input_name(name: object) -> str:
    """Return the name of an uploaded file; raise `InputError` for a name that the server does not give."""
    if not isinstance(name, str) or not _INPUT.fullmatch(name):
        raise InputError(f"the name of an uploaded file must be like alignment_0.a3m, got '{printable(str(name), 60)}'")
    return name


def checked_result_path(path: object) -> str:
    """Return the path of a result file in the directory of its job; raise `InputError` if it may lead elsewhere."""
    if not isinstance(path, str) or not _PATH.fullmatch(path) or ".." in path:
        raise InputError(
            "the path of a result file must have letters, digits, '_', '.', '=', '+', '-' and at most four folders, "
            f"got '{printable(str(path), 60)}'"
        )
    return path
