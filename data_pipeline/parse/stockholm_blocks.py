"""Read the blocks of a Stockholm alignment one after the other, in bounded memory.

Easel and Biopython are not used because both hold the whole file (a search of UniRef90 can write gigabytes, of which
AlphaFold uses 10,000 rows), neither reports the line of an error, and Easel refuses files that AlphaFold reads, such as
those whose blocks differ in annotation.
"""

from collections.abc import Iterable, Iterator
from os import PathLike

import numpy as np

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.a3m import Alignment
from data_pipeline.parse.alignment_rows import (
    ALIGNED_TO_COLUMNS,
    COLUMN_LETTERS,
    TargetColumns,
    check_memory,
    smallest_count_type,
)

_MAX_BLOCKS = 100_000  # of 200 columns in HMMER's files
_BATCH_BYTES = 2**22


def sequence_lines(lines: Iterable[bytes], path: str | PathLike[str]) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield line number, name and aligned segment of each row; raise `InputError` for a second alignment."""
    ended = 0
    for number, line in enumerate(lines, start=1):
        text = line.strip(b" \t\0")
        if not text or text.startswith(b"#"):
            continue
        if text.startswith(b"//"):
            ended = number
            continue
        if ended:
            problem = f"a second alignment begins here, after the '//' of line {ended}; keep one alignment in a file"
            raise InputError.at(path, problem, line=number)
        words = text.split()
        if len(words) != 2:
            problem = f"a line of a Stockholm alignment is a name and a sequence, and this one has {len(words)} words"
            raise InputError.at(path, f"{problem}; is this a Stockholm file, and whole?", line=number)
        yield number, words[0], words[1]


class StockholmBlocks:
    """Collects the blocks of an alignment while they are read, and keeps only the target's columns."""

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
        """Add one row's segment of the current block."""
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
        """End the last block, and return the whole alignment."""
        self._end_block()
        letters, deletions = (
            parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1) for parts in zip(*self._blocks, strict=True)
        )
        names = tuple(name.decode("utf-8", "replace") for name in self._names)
        return Alignment(names=names, letters=letters, deletion_matrix=deletions)

    def _begin_block(self, line: int, name: bytes, segment: bytes) -> None:
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
                raise self._error(line, name, f"'{printable(wrong[:1].decode('latin-1'))}' is no residue letter or gap")

    def _error(self, line: int, name: bytes, problem: str) -> InputError:
        return InputError.at(self._path, problem, line=line, record=name.decode("utf-8", "replace"))
