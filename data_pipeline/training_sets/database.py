"""Read the database of a feature store: an LMDB file, which holds byte strings by key in a tree of pages.

LMDB's library, which writes it, is not used to read it: it trusts every page, so that a damaged one makes it read
beyond the end of the file, and the system then ends the process (SIGBUS).
"""

import mmap
import struct
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import os_errors_as_input_errors, require_file

# Format 1, of LMDB 0.9, on machines of 64 bits. Each of the first two pages describes a state of the tree: magic number
# and version, size of a page, depth and root of the tree, last page, number of the transaction that made it.
_STATE = struct.Struct("=16xII16xI50xH32xQQQ")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_NO_ROOT = 2**64 - 1
_PAGE = struct.Struct("=Q2xHH2x")  # its number, its kind, the end of its table of nodes
_NODE = struct.Struct("=HHHH")  # two halves of a size or a page number, its third part or flags, size of the key
_BRANCH, _LEAF, _LONG = 1, 2, 4  # kinds of pages
_IS_LONG = 1  # flag of a node whose content is on pages of its own
_MAX_DEPTH = 16


class Database:
    """Reader of a database, which may be shared by threads and by forked processes.

    Every method raises `InputError` if a page that it reads is damaged.
    """

    def __init__(self, path: Path) -> None:
        """Open a database; raise `InputError` if the file is none, or is incomplete."""
        self._path = path
        require_file(path)
        with os_errors_as_input_errors(path, "cannot be read"), path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            content.madvise(mmap.MADV_RANDOM)  # records are drawn in random order
        self._content = memoryview(content)
        first = self._state(0)
        self._page_size, self._depth, self._root, last, _ = max(
            first, self._state(first[0]), key=lambda state: state[-1]
        )
        self._end = (last + 1) * self._page_size
        if self._end > len(content):
            raise InputError.at(path, "the file is cut off; copy it again, or build the feature store again")
        if self._root != _NO_ROOT:
            self._page(self._root)

    def get(self, key: str) -> memoryview | None:
        """Return the content of the record under a key (hexadecimal digits), or None if there is none."""
        wanted, number = bytes.fromhex(key), self._root
        if number == _NO_ROOT:
            return None
        for _ in range(self._depth):
            page, kind, count = self._page(number)
            if kind == _LEAF:
                index = bisect_left(range(count), wanted, key=lambda node: self._key(page, node))
                return self._value(page, index) if index < count and self._key(page, index) == wanted else None
            # The first key of a branch is left out, for its child has all keys below the second one.
            index = bisect_right(range(1, count), wanted, key=lambda node: self._key(page, node))
            number = self._child(page, index)
        raise self._damaged("its tree is deeper than it says")

    def keys(self) -> list[str]:
        """Return all keys in ascending order."""
        keys: list[bytes] = []
        for key in self._keys(self._root, self._depth) if self._root != _NO_ROOT else ():
            if keys and key <= keys[-1]:  # a page that stands in the tree twice would be read again and again
                raise self._damaged("its keys are in no order")
            keys.append(key)
        return [key.hex() for key in keys]

    def _state(self, start: int) -> tuple[int, int, int, int, int]:
        try:
            magic, version, page_size, depth, root, last, transaction = _STATE.unpack_from(self._content, start)
        except struct.error as error:
            raise self._damaged("it is too short") from error
        if magic != _MAGIC or version != _VERSION:
            raise self._damaged("it does not begin as one")
        if page_size not in (2**power for power in range(9, 17)) or depth > _MAX_DEPTH:
            raise self._damaged("its first pages are damaged")
        return page_size, depth, root, last, transaction

    def _page(self, number: int) -> tuple[memoryview, int, int]:
        """Return a page of the tree, its kind, and the number of its nodes."""
        start = number * self._page_size
        if start >= self._end:
            raise self._damaged(f"it has no page {number}")
        page = self._content[start : start + self._page_size]
        own_number, kind, table_end = _PAGE.unpack_from(page)
        count = (table_end - _PAGE.size) // 2
        if own_number != number or kind not in (_BRANCH, _LEAF) or count < 1:
            raise self._damaged(f"page {number} is damaged")
        return page, kind, count

    def _node(self, page: memoryview, index: int) -> tuple[int, int, int, int, int]:
        try:
            (start,) = struct.unpack_from("=H", page, _PAGE.size + 2 * index)
            return start + _NODE.size, *_NODE.unpack_from(page, start)
        except struct.error as error:
            raise self._damaged("a page points beyond its end") from error

    def _key(self, page: memoryview, index: int) -> bytes:
        start, *_, size = self._node(page, index)
        return bytes(page[start : start + size])

    def _child(self, page: memoryview, index: int) -> int:
        _, low, middle, high, _ = self._node(page, index)
        return low | middle << 16 | high << 32

    def _value(self, page: memoryview, index: int) -> memoryview:
        start, low, high, flags, key_size = self._node(page, index)
        start, size = start + key_size, low | high << 16
        if flags == 0:
            value = page[start : start + size]
        elif flags == _IS_LONG and start + 8 <= len(page):
            number = int.from_bytes(page[start : start + 8], sys.byteorder)
            start = number * self._page_size
            if start >= self._end or _PAGE.unpack_from(self._content, start)[:2] != (number, _LONG):
                raise self._damaged(f"page {number} is damaged")
            start += _PAGE.size
            value = self._content[start : min(start + size, self._end)]
        else:
            raise self._damaged("a record has unknown marks")
        if len(value) != size:
            raise self._damaged("a record is cut off")
        return value

    def _keys(self, number: int, depth: int) -> Iterator[bytes]:
        if not depth:
            raise self._damaged("its tree is deeper than it says")
        page, kind, count = self._page(number)
        for index in range(count):
            if kind == _LEAF:
                yield self._key(page, index)
            else:
                yield from self._keys(self._child(page, index), depth - 1)

    def _damaged(self, problem: str) -> InputError:
        return InputError.at(self._path, f"not a complete feature database ({problem}); build it again")
