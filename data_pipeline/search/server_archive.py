"""Read the archive of alignments that an MMseqs2 server sends, without trusting its content.

The archive is a tar.gz with one a3m file per database, which has a part for each sequence, and optionally with a table
of template hits. It is unpacked into a temporary file within limits, and only one alignment is in memory at a time.

Constants that end in `_FILE` are names of files in the archive. `MAX_UNPACKED_BYTES` limits the unpacked archive.
`MAX_ROWS` and `MAX_TEXT_BYTES` limit the rows that are used of each sequence in each file; later rows are dropped.
"""

import contextlib
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Self

from data_pipeline.io.errors import SearchError, printable
from data_pipeline.parse.text_files import MAX_LINE_BYTES
from data_pipeline.residues import AMBIGUOUS_LETTERS

UNIREF_FILE = "uniref.a3m"
PAIRED_FILE = "pair.a3m"
ENVIRONMENTAL_FILE = "bfd.mgnify30.metaeuk30.smag30.a3m"
TEMPLATE_FILE = "pdb70.m8"
MAX_UNPACKED_BYTES = 2**29
# Of each sequence in each database, only the best rows within these limits are used; AlphaFold uses at most 10,000.
MAX_ROWS, MAX_TEXT_BYTES = 100_000, 2**25
_MAX_TEXT_LINES = 2**20  # of these rows, which may have line breaks
_MAX_FILES = 64  # servers send about six
_MAX_GZIP_MEMBERS = 10_000  # parallel compressors write one member per 64 KiB
_MAX_EXTENDED_HEADER = 2**12
_MAX_NUL_BYTES = 1000  # in addition to one after the rows of each sequence
_TAR_BLOCK_BYTES = 512  # bytes; a tar file consists of such blocks
_CHUNK_BYTES = 2**20
_PACKED_CHUNK_BYTES = 2**16
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
_TYPES_WITHOUT_CONTENT = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE)


class DamagedArchiveError(Exception):
    """Error for an archive that was truncated or changed in transit; another download may succeed."""


@dataclass(frozen=True)
class Span:
    """Range of bytes in a file, from `start` to `stop` (exclusive)."""

    start: int
    stop: int


class ServerAlignments:
    """The alignments of numbered sequences in a server's archive, read one at a time.

    `names` are the files to read, and `sequences` the sequences that were searched, by number. A file has one alignment
    per sequence, or up to `blocks` if it contains the results of several databases one after the other. With
    `with_templates`, the archive must also have the table of template hits. `cut` has the sequences whose alignments
    exceed `MAX_ROWS` or `MAX_TEXT_BYTES`.

    Raise `DamagedArchiveError` if another download may succeed, `SearchError` for any other problem, and `OSError` if
    the disk is too full for the unpacked archive.
    """

    def __init__(
        self,
        archive: IO[bytes],
        names: Sequence[str],
        sequences: Mapping[int, str],
        *,
        blocks: int = 1,
        with_templates: bool = False,
    ) -> None:
        self._sequences, self._blocks = sequences, blocks
        self.cut = set[str]()  # sequences with more rows than the limits
        with contextlib.ExitStack() as on_error:
            self._tar = on_error.enter_context(tempfile.TemporaryFile())
            unpack(archive, self._tar)
            tables = (TEMPLATE_FILE,) if with_templates else ()
            files = locate_files(self._tar, (*names, *tables))
            check_all_there(files, (*names, *tables))
            self._table = files.get(TEMPLATE_FILE)
            self._parts = {name: self._find_parts(name, files[name]) for name in names}
            on_error.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def a3m(self, key: int) -> bytes:
        """Return the a3m of the sequence with number `key`: the target ("query"), then the rows of each file."""
        rows = (_rows(_read_part(self._tar, span)) for parts in self._parts.values() for span in parts[key])
        return b"".join([self._target(key), *rows])

    def paired_a3ms(self) -> Iterator[bytes]:
        """Yield the a3m of each sequence; all have the same number of rows, and rows with the same index are paired.

        Raise `SearchError` if the server returned different numbers of rows and none of the alignments was cut; after a
        cut, all are shortened to the same number.
        """
        ((name, parts),) = self._parts.items()
        counts = {key: [self._row_count(span) for span in spans] for key, spans in parts.items()}
        first, *others = counts
        different = next((key for key in others if counts[key] != counts[first]), None)
        if different is not None and not self.cut:
            expected, other = ("+".join(f"{count:,}" for count in counts[key]) for key in (first, different))
            raise SearchError(
                f"{name} of the server's answer has {expected} rows for sequence {first} but {other} for sequence "
                f"{different}; paired rows need equal numbers"
            )
        # All sequences need the same number of rows, also if some are cut.
        row_counts = [min(each) for each in zip(*counts.values(), strict=False)]
        for key, spans in parts.items():
            rows = (_rows(_read_part(self._tar, span), count) for span, count in zip(spans, row_counts, strict=False))
            yield b"".join([self._target(key), *rows])

    def template_table(self) -> bytes:
        """Return the table of template hits of all sequences, cut after `MAX_TEXT_BYTES`, or empty if not requested."""
        return b"" if self._table is None else _read_part(self._tar, self._table)

    def _target(self, key: int) -> bytes:
        """Return the FASTA record of the sequence with this number."""
        return f">query\n{self._sequences[key]}\n".encode()

    def _row_count(self, span: Span) -> int:
        """Return the number of rows of a part within the limits, without the target."""
        return min(_read_part(self._tar, span).count(b"\n>"), MAX_ROWS)

    def _find_parts(self, name: str, file: Span) -> dict[int, list[Span]]:
        """Return the spans of each sequence's parts in a file; a part begins with the target and ends with NUL."""
        sequences = self._sequences
        parts: dict[int, list[Span]] = {key: [] for key in sequences}
        for span in _split(self._tar, name, file, self._blocks * len(sequences) + _MAX_NUL_BYTES):
            text = _read_part(self._tar, span)
            if not text:
                continue
            header, _, body = text[: 2 * MAX_LINE_BYTES].partition(b"\n")
            header_text = printable(header.decode("utf-8", "replace"))
            key = _sequence_key(header)
            if key is None or key not in sequences or len(parts[key]) == self._blocks:
                problem = "which was not requested, or occurs too often"
                raise SearchError(f"{name} of the server's answer is for '{header_text}', {problem}")
            row = body.partition(b"\n>")[0]
            if not _is_target(row.translate(None, b"\r\n"), sequences[key]):
                raise SearchError(
                    f"{name} of the server's answer is for another sequence than requested ('{header_text}')"
                )
            if _rows(text).count(b"\n") > _MAX_TEXT_LINES:
                raise SearchError(f"{name} of the server's answer has rows of too many lines for '{header_text}'")
            parts[key].append(span)
            if _is_cut(span) or text.count(b"\n>") > MAX_ROWS:
                self.cut.add(sequences[key])
        if missing := [key for key, spans in parts.items() if not spans]:
            raise SearchError(f"{name} of the server's answer lacks {len(missing)} of {len(sequences)} sequences")
        return parts


def unpack(archive: IO[bytes], tar: IO[bytes], *, max_bytes: int = MAX_UNPACKED_BYTES) -> None:
    """Unpack the gzip file `archive` into `tar`.

    Raise `DamagedArchiveError` for a damaged file, and `SearchError` for more than `max_bytes` of unpacked content. The
    number of gzip members is limited too, because empty members take time but add no bytes.
    """
    size, members, packed = 0, 0, archive.read(_PACKED_CHUNK_BYTES)
    while packed or not members:
        members += 1
        if members > _MAX_GZIP_MEMBERS:
            raise SearchError(f"the server's archive has more than {_MAX_GZIP_MEMBERS:,} gzip members; not read")
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        while not member.eof:
            try:
                chunk = member.decompress(packed, _CHUNK_BYTES)
            except zlib.error as error:
                raise DamagedArchiveError("not gzip, or changed in transit") from error
            size += len(chunk)
            if size > max_bytes:
                raise SearchError(f"the server's archive unpacks to more than {max_bytes:,} bytes; not read")
            tar.write(chunk)
            packed = member.unconsumed_tail or (b"" if member.eof else archive.read(_PACKED_CHUNK_BYTES))
            if not (packed or chunk or member.eof):
                raise DamagedArchiveError("truncated")
        packed = member.unused_data.lstrip(b"\0") or archive.read(_PACKED_CHUNK_BYTES).lstrip(b"\0")


def locate_files(tar: IO[bytes], names: Collection[str]) -> dict[str, Span]:
    """Return the spans of the files with these names in a tar file; missing files and extended headers are left out.

    Raise `SearchError` for a repeated name or too many files, and `DamagedArchiveError` for a damaged file.
    """
    spans: dict[str, Span] = {}
    place, end, count = 0, tar.seek(0, 2), 0
    while place < end:
        tar.seek(place)
        block = tar.read(_TAR_BLOCK_BYTES)
        if block == bytes(_TAR_BLOCK_BYTES):
            break
        count += 1
        if count > _MAX_FILES:
            raise SearchError(f"the server's archive holds more than {_MAX_FILES} files; not read")
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise DamagedArchiveError("not a tar file, or changed in transit") from error
        name, size = member.name.removeprefix("./"), 0 if member.type in _TYPES_WITHOUT_CONTENT else member.size
        is_plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        if name in names and (not is_plain or name in spans):
            raise SearchError(f"the server's archive has {name} twice, or not as a regular file")
        if not is_plain and size > _MAX_EXTENDED_HEADER:
            raise SearchError(f"the server's archive has a header of {size:,} bytes; not read")
        start = place + _TAR_BLOCK_BYTES
        if not 0 <= size <= end - start:
            raise DamagedArchiveError("a file in it is truncated")
        if name in names:
            spans[name] = Span(start, start + size)
        place = start + -(-size // _TAR_BLOCK_BYTES) * _TAR_BLOCK_BYTES
    if not count:
        raise DamagedArchiveError("empty")
    return spans


def check_all_there(files: Mapping[str, Span], names: Collection[str]) -> None:
    """Raise `SearchError` if one of `names` is not among the files of the server's archive."""
    if missing := sorted(set(names) - files.keys()):
        raise SearchError(f"the server's answer lacks {', '.join(missing)}")


def _split(tar: IO[bytes], name: str, file: Span, max_nuls: int) -> Iterator[Span]:
    """Yield the spans between the NUL bytes of a file; raise `SearchError` for too many NUL bytes or a long line."""
    start, place, line, nuls = file.start, file.start, 0, 0
    while place < file.stop:
        tar.seek(place)
        chunk = tar.read(min(_CHUNK_BYTES, file.stop - place))
        line_end = chunk.find(b"\n")
        if line + (len(chunk) if line_end < 0 else line_end) > MAX_LINE_BYTES:
            raise SearchError(f"{name} of the server's answer has a line of more than {MAX_LINE_BYTES:,} bytes")
        line = line + len(chunk) if line_end < 0 else len(chunk) - chunk.rfind(b"\n") - 1
        nuls += chunk.count(b"\0")
        if nuls > max_nuls:
            raise SearchError(f"{name} of the server's answer has too many NUL bytes")
        nul = chunk.find(b"\0")
        while nul >= 0:
            yield Span(start, place + nul)
            start = place + nul + 1
            nul = chunk.find(b"\0", nul + 1)
        place += len(chunk)
    yield Span(start, file.stop)


def _read_part(tar: IO[bytes], span: Span) -> bytes:
    """Return the stripped text of a part, up to its last complete row within `MAX_TEXT_BYTES`."""
    tar.seek(span.start)
    text = tar.read(min(span.stop - span.start, MAX_TEXT_BYTES))
    if _is_cut(span) and (last := text.rfind(b"\n>")) > 0:
        text = text[:last]
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text.strip()


def _is_cut(span: Span) -> bool:
    """Return whether a text is too long and was cut."""
    return span.stop - span.start > MAX_TEXT_BYTES


def _rows(text: bytes, max_rows: int | None = None) -> bytes:
    """Return up to `max_rows` rows below the target in the text of a part (None: `MAX_ROWS`)."""
    max_rows = MAX_ROWS if max_rows is None else max_rows
    start = stop = text.find(b"\n>") + 1
    if not start:
        return b""
    if text.count(b"\n>") > max_rows:
        for _ in range(max_rows):
            stop = text.index(b"\n>", stop) + 1
        return text[start:stop]
    return text[start:].rstrip(b"\n") + b"\n"


def _sequence_key(header: bytes) -> int | None:
    """Return the sequence number in a header such as ">101", or None."""
    word = header.removeprefix(b">").split(maxsplit=1)[:1]
    return int(word[0]) if header.startswith(b">") and word and word[0].isdigit() and len(word[0]) < 10 else None


def _is_target(row: bytes, sequence: str) -> bool:
    """Return whether a row is the target, apart from ambiguous letters, which MMseqs2 replaces."""
    return len(row) == len(sequence) and all(
        letter == own or own in AMBIGUOUS_LETTERS for letter, own in zip(row.decode("latin-1"), sequence, strict=True)
    )
