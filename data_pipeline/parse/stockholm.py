"""Read Stockholm, the format of HMMER's programs, edit it as AlphaFold does, and convert it to and from a3m.

An alignment is read block by block, in bounded memory. Easel and Biopython are not used because both hold the whole
file (a search of UniRef90 can write gigabytes, of which AlphaFold uses 10,000 rows), neither reports the line of an
error, and Easel refuses files that AlphaFold reads, such as files whose blocks differ in annotation.

`MAX_EDITED_BYTES`, `MAX_EDITED_ROWS` and `MAX_EDITED_COLUMNS` limit an alignment that is edited as a whole.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from io import BytesIO
from os import PathLike

import numpy as np

from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.a3m import Alignment, checked_rows
from data_pipeline.parse.alignment_rows import (
    ALIGNED_TO_COLUMNS,
    COLUMN_LETTERS,
    GAP,
    TargetColumns,
    check_memory,
    first_row_problem,
    row_limit,
    smallest_count_type,
)
from data_pipeline.parse.text_files import content_lines

_MAX_BLOCKS = 100_000  # of 200 columns in HMMER's files
_BATCH_BYTES = 2**22


def sequence_lines(lines: Iterable[bytes], path: str | PathLike[str]) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the line number, name and aligned segment of each row in each block, without annotation.

    Raise `InputError` for other lines, and for a second alignment.
    """
    end_line = 0
    for line_number, line in enumerate(lines, start=1):
        text = line.strip(b" \t\0")
        if not text or text.startswith(b"#"):
            continue
        if text.startswith(b"//"):
            end_line = line_number
            continue
        if end_line:
            problem = f"a second alignment begins here, after the '//' of line {end_line}; keep one alignment in a file"
            raise InputError.at(path, problem, line=line_number)
        words = text.split()
        if len(words) != 2:
            problem = f"a line of a Stockholm alignment is a name and a sequence, and this one has {len(words)} words"
            raise InputError.at(path, f"{problem}; is this a Stockholm file, and whole?", line=line_number)
        yield line_number, words[0], words[1]


class StockholmBlocks:
    """Collects the blocks of an alignment while they are read, and keeps only the target's columns.

    Rows after the first `max_rows`, which include the target, are left out.
    """

    def __init__(self, path: str | PathLike[str], max_rows: int) -> None:
        self._path = path
        self._max_rows = max_rows
        self._names: list[bytes] = []
        self._seen: set[bytes] = set()
        self._name_bytes = 0
        self._skipped = False  # rows after the first `max_rows`
        # Letters and deletion counts of all rows in the target's columns, for each complete block.
        self._blocks: list[tuple[np.ndarray, np.ndarray]] = []
        self._block_bytes = 0
        self._carried = np.zeros(0, np.int32)  # each row's residues after the last complete block's last column
        # The current block: its columns, the rows already split, and numbered segments of the rows still to split.
        self._columns: TargetColumns | None = None
        self._width = 0
        self._line = 0  # the last line read
        self._position = 0  # number of rows read
        self._batches: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._pending: list[tuple[int, bytes]] = []
        self._pending_bytes = 0

    def add(self, line: int, name: bytes, segment: bytes) -> None:
        """Add one row's segment, from line number `line`; the target's name begins a new block.

        Raise `InputError` if blocks differ in their rows, or rows of a block in their length.
        """
        if not self._names or name == self._names[0]:
            self._begin_block(line, name, segment)
        elif not self._blocks:
            if name in self._seen:
                raise self._error(line, name, "this name is twice in one block; give each sequence its own")
            if len(self._names) == self._max_rows:
                self._skipped = True
                return
            self._add_name(name)
        elif self._position == len(self._names):
            if self._skipped:
                return
            raise self._error(line, name, "the first block has no such sequence; was the file cut or edited?")
        elif name != self._names[self._position]:
            expected = printable(self._names[self._position].decode("utf-8", "replace"))
            raise self._error(
                line, name, f"'{expected}' should come here: each block has the sequences of the first, in their order"
            )
        if len(segment) != self._width:
            problem = f"the row has {len(segment)} columns in this block, the first row {self._width}"
            raise self._error(line, name, f"{problem}; was the file cut or edited?")
        self._line = line
        self._position += 1
        self._pending.append((line, segment))
        self._pending_bytes += len(segment) + 100
        if self._pending_bytes > _BATCH_BYTES:
            self._split_pending()

    def alignment(self) -> Alignment:
        """End the last block, and return the whole alignment; call it once, after all rows."""
        self._end_block()
        letters, deletions = (
            parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1) for parts in zip(*self._blocks, strict=True)
        )
        names = tuple(name.decode("utf-8", "replace") for name in self._names)
        return Alignment(names=names, letters=letters, deletion_matrix=deletions)

    def _begin_block(self, line: int, name: bytes, segment: bytes) -> None:
        """Begin a block of rows at its first row, `segment`; `line` is the line number."""
        if self._names:
            if self._position == 1 and len(self._names) > 1:
                raise self._error(line, name, "this name is twice in one block; give each sequence its own")
            self._end_block()
            if len(self._blocks) == _MAX_BLOCKS:
                raise self._error(line, name, f"there are more than {_MAX_BLOCKS:,} blocks; write them wider")
        else:
            self._add_name(name)
        self._width, self._position = len(segment), 0
        self._columns = TargetColumns(np.frombuffer(segment.translate(ALIGNED_TO_COLUMNS), np.uint8))

    def _split_pending(self) -> None:
        """Split the pending segments into letters and deletion counts."""
        text = b"".join([segment for _, segment in self._pending]).translate(ALIGNED_TO_COLUMNS)
        if text.translate(None, COLUMN_LETTERS):
            self._refuse_letters()
        assert self._columns is not None
        letters, inserted = self._columns.split(np.frombuffer(text, np.uint8).reshape(-1, self._width))
        if self._blocks:
            start = self._position - len(letters)
            inserted[:, 0] += self._carried[start : self._position]
        counts = inserted[:, :-1]
        counts = counts.astype(smallest_count_type(int(counts.max(initial=0))))
        self._batches.append((letters, counts, inserted[:, -1].copy()))
        self._block_bytes += letters.nbytes + counts.nbytes + 4 * len(letters)
        # Twice the memory, because batches and blocks are joined.
        check_memory(self._path, 2 * self._block_bytes + self._name_bytes, len(self._names))
        self._pending, self._pending_bytes = [], 0

    def _end_block(self) -> None:
        """End a block, which must have a row of each sequence, and store its columns."""
        if self._pending:
            self._split_pending()
        if self._position != len(self._names):
            missing = self._names[self._position].decode("utf-8", "replace")
            problem = f"the block ends here without its row '{printable(missing)}'; was the file cut or edited?"
            raise InputError.at(self._path, problem, line=self._line)
        letters, counts, carried = (np.concatenate(parts) for parts in zip(*self._batches, strict=True))
        self._blocks.append((letters, counts))
        self._carried, self._batches = carried, []

    def _add_name(self, name: bytes) -> None:
        """Add a sequence name in the first block; check the memory after each 1024 names."""
        self._names.append(name)
        self._seen.add(name)
        self._name_bytes += 2 * len(name) + 250
        if len(self._names) % 1024 == 0:
            check_memory(self._path, 2 * self._block_bytes + self._name_bytes, len(self._names))

    def _refuse_letters(self) -> None:
        """Raise the error for the first pending segment that has other letters than residues and gaps."""
        names = self._names[self._position - len(self._pending) : self._position]
        for name, (line, segment) in zip(names, self._pending, strict=True):
            if wrong := segment.translate(ALIGNED_TO_COLUMNS).translate(None, COLUMN_LETTERS):
                raise self._error(line, name, f"'{printable(wrong[:1].decode('latin-1'))}' is not a residue or gap")

    def _error(self, line: int, name: bytes, problem: str) -> InputError:
        return InputError.at(self._path, problem, line=line, record=name.decode("utf-8", "replace"))


# Text to be edited is held whole: AlphaFold does this with at most 10,000 rows.
MAX_EDITED_BYTES = 2**28
_LINE_OVERHEAD_BYTES = 50  # bytes that Python takes to hold a line, besides its text
MAX_EDITED_ROWS = 500_000
MAX_EDITED_COLUMNS = 2_000_000

_DOTS_TO_GAPS = bytes.maketrans(b".", b"-")


def parse_stockholm(
    content: bytes, query: str | None = None, *, path: str | PathLike[str] = "stockholm", max_rows: int | None = None
) -> Alignment:
    """Return the alignment in the text of a Stockholm file, or its first `max_rows` rows including the target.

    The first sequence must be the target (`query` if given). Columns are those where it has a residue; other rows'
    residues between them count as deletions, as in AlphaFold's `parse_stockholm`. A file may lack its closing '//', but
    must hold one alignment, whose blocks have the same sequences in the same order. Raise `InputError` with `path`,
    line and record for any other content.
    """
    return stockholm_from_lines(content_lines(content, path), query, path=path, max_rows=max_rows)


def stockholm_from_lines(
    lines: Iterable[bytes], query: str | None, *, path: str | PathLike[str], max_rows: int | None
) -> Alignment:
    """Return the alignment in the lines of a Stockholm file; see `parse_stockholm`."""
    blocks = StockholmBlocks(path, row_limit(max_rows))
    first_line = 0
    for line_number, name, segment in sequence_lines(lines, path):
        first_line = first_line or line_number
        blocks.add(line_number, name, segment)
    if not first_line:
        raise InputError.at(path, "no alignment rows; a Stockholm file has lines with a name and a sequence")
    alignment = blocks.alignment()
    if (problem := first_row_problem(alignment.letters[0].tobytes(), query)) is not None:
        raise InputError.at(path, f"the first row {problem}", line=first_line, record=alignment.names[0])
    if query is not None:
        alignment.letters[0] = np.frombuffer(query.encode(), np.uint8)  # its own letters for unknown residues
    return alignment


def stockholm_to_a3m(content: bytes, *, max_rows: int | None = None, path: str | PathLike[str] = "stockholm") -> bytes:
    """Return the alignment, or its first `max_rows` rows, as a3m, with insertions relative to the first row.

    Headers have the names and descriptions of the rows.
    """
    rows = stockholm_rows(content, path, max_rows)
    descriptions = stockholm_descriptions(content, path)
    target = np.frombuffer(next(iter(rows.values())).translate(_DOTS_TO_GAPS), np.uint8)
    is_column = target != GAP
    a3m = BytesIO()
    for name, row in rows.items():
        # Differs from AlphaFold: '.' is a gap. AlphaFold removes it, and then columns no longer match the target's.
        letters = np.frombuffer(row.translate(_DOTS_TO_GAPS), np.uint8)
        lower = np.where(is_column, letters, np.frombuffer(row.lower(), np.uint8))
        a3m.write(b">%s %s\n%s\n" % (name, descriptions.get(name, b""), lower[is_column | (letters != GAP)].tobytes()))
    return a3m.getvalue()


def truncated(content: bytes, max_rows: int, *, path: str | PathLike[str] = "stockholm") -> bytes:
    """Return the text with its first `max_rows` rows including the target, and only the annotation of these rows.

    Annotation of columns is dropped, except `#=GC RF`.
    """
    limit = row_limit(max_rows)
    names: set[bytes] = set()
    for _, name, _ in sequence_lines(content_lines(content, path), path):
        names.add(name)
        if len(names) == limit:
            break
    return _with_rows(content, names, path)


def deduplicated(content: bytes, *, path: str | PathLike[str] = "stockholm") -> bytes:
    """Return the text without rows that equal an earlier one, and without annotation of residues and columns.

    `#=GC RF` and descriptions of rows remain. Rows are compared in the target's columns.
    """
    return _with_rows(content, _first_of_equals(stockholm_rows(content, path)), path)


def without_empty_columns(content: bytes, *, path: str | PathLike[str] = "stockholm") -> bytes:
    """Return the text without columns in which no row has a residue.

    Annotation of residues and columns is dropped, except `#=GC RF`.
    """
    stockholm_rows(content, path)
    text = BytesIO()
    block: list[bytes] = []  # the rows and the reference annotation of the current block
    for line in content_lines(content, path):
        if line.startswith((b"#=GR", b"#=GC")) and not _is_reference(line):
            continue
        if _is_row(line) or _is_reference(line):
            block.append(line)
            continue
        text.writelines(b"%s\n" % row for row in _without_empty_columns(block, path))
        text.write(b"%s\n" % line)
        block = []
    text.writelines(b"%s\n" % row for row in _without_empty_columns(block, path))
    text.truncate(max(0, text.tell() - 1))  # no line end at the end
    return text.getvalue()


def a3m_to_stockholm(content: bytes, *, path: str | PathLike[str] = "a3m") -> bytes:
    """Return an a3m as Stockholm, with insertions in columns of their own and the target's columns in `#=GC RF`.

    From this, hmmbuild makes a profile whose match states are the target's residues. Names are made unique.
    """
    longest = np.zeros(0, np.int64)  # longest insertion before each column of the target, and after the last
    for count, (_, text, row) in enumerate(checked_rows(content_lines(content, path), None, path), start=1):
        letters = np.frombuffer(text, np.uint8)
        bounds = np.concatenate([[-1], np.flatnonzero(letters < ord("a")), [len(letters)]])
        longest = np.maximum(longest if count > 1 else np.zeros(len(row) + 1, np.int64), np.diff(bounds) - 1)
        if count * (len(row) + int(longest.sum())) > MAX_EDITED_BYTES or count > MAX_EDITED_ROWS:
            raise InputError.at(path, "the alignment is too large to be written as Stockholm; filter it")
    column_at = np.cumsum(longest[:-1] + 1) - 1
    insertion_at = np.concatenate([[0], column_at + 1])
    blank_row = np.full(len(column_at) + int(longest.sum()), ord("."), np.uint8)
    reference = blank_row.copy()
    blank_row[column_at], reference[column_at] = GAP, ord("x")
    names: set[bytes] = set()
    stockholm = BytesIO()
    stockholm.write(b"# STOCKHOLM 1.0\n\n")
    for record, text, _ in checked_rows(content_lines(content, path), None, path):
        letters = np.frombuffer(text, np.uint8)
        is_column = letters < ord("a")
        index = np.arange(len(letters))
        last_column = np.maximum.accumulate(np.where(is_column, index, -1))
        columns_so_far = np.cumsum(is_column)
        padded = blank_row.copy()
        padded[column_at] = letters[is_column]
        padded[insertion_at[columns_so_far[~is_column]] + (index - last_column - 1)[~is_column]] = letters[~is_column]
        name = _unique(record.name.encode("utf-8", "replace"), names)
        stockholm.write(b"%s %s\n" % (name, padded.tobytes()))
    stockholm.write(b"#=GC RF %s\n//\n" % reference.tobytes())
    return stockholm.getvalue()


def stockholm_rows(
    content: bytes, path: str | PathLike[str] = "stockholm", max_rows: int | None = None
) -> dict[bytes, bytes]:
    """Return the aligned rows by name, unchanged, with the segments of all blocks joined.

    `max_rows` limits the rows, in file order. Raise `InputError` unless all have the same length, and for an alignment
    without rows or above the limits for editing.
    """
    limit = row_limit(max_rows)
    parts: dict[bytes, list[bytes]] = {}
    size = 0
    for line, name, segment in sequence_lines(content_lines(content, path), path):
        if name not in parts:
            if len(parts) == limit:
                continue
            if len(parts) == MAX_EDITED_ROWS:
                raise InputError.at(path, f"there are more than {MAX_EDITED_ROWS:,} rows; read fewer", line=line)
            parts[name] = []
        parts[name].append(segment)
        size += len(segment) + _LINE_OVERHEAD_BYTES
        if size > MAX_EDITED_BYTES:
            raise InputError.at(path, f"its rows take more than {MAX_EDITED_BYTES >> 20} MiB; read fewer", line=line)
    rows = {name: b"".join(parts.pop(name)) for name in list(parts)}
    if not rows:
        raise InputError.at(path, "no alignment rows; a Stockholm file has lines with a name and a sequence")
    width = len(next(iter(rows.values())))
    if width > MAX_EDITED_COLUMNS:
        raise InputError.at(path, f"the rows have {width:,} columns, and at most {MAX_EDITED_COLUMNS:,} are allowed")
    for name, row in rows.items():
        if len(row) != width:
            problem = f"the row has {len(row)} columns, the first row {width}; was the file cut or edited?"
            raise InputError.at(path, problem, record=name.decode("utf-8", "replace"))
    return rows


def stockholm_descriptions(content: bytes, path: str | PathLike[str] = "stockholm") -> dict[bytes, bytes]:
    """Return the descriptions of rows by name, from the `#=GS name DE` lines; rows without one are left out."""
    descriptions: dict[bytes, bytes] = {}
    for line in content_lines(content, path):
        words = line.split(maxsplit=3) if line.startswith(b"#=GS") else []
        if len(words) > 2 and words[2] == b"DE":
            descriptions[words[1]] = words[3] if len(words) == 4 else b""
    return descriptions


def _with_rows(content: bytes, names: Collection[bytes], path: str | PathLike[str]) -> bytes:
    """Return the text with only these rows, their descriptions and the reference annotation."""
    return b"".join(b"%s\n" % line for line in content_lines(content, path) if _is_kept(line, names))


def _first_of_equals(rows: Mapping[bytes, bytes]) -> set[bytes]:
    """Return the names of the rows that differ from all earlier ones in the first row's columns."""
    is_column = np.frombuffer(next(iter(rows.values())), np.uint8) != GAP
    first: dict[bytes, bytes] = {}
    for name, row in rows.items():
        first.setdefault(sha256(np.frombuffer(row, np.uint8)[is_column]).digest(), name)
    return set(first.values())


def _is_kept(line: bytes, names: Collection[bytes]) -> bool:
    """Return whether a line is needed for the sequences `names`: their rows and descriptions, and general lines."""
    if line.startswith(b"#=GS"):
        words = line.split(maxsplit=2)
        return len(words) > 1 and words[1] in names
    if _is_row(line):
        return line.split(maxsplit=1)[0] in names
    return not line.startswith(b"#") or _is_reference(line) or line.startswith(b"# STOCKHOLM")


def _is_row(line: bytes) -> bool:
    return bool(line.strip()) and not line.startswith((b"#", b"//"))


def _is_reference(line: bytes) -> bool:
    return line.startswith(b"#=GC RF")


def _without_empty_columns(block: list[bytes], path: str | PathLike[str]) -> Iterator[bytes]:
    """Yield the lines of one block without columns that have no residue; lines without any column are empty."""
    segments = [line.split()[-1] for line in block]
    if len({len(segment) for segment in segments}) > 1:
        raise InputError.at(path, "the rows and annotation of a block differ in length; was the file cut or edited?")
    is_used: np.ndarray | None = None
    for line, segment in zip(block, segments, strict=True):
        if not _is_reference(line):
            is_residue = np.frombuffer(segment.translate(_DOTS_TO_GAPS), np.uint8) != GAP
            is_used = is_residue if is_used is None else is_used | is_residue
    for line, segment in zip(block, segments, strict=True):
        if is_used is None:
            yield line
        else:
            columns = np.frombuffer(segment, np.uint8)[is_used].tobytes()
            yield line.rstrip()[: -len(segment)] + columns if columns else b""


def _unique(name: bytes, names: set[bytes]) -> bytes:
    """Return the name, with a number if it was used before, and add it to `names`."""
    unique = name or b"sequence"
    count = 1
    while unique in names:
        count += 1
        unique = b"%s.%d" % (name, count)
    names.add(unique)
    return unique
