"""Limits for names and sizes of the files that servers, workers and clients exchange; each side checks them."""

import re
from typing import Final

from data_pipeline.io.errors import InputError, printable

MAX_INPUT_BYTES: Final = 2**30  # of all uploaded files of a job
MAX_RESULT_FILES: Final = 2_000  # of a job
# The names that `UploadedFile.stored_name` returns.
_INPUT_NAME = re.compile(r"(alignment|template)_[0-9]{1,2}(\.[a-z0-9]{1,5}){1,2}")
# A name begins with a letter or digit, so that it is not hidden, not "..", and not an option of a command.
_RESULT_NAME = r"[A-Za-z0-9][A-Za-z0-9_.=+-]{0,199}"
_PATH = re.compile(rf"{_RESULT_NAME}(/{_RESULT_NAME}){{0,4}}")


def checked_input_name(name: object) -> str:
    """Return `name` unchanged. Raise `InputError` unless the server assigns such names to uploaded files."""
    if not isinstance(name, str) or not _INPUT_NAME.fullmatch(name):
        raise InputError(f"the name of an uploaded file must be like alignment_0.a3m, got '{printable(str(name), 60)}'")
    return name


def checked_result_path(path: object) -> str:
    """Return the relative `path` of a result file unchanged.

    Raise `InputError` if it could lead outside the directory of its job, or has unexpected characters or more than
    four folders.
    """
    if not isinstance(path, str) or not _PATH.fullmatch(path) or ".." in path:
        raise InputError(
            "the path of a result file must have letters, digits, '_', '.', '=', '+', '-' and at most four folders, "
            f"got '{printable(str(path), 60)}'"
        )
    return path
