"""Hostile files, and reading them under a limit on memory in a process of its own.

    python -m tests.data_pipeline.parse.hostile_files FOLDER CASE...

The limit is 1 GiB above what the imports take; a parser that needs more dies of a `MemoryError`.
"""

import gzip
import resource
import sys
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.parse import text_files
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.stockholm import a3m_to_stockholm, deduplicated, stockholm_to_a3m, without_empty_columns
from data_pipeline.parse.template_hit import parse_hmmsearch
from data_pipeline.parse.text_files import read_text_bytes
from tests.data_pipeline.parse.hhr_files import read_hhr

ALLOWED = 2**30
MIB = 2**20


# Pieces of a file, made only when they are written: they must not count as memory that was there before.
Pieces = Callable[[], Iterable[bytes]]


def repeated(unit: bytes, size: int) -> Pieces:
    """About `size` bytes of this text."""
    count = max(1, MIB // len(unit))
    return lambda: repeat(unit * count, max(1, size // (len(unit) * count)))


def numbered(row: bytes, rows: int) -> Pieces:
    """Stockholm rows of different names."""
    return lambda: (b"%x %s\n" % (number, row) for number in range(rows))


def edit(change: Callable[[bytes], object]) -> Callable[[Path], object]:
    return lambda path: change(read_text_bytes(path, 3 * 2**26))


HIT = b"No 1\n>x\nAligned_cols=1 Sum_probs=1\n"
WIDE = b"-A" * 500_000

# Beginning, then a piece that is repeated, and what reads it. Those of the first group take a second each.
QUICK: dict[str, tuple[bytes, Pieces, Callable[[Path], object]]] = {
    "one line without end": (b">q\nACD\n>h\n", repeated(b"A", 600 * MIB), read_alignment),
    "one header without end": (b">q\nACD\n>", repeated(b"\xf0\x9f\x98\x80", 600 * MIB), read_alignment),
    "one row of many lines": (b">q\nACD\n>h\n", repeated(b"A\n", 600 * MIB), read_alignment),
    "nothing but line ends": (b"", repeated(b"\n", 600 * MIB), read_alignment),
    "a hit of many lines": (HIT, repeated(b"Q\n", 20 * MIB), read_hhr),
    "a target of many columns to Stockholm": (b">q\nA", repeated(b"C", MIB), edit(a3m_to_stockholm)),
}
SLOW: dict[str, tuple[bytes, Pieces, Callable[[Path], object]]] = {
    "rows of many columns": (
        b">q\n" + b"A" * 2_000_000 + b"\n",
        repeated(b">h\n" + b"A" * 2_000_000 + b"\n", 800 * MIB),
        read_alignment,
    ),
    "long insertions": (
        b">q\n" + b"A" * 100_000 + b"\n",
        repeated(b">h\n" + b"A" * 99_999 + b"a" * 40_000 + b"A\n", 1000 * MIB),
        read_alignment,
    ),
    "aligned rows of many columns": (b"", repeated(b">h\n" + WIDE + b"\n", 400 * MIB), read_alignment),
    "blocks of many columns": (b"# STOCKHOLM 1.0\n", repeated(b"q " + WIDE + b"\n", 600 * MIB), read_alignment),
    "insertions to Stockholm": (
        b">q\n" + b"A" * 1000 + b"\n",
        repeated(b">h\n" + b"A" * 999 + b"a" * 1000 + b"A\n", 30 * MIB),
        edit(a3m_to_stockholm),
    ),
    "Stockholm to a3m": (b"", numbered(WIDE, 180), edit(stockholm_to_a3m)),
    "Stockholm compacted": (b"", numbered(WIDE, 180), edit(without_empty_columns)),
    "Stockholm deduplicated": (b"", numbered(WIDE, 180), edit(deduplicated)),
    "many rows to a3m": (
        b"",
        lambda: repeat("".join(f"{n:x} A\n" for n in range(150_000)).encode(), 100),
        edit(stockholm_to_a3m),
    ),
    "hits of many columns": (
        b"",
        repeated(b"1abc_A/1-9 " + WIDE + b"\n", 180 * MIB),
        edit(lambda content: parse_hmmsearch(content, "A")),
    ),
    "a hit of many columns": (
        HIT,
        repeated(b"".join(b"%c x               1 %s 99999 (1)\n" % (side, b"A" * 99_999) for side in b"QT"), 30 * MIB),
        read_hhr,
    ),
    "many hits": (
        b"",
        repeated(HIT + b"Q q               1 A 1 (1)\nT t               1 A 1 (1)\n", 30 * MIB),
        read_hhr,
    ),
    "many rows": (b">q\nA\n", repeated(b">abc\nA\n", 600 * MIB), read_alignment),
    "many rows of .aln": (b"A\n", repeated(b"A\n", 600 * MIB), read_alignment),
    "many blocks": (b"# STOCKHOLM 1.0\n", repeated(b"q A\n", 600 * MIB), read_alignment),
}
# Those of them that take seconds, and of which the others show the like.
LONG = {
    *("blocks of many columns", "insertions to Stockholm", "many hits", "many rows", "many rows of .aln"),
    *("aligned rows of many columns", "many rows to a3m", "Stockholm compacted", "Stockholm to a3m"),
    *("rows of many columns", "long insertions", "Stockholm deduplicated", "many blocks"),
}


def main(folder: str, *cases: str) -> None:
    text_files._MAX_RATIO = 2000  # what is tried here lies beyond the first line of defence
    files = [write(Path(folder) / f"{index}.gz", *(QUICK | SLOW)[case][:2]) for index, case in enumerate(cases)]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ALLOWED, used + ALLOWED))
    for case, path in zip(cases, files, strict=True):
        try:
            (QUICK | SLOW)[case][2](path)
        except InputError as error:
            print(f"{case}: {str(error)[:200]}")
        else:
            print(f"{case}: a value")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"    {peak / 1024:.0f} MiB at most", flush=True)


def write(path: Path, beginning: bytes, pieces: Pieces) -> Path:
    """A file of many gzip members is one of their contents joined."""
    last, packed = beginning, gzip.compress(beginning)
    with path.open("wb") as file:
        file.write(packed)
        for piece in pieces():
            if piece is not last:
                last, packed = piece, gzip.compress(piece, 1)
            file.write(packed)
    return path


if __name__ == "__main__":
    main(*sys.argv[1:])
