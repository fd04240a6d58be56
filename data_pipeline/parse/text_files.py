"""Read plain or gzip text files up to a maximum size; failures raise `InputError` with what is wrong.

`MAX_LINE_BYTES` is the max length of a line.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from os import PathLike
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import os_errors_as_input_errors, require_file

MAX_LINE_BYTES = 2**21

_GZIP_MAGIC = b"\x1f\x8b"
_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_CHUNK = 2**20
# Gzip compresses any text at most 1,030-fold, and an alignment that is nearly all gaps about 100-fold.
_MAX_RATIO, _HARMLESS_BYTES = 250, 2**22


def read_text_bytes(path: str | PathLike[str], max_bytes: int) -> bytes:
    """Return a file's content with `\\n` line ends; gzip is recognised by content, not by name, and unpacked.

    Raise `InputError` if the unpacked content exceeds `max_bytes`, so a gzip bomb cannot use more memory.
    """
    content = b"".join(read_chunks(path, max_bytes))
    if content.startswith(_UTF16_BOMS):
        raise _utf16(path)
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return content.removeprefix(_UTF8_BOM)


def read_text(path: str | PathLike[str], max_bytes: int, advice: str) -> str:
    """Return the text of a UTF-8 file, read like `read_text_bytes`; `advice` ends the error for other encodings."""
    try:
        return read_text_bytes(path, max_bytes).decode()
    except UnicodeDecodeError as error:
        raise InputError.at(path, f"not UTF-8 text; {advice}") from error


def read_lines(path: str | PathLike[str], max_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a plain or gzip file without line ends, and without loading the whole file into memory.

    Raise `InputError` for more than `max_bytes` (unpacked) and for a line over `MAX_LINE_BYTES`.
    """
    return split_lines(read_chunks(path, max_bytes), path)


def content_lines(content: bytes, path: str | PathLike[str]) -> Iterator[bytes]:
    """Yield the lines of `content` without line ends; `path` appears in errors."""
    return split_lines((content[start : start + _CHUNK] for start in range(0, len(content), _CHUNK)), path)


def split_lines(chunks: Iterable[bytes], path: str | PathLike[str]) -> Iterator[bytes]:
    """Yield lines without their `\\n`, `\\r\\n` or `\\r`, and without a UTF-8 byte-order mark.

    Raise `InputError` for a line over `MAX_LINE_BYTES`, and for UTF-16.
    """
    line_parts: list[bytes] = []  # parts of a line that continues in the next chunk
    size, line_number, after_return, at_start = 0, 1, False, True
    for raw in chunks:
        chunk = raw
        if at_start:
            if chunk.startswith(_UTF16_BOMS):
                raise _utf16(path)
            chunk, at_start = chunk.removeprefix(_UTF8_BOM), False
        if after_return and chunk:
            chunk, after_return = chunk.removeprefix(b"\n"), False
        after_return = chunk.endswith(b"\r") or (after_return and not chunk)
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *others = chunk.split(b"\n")
        line_parts.append(first)
        size += len(first)
        if size > MAX_LINE_BYTES:
            raise InputError.at(
                path, f"the line is longer than {MAX_LINE_BYTES:,} bytes; is this a text file?", line=line_number
            )
        if others:
            yield b"".join(line_parts)
            yield from others[:-1]
            line_parts, size, line_number = [others[-1]], len(others[-1]), line_number + len(others)
    if size:
        yield b"".join(line_parts)


def read_chunks(path: str | PathLike[str], max_bytes: int) -> Iterator[bytes]:
    """Yield the content of a plain or gzip file in unpacked chunks.

    Raise `InputError` for more than `max_bytes` (unpacked), and for a gzip file that unpacks to more than 250 times its
    size.
    """
    require_file(path)
    size = 0
    with unpacked(path) as stream:
        packed: Any = stream.fileobj if isinstance(stream, gzip.GzipFile) else None
        while chunk := stream.read(_CHUNK):
            size += len(chunk)
            if size > max_bytes:
                raise InputError.at(path, f"the text is longer than the maximum of {max_bytes:,} bytes")
            if packed is not None and size > _HARMLESS_BYTES and size > _MAX_RATIO * packed.tell():
                problem = f"it unpacks to more than {_MAX_RATIO} times its size, unlike sequences or structures"
                raise InputError.at(path, f"{problem}; is it a gzip bomb?")
            yield chunk


@contextmanager
def unpacked(path: str | PathLike[str], what: str = "") -> Iterator[BufferedReader | gzip.GzipFile]:
    """Open a plain or gzip file for reading unpacked bytes; system and gzip errors while it is open are `InputError`s.

    Messages of system errors begin with `what`, such as "the database ".
    """
    with os_errors_as_input_errors(path, f"{what}cannot be read"), Path(path).open("rb") as file:
        try:
            yield gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP_MAGIC else file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError.at(path, "the gzip file is truncated or damaged; copy or fetch it again") from error


def _utf16(path: str | PathLike[str]) -> InputError:
    return InputError.at(path, "this is UTF-16 text; save it as plain text (UTF-8)")
