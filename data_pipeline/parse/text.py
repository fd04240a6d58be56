"""Opening the text files people bring: plain or gzip, bounded in size, with one clear error for each way to fail."""

import gzip
import zlib
from io import BufferedIOBase
from os import PathLike
from pathlib import Path

from data_pipeline.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_CHUNK = 2**20


def read_text_bytes(path: str | PathLike[str], max_bytes: int) -> bytes:
    """The file's content, unpacked if it is gzip (told by content, not by name), with `\\n` line ends.

    Reading stops with an `InputError` beyond `max_bytes` of unpacked content, so a gzip bomb costs no more than that.
    """
    try:
        with Path(path).open("rb") as file:
            packed = file.peek(2)[:2] == _GZIP_MAGIC
            if not packed:
                content = _read_bounded(path, file, max_bytes)
            else:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    content = _read_bounded(path, unpacked, max_bytes)
    except InputError:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError.at(path, "the gzip file is truncated or damaged; copy or fetch it again") from error
    except OSError as error:
        raise InputError.at(path, f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the path itself
        raise InputError.at(path, f"cannot be read: {error}") from error
    if content.startswith(_UTF16_MARKS):
        raise InputError.at(path, "this is UTF-16 text; save it as plain text (UTF-8)")
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return content.removeprefix(_UTF8_MARK)


def _read_bounded(path: str | PathLike[str], stream: BufferedIOBase, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := stream.read(_CHUNK):
        size += len(chunk)
        if size > max_bytes:
            raise InputError.at(path, f"it holds more than {max_bytes:,} bytes of text, the most that is read")
        chunks.append(chunk)
    return b"".join(chunks)
