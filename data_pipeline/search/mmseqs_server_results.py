"""Read an MMseqs2 server's results: a tar archive of alignments, which is unpacked in memory and not trusted."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Collection, Mapping

from data_pipeline.errors import SearchError, printable
from data_pipeline.residues import AMBIGUOUS_LETTERS

UNIREF_FILE = "uniref.a3m"
ENVIRONMENTAL_FILE = "bfd.mgnify30.metaeuk30.smag30.a3m"
MAX_UNPACKED_BYTES = 2**29
_MAX_MEMBERS = 64  # a server sends about six
_CHUNK = 2**20


class DamagedArchiveError(Exception):
    """Archive that was cut off or changed on its way; another download may succeed."""


class _BoundedGzip(io.RawIOBase):
    """The unpacked stream of a gzip file; reading beyond `MAX_UNPACKED_BYTES` raises `SearchError`."""

    def __init__(self, archive: bytes) -> None:
        self._stream = gzip.GzipFile(fileobj=io.BytesIO(archive))
        self._left = MAX_UNPACKED_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(min(_CHUNK, size) if size >= 0 else _CHUNK)
        self._left -= len(content)
        if self._left < 0:
            raise SearchError(f"the server's archive unpacks to more than {MAX_UNPACKED_BYTES:,} bytes; not read")
        return content


def unpack(archive: bytes, names: Collection[str]) -> dict[str, bytes]:
    """Return the content of the files with these names in a tar.gz archive; other files are ignored.

    Raise `DamagedArchiveError` for an archive that another download may replace, `SearchError` for any other problem.
    """
    contents: dict[str, bytes] = {}
    try:
        stream = _BoundedGzip(archive)
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for number, member in enumerate(tar, start=1):
                if number > _MAX_MEMBERS:
                    raise SearchError(f"the server's archive holds more than {_MAX_MEMBERS} files; not read")
                name = member.name.removeprefix("./")
                if name not in names:
                    continue
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse() or name in contents:
                    raise SearchError(f"the server's archive holds {name} twice or as something else than a plain file")
                content = tar.extractfile(member)
                assert content is not None
                contents[name] = content.read()
                if len(contents[name]) != member.size:
                    raise DamagedArchiveError("a file of it is cut")
        while stream.read(_CHUNK):  # to the end, where gzip has its checksum
            pass
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, RecursionError) as error:
        raise DamagedArchiveError(printable(str(error))) from error
    if missing := sorted(set(names) - contents.keys()):
        raise SearchError(f"the server's answer lacks {', '.join(missing)}")
    return contents


def merged_alignments(files: Mapping[str, bytes], sequences: Mapping[int, str]) -> dict[int, bytes]:
    """Return one a3m for each numbered sequence: the target ("query"), its UniRef rows, its environmental rows."""
    merged = {number: [f">query\n{sequence}\n".encode()] for number, sequence in sequences.items()}
    for name in (UNIREF_FILE, ENVIRONMENTAL_FILE):
        if name in files:
            for number, rows in _parts(name, files[name], sequences).items():
                merged[number].append(rows)
    return {number: b"".join(pieces) for number, pieces in merged.items()}


def _parts(name: str, content: bytes, sequences: Mapping[int, str]) -> dict[int, bytes]:
    """Return each sequence's rows below the target; a file's parts begin with the target and end in NUL bytes."""
    parts: dict[int, bytes] = {}
    for part in content.split(b"\0"):
        if not part.strip():
            continue
        header, _, body = part.lstrip().partition(b"\n")
        shown = printable(header.decode("utf-8", "replace"))
        word = header.removeprefix(b">").split()[:1]
        number = int(word[0]) if header.startswith(b">") and word and word[0].isdigit() and len(word[0]) < 10 else -1
        if number not in sequences or number in parts:
            raise SearchError(f"{name} of the server's answer is for '{shown}', which was not asked for, or twice")
        row, mark, rest = body.partition(b"\n>")
        if not _is_target(row.translate(None, b"\r\n"), sequences[number]):
            raise SearchError(f"{name} of the server's answer is for another sequence than was asked for ('{shown}')")
        parts[number] = b">" + rest.rstrip(b"\n") + b"\n" if mark else b""
    if missing := sorted(sequences.keys() - parts.keys()):
        raise SearchError(f"{name} of the server's answer lacks {len(missing)} of {len(sequences)} sequences")
    return parts


def _is_target(row: bytes, sequence: str) -> bool:
    """Return whether a row is the target's, apart from ambiguous letters, for which MMseqs2 writes others."""
    return len(row) == len(sequence) and all(
        letter == own or own in AMBIGUOUS_LETTERS for letter, own in zip(row.decode("latin-1"), sequence, strict=True)
    )
