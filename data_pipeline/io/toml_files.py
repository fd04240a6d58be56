"""Read untrusted or damaged TOML within limits on size, time and memory."""

import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

from data_pipeline.io.errors import InputError, did_you_mean, printable
from data_pipeline.parse.text_files import read_text_bytes

_MAX_BYTES: Final = 2**20
# Parsing a dotted name takes quadratic time in the number of its parts, and up to 8 KiB of memory per part.
_MAX_LINE_BYTES: Final = 2**13
_MAX_DOTS: Final = 20_000


def require_keys(path: Path, values: Iterable[str], known: Collection[str], place: str = "") -> None:
    """Raise `InputError` for `path` if `values` has keys that are not in `known`.

    `place` names the table, such as "[templates]: ", and begins the message.
    """
    if unknown := sorted(set(values) - set(known)):
        choices = f"{', '.join(known)}{did_you_mean(unknown[0], known)}"
        raise InputError.at(path, f"{place}unknown {printable(', '.join(unknown))}; it can hold {choices}")


def read_toml(path: Path, kind: str) -> dict[str, Any]:
    """Return the content of a TOML file of at most 1 MiB, plain or gzip.

    `kind` is the expected kind of file, such as "TOML profile of databases". Raise `InputError` with it if the file is
    not valid.
    """
    content = read_text_bytes(path, _MAX_BYTES)
    if (dots := content.count(b".")) > _MAX_DOTS:
        raise InputError.at(path, f"not a {kind}: it has {dots:,} dots; the limit is {_MAX_DOTS:,}")
    for line_number, line in enumerate(content.split(b"\n"), start=1):
        if len(line) > _MAX_LINE_BYTES:
            raise InputError.at(path, f"the line is longer than {_MAX_LINE_BYTES:,} bytes; split it", line=line_number)
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # ValueError: syntax, encoding, or a number of over 4,300 digits
        raise InputError.at(path, f"not a {kind}: {printable(str(error))}") from error
