"""Read the database of a feature store: an LMDB file, which has byte strings by key in a tree of pages.

The LMDB library writes the file but does not read it, because it trusts every page: a damaged page makes it read beyond
the end of the file, which kills the process (SIGBUS).
"""

import mmap
import struct
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import os_errors_as_input_errors, require_file

# Format 1 of LMDB 0.9 on 64-bit machines. Each of the first two pages describes a state of the tree: magic number and
# version, page size, depth and root of the tree, last page, and the number of the transaction that wrote it.
_STATE_LAYOUT = struct.Struct("=16xII16xI50xH32xQQQ")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_NO_ROOT = 2**64 - 1
_PAGE_HEADER = struct.Struct("=Q2xHH2x")  # page number, kind, end of the table of nodes
_NODE_HEADER = struct.Struct("=HHHH")  # two halves of a size or a page number, its third part or flags, size of the key
_BRANCH, _LEAF, _LONG = 1, 2, 4  # kinds of pages
_LONG_CONTENT_FLAG = 1  # flag of a node with content on separate pages
_MAX_DEPTH = 16


class Database:
    """Reader of a database, which threads and forked processes may share.

    All methods raise `InputError` if they read a damaged page. The file is mapped into memory.
    """

    def __init__(self, path: Path) -> None:
        """Open a database; raise `InputError` if the file is incomplete or not a database."""
        self._path = path
        require_file(path)
        with os_errors_as_input_errors(path, "cannot be read"), path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            content.madvise(mmap.MADV_RANDOM)  # training reads records in random order
        self._content = memoryview(content)
        first = self._state(0)
        self._page_size, self._depth, self._root, last, _ = max(
            first, self._state(first[0]), key=lambda state: state[-1]
        )
        self._end = (last + 1) * self._page_size
        if self._end > len(content):
            raise InputError.at(path, "the file is truncated; copy it again, or build the feature store again")
        if self._root != _NO_ROOT:
            self._page(self._root)

    def get(self, key: str) -> memoryview | None:
        """Return the content of the record with a key (hexadecimal digits), or None if it does not exist."""
        key_bytes, page_index = bytes.fromhex(key), self._root
        if page_index == _NO_ROOT:
            return None
        for _ in range(self._depth):
            page, kind, count = self._page(page_index)
            if kind == _LEAF:
                index = bisect_left(range(count), key_bytes, key=lambda node: self._key(page, node))
                return self._value(page, index) if index < count and self._key(page, index) == key_bytes else None
            # The first key of a branch is skipped, because its child has all keys below the second one.
            index = bisect_right(range(1, count), key_bytes, key=lambda node: self._key(page, node))
            page_index = self._child(page, index)
        raise self._damaged("its tree is deeper than it says")

    def keys(self) -> list[str]:
        """Return all keys (hexadecimal digits) in ascending order."""
        keys: list[bytes] = []
        for key in self._keys(self._root, self._depth) if self._root != _NO_ROOT else ():
            if keys and key <= keys[-1]:  # a page that is twice in the tree would be read repeatedly
                raise self._damaged("its keys are not sorted")
            keys.append(key)
        return [key.hex() for key in keys]

    def _state(self, start: int) -> tuple[int, int, int, int, int]:
        """Return page size in bytes, depth of the tree, page index of its root, last page and transaction."""
        try:
            magic, version, page_size, depth, root, last, transaction = _STATE_LAYOUT.unpack_from(self._content, start)
        except struct.error as error:
            raise self._damaged("it is too short") from error
        if magic != _MAGIC or version != _VERSION:
            raise self._damaged("it does not begin as one")
        if page_size not in (2**power for power in range(9, 17)) or depth > _MAX_DEPTH:
            raise self._damaged("its first pages are damaged")
        return page_size, depth, root, last, transaction

    def _page(self, page_index: int) -> tuple[memoryview, int, int]:
        """Return a page of the tree, its kind, and its number of nodes."""
        start = page_index * self._page_size
        if start >= self._end:
            raise self._damaged(f"it has no page {page_index}")
        page = self._content[start : start + self._page_size]
        own_number, kind, table_end = _PAGE_HEADER.unpack_from(page)
        count = (table_end - _PAGE_HEADER.size) // 2
        if own_number != page_index or kind not in (_BRANCH, _LEAF) or count < 1:
            raise self._damaged(f"page {page_index} is damaged")
        return page, kind, count

    def _node(self, page: memoryview, index: int) -> tuple[int, int, int, int, int]:
        """Return the start of a node's key in its page, and the four fields of its `_NODE_HEADER`."""
        try:
            (start,) = struct.unpack_from("=H", page, _PAGE_HEADER.size + 2 * index)
            return start + _NODE_HEADER.size, *_NODE_HEADER.unpack_from(page, start)
        except struct.error as error:
            raise self._damaged("a page points beyond its end") from error

    def _key(self, page: memoryview, index: int) -> bytes:
        """Return the key of node `index` in a page."""
        start, *_, size = self._node(page, index)
        return bytes(page[start : start + size])

    def _child(self, page: memoryview, index: int) -> int:
        """Return the page index of the child to which node `index` of a branch points."""
        _, low, middle, high, _ = self._node(page, index)
        return low | middle << 16 | high << 32

    def _value(self, page: memoryview, index: int) -> memoryview:
        """Return the value of a leaf's node `index`, which may be stored in pages of its own."""
        start, low, high, flags, key_size = self._node(page, index)
        start, size = start + key_size, low | high << 16
        if flags == 0:
            value = page[start : start + size]
        elif flags == _LONG_CONTENT_FLAG and start + 8 <= len(page):
            page_index = int.from_bytes(page[start : start + 8], sys.byteorder)
            start = page_index * self._page_size
            if start >= self._end or _PAGE_HEADER.unpack_from(self._content, start)[:2] != (page_index, _LONG):
                raise self._damaged(f"page {page_index} is damaged")
            start += _PAGE_HEADER.size
            value = self._content[start : min(start + size, self._end)]
        else:
            raise self._damaged("a record has unknown marks")
        if len(value) != size:
            raise self._damaged("a record is cut off")
        return value

    def _keys(self, page_index: int, depth: int) -> Iterator[bytes]:
        """Yield the keys of the tree under a page in order; `depth` is the maximum number of its levels."""
        if not depth:
            raise self._damaged("its tree is deeper than it says")
        page, kind, count = self._page(page_index)
        for index in range(count):
            if kind == _LEAF:
                yield self._key(page, index)
            else:
                yield from self._keys(self._child(page, index), depth - 1)

    def _damaged(self, problem: str) -> InputError:
        return InputError.at(self._path, f"not a complete feature database ({problem}); build it again")
