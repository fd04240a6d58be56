"""Files that appear whole or not at all, and what can be read as a file."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def unreadable_kind(path: str | os.PathLike[str]) -> str | None:
    """Why reading there would never end or give nothing, or None for a plain file; an `OSError` if there is none."""
    mode = os.stat(path).st_mode
    kinds = (
        (stat.S_ISDIR, "it is a directory; name the files in it"),
        (stat.S_ISFIFO, "it is a pipe, and files are read more than once; write it to a file first"),
        (stat.S_ISREG, None),
    )
    return next((problem for is_kind, problem in kinds if is_kind(mode)), "it is a device or socket, not a file")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path` to write to; it takes `path`'s place at the end, or is removed after an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    temporary.touch(exist_ok=False)
    permissions = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(permissions)  # safetensors makes its files private
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
