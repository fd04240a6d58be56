"""Read the archive of alignments that an MMseqs2 server sends, whatever it unpacks to.

The archive is a tar.gz with an a3m file for each database, which has a part for each sequence, and with a table of
template hits where the server searches for these. It is not trusted: it is unpacked into a temporary file within
limits, and one alignment is in memory at a time.
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
# What a run keeps of a sequence's rows in one database, the best first: AlphaFold keeps 10,000 at most.
MAX_ROWS, MAX_TEXT_BYTES = 100_000, 2**25
_MAX_TEXT_LINES = 2**20  # of these rows, which may be broken into lines
_MAX_FILES = 64  # a server sends about six
_MAX_GZIP_MEMBERS = 10_000  # programs that pack in parallel begin one for each 64 KiB
_MAX_EXTENDED_HEADER = 2**12
_MAX_NUL_BYTES = 1000  # beside one after each sequence's rows
_BLOCK = 512  # bytes; a tar file consists of such blocks
_CHUNK = 2**20
_PACKED_CHUNK = 2**16
_GZIP = 16 + zlib.MAX_WBITS
_WITHOUT_CONTENT = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE)


class DamagedArchiveError(Exception):
    """Error for an archive that was cut off or changed on its way; another download may succeed."""


@dataclass(frozen=True)
class Span:
    """Bytes of a file, from `start` up to `stop`."""

    start: int
    stop: int


class ServerAlignments:
    """The alignments of numbered sequences in a server's archive, which are read one at a time.

    A file has one alignment of each sequence, or up to `blocks` where the server has put the results of several
    databases behind each other. With `with_templates`, the archive must hold the table of template hits too.

    Raise `DamagedArchiveError` for an archive that another download may replace, `SearchError` for any other problem,
    and `OSError` if there is no room for the unpacked archive.
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
        self.cut = set[str]()  # sequences with more rows than are kept
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

    def a3m(self, number: int) -> bytes:
        """Return the a3m of a sequence: the target ("query") and the rows of each file, in the order of their names."""
        rows = (_rows(_read_part(self._tar, span)) for parts in self._parts.values() for span in parts[number])
        return b"".join([self._target(number), *rows])

    def paired_a3ms(self) -> Iterator[bytes]:
        """Yield the a3m of each sequence; all have equally many rows, those of one number belong together.

        Raise `SearchError` if the server paired more rows of one sequence than of another.
        """
        ((name, parts),) = self._parts.items()
        counts = {number: [self._row_count(span) for span in spans] for number, spans in parts.items()}
        first, *others = counts
        different = next((number for number in others if counts[number] != counts[first]), None)
        if different is not None and not self.cut:
            given, other = ("+".join(f"{count:,}" for count in counts[number]) for number in (first, different))
            raise SearchError(
                f"{name} of the server's answer has {given} rows for sequence {first} and {other} for sequence "
                f"{different}; paired rows belong together by their numbers"
            )
        # What is cut off one sequence has no rows to be paired with.
        kept = [min(each) for each in zip(*counts.values(), strict=False)]
        for number, spans in parts.items():
            rows = (_rows(_read_part(self._tar, span), most) for span, most in zip(spans, kept, strict=False))
            yield b"".join([self._target(number), *rows])

    def template_table(self) -> bytes:
        """Return the table of template hits of all sequences, cut after `MAX_TEXT_BYTES`."""
        return b"" if self._table is None else _read_part(self._tar, self._table)

    def _target(self, number: int) -> bytes:
        return f">query\n{self._sequences[number]}\n".encode()

    def _row_count(self, span: Span) -> int:
        """Return the number of rows that are kept of a part, without the target's."""
        return min(_read_part(self._tar, span).count(b"\n>"), MAX_ROWS)

    def _find_parts(self, name: str, file: Span) -> dict[int, list[Span]]:
        """Return where each sequence's parts of a file lie; parts begin with the target and end in NUL bytes."""
        sequences = self._sequences
        parts: dict[int, list[Span]] = {number: [] for number in sequences}
        for span in _split(self._tar, name, file, self._blocks * len(sequences) + _MAX_NUL_BYTES):
            text = _read_part(self._tar, span)
            if not text:
                continue
            header, _, body = text[: 2 * MAX_LINE_BYTES].partition(b"\n")
            shown = printable(header.decode("utf-8", "replace"))
            number = _number(header)
            if number is None or number not in sequences or len(parts[number]) == self._blocks:
                problem = "which was not asked for, or comes too often"
                raise SearchError(f"{name} of the server's answer is for '{shown}', {problem}")
            row = body.partition(b"\n>")[0]
            if not _is_target(row.translate(None, b"\r\n"), sequences[number]):
                raise SearchError(
                    f"{name} of the server's answer is for another sequence than was asked for ('{shown}')"
                )
            if _rows(text).count(b"\n") > _MAX_TEXT_LINES:
                raise SearchError(f"{name} of the server's answer has rows of too many lines for '{shown}'")
            parts[number].append(span)
            if _is_cut(span) or text.count(b"\n>") > MAX_ROWS:
                self.cut.add(sequences[number])
        if missing := [number for number, spans in parts.items() if not spans]:
            raise SearchError(f"{name} of the server's answer lacks {len(missing)} of {len(sequences)} sequences")
        return parts


def unpack(archive: IO[bytes], tar: IO[bytes], *, most: int = MAX_UNPACKED_BYTES) -> None:
    """Write the unpacked content of a gzip file, at most so many bytes; raise `DamagedArchiveError` or `SearchError`.

    Empty members of the file cost time and unpack to nothing, so that their number is limited too.
    """
    size, members, packed = 0, 0, archive.read(_PACKED_CHUNK)
    while packed or not members:
        members += 1
        if members > _MAX_GZIP_MEMBERS:
            raise SearchError(f"the server's archive is packed in more than {_MAX_GZIP_MEMBERS:,} pieces; not read")
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            try:
                chunk = member.decompress(packed, _CHUNK)
            except zlib.error as error:
                raise DamagedArchiveError("it is not gzip, or changed") from error
            size += len(chunk)
            if size > most:
                raise SearchError(f"the server's archive unpacks to more than {most:,} bytes; not read")
            tar.write(chunk)
            packed = member.unconsumed_tail or (b"" if member.eof else archive.read(_PACKED_CHUNK))
            if not (packed or chunk or member.eof):
                raise DamagedArchiveError("it is cut")
        packed = member.unused_data.lstrip(b"\0") or archive.read(_PACKED_CHUNK).lstrip(b"\0")


def locate_files(tar: IO[bytes], names: Collection[str]) -> dict[str, Span]:
    """Return where the files of these names lie in a tar file; extended headers (pax, GNU) are passed over."""
    found: dict[str, Span] = {}
    place, end, number = 0, tar.seek(0, 2), 0
    while place < end:
        tar.seek(place)
        block = tar.read(_BLOCK)
        if block == bytes(_BLOCK):
            break
        number += 1
        if number > _MAX_FILES:
            raise SearchError(f"the server's archive holds more than {_MAX_FILES} files; not read")
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise DamagedArchiveError("it holds no tar file, or a changed one") from error
        name, size = member.name.removeprefix("./"), 0 if member.type in _WITHOUT_CONTENT else member.size
        is_plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        if name in names and (not is_plain or name in found):
            raise SearchError(f"the server's archive holds {name} twice or as something else than a plain file")
        if not is_plain and size > _MAX_EXTENDED_HEADER:
            raise SearchError(f"the server's archive has a header of {size:,} bytes; not read")
        start = place + _BLOCK
        if not 0 <= size <= end - start:
            raise DamagedArchiveError("a file of it is cut")
        if name in names:
            found[name] = Span(start, start + size)
        place = start + -(-size // _BLOCK) * _BLOCK
    if not number:
        raise DamagedArchiveError("it is empty")
    return found


def check_all_there(files: Mapping[str, Span], names: Collection[str]) -> None:
    """Raise `SearchError` if the server's archive lacks one of these files."""
    if missing := sorted(set(names) - files.keys()):
        raise SearchError(f"the server's answer lacks {', '.join(missing)}")


def _split(tar: IO[bytes], name: str, file: Span, most: int) -> Iterator[Span]:
    """Yield what lies between the NUL bytes of a file; raise `SearchError` for more than `most`, or for a long line."""
    start, place, line, number = file.start, file.start, 0, 0
    while place < file.stop:
        tar.seek(place)
        chunk = tar.read(min(_CHUNK, file.stop - place))
        line_end = chunk.find(b"\n")
        if line + (len(chunk) if line_end < 0 else line_end) > MAX_LINE_BYTES:
            raise SearchError(f"{name} of the server's answer has a line of more than {MAX_LINE_BYTES:,} bytes")
        line = line + len(chunk) if line_end < 0 else len(chunk) - chunk.rfind(b"\n") - 1
        number += chunk.count(b"\0")
        if number > most:
            raise SearchError(f"{name} of the server's answer is full of NUL bytes")
        nul = chunk.find(b"\0")
        while nul >= 0:
            yield Span(start, place + nul)
            start = place + nul + 1
            nul = chunk.find(b"\0", nul + 1)
        place += len(chunk)
    yield Span(start, file.stop)


def _read_part(tar: IO[bytes], span: Span) -> bytes:
    """Return the text of a part without blanks around it, up to its last whole row within `MAX_TEXT_BYTES`."""
    tar.seek(span.start)
    text = tar.read(min(span.stop - span.start, MAX_TEXT_BYTES))
    if _is_cut(span) and (last := text.rfind(b"\n>")) > 0:
        text = text[:last]
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text.strip()


def _is_cut(span: Span) -> bool:
    return span.stop - span.start > MAX_TEXT_BYTES


def _rows(text: bytes, most: int | None = None) -> bytes:
    """Return the rows below the target in the text of a part, at most so many (None: `MAX_ROWS`)."""
    most = MAX_ROWS if most is None else most
    start = stop = text.find(b"\n>") + 1
    if not start:
        return b""
    if text.count(b"\n>") > most:
        for _ in range(most):
            stop = text.index(b"\n>", stop) + 1
        return text[start:stop]
    return text[start:].rstrip(b"\n") + b"\n"


def _number(header: bytes) -> int | None:
    """Return the number in a header such as ">101", or None."""
    word = header.removeprefix(b">").split(maxsplit=1)[:1]
    return int(word[0]) if header.startswith(b">") and word and word[0].isdigit() and len(word[0]) < 10 else None


def _is_target(row: bytes, sequence: str) -> bool:
    """Return whether a row is the target's, apart from ambiguous letters, for which MMseqs2 writes others."""
    return len(row) == len(sequence) and all(
        letter == own or own in AMBIGUOUS_LETTERS for letter, own in zip(row.decode("latin-1"), sequence, strict=True)
    )
