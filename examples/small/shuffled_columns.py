"""Shuffle the rows within each column of a benchmark's alignments, which keeps the profile but no covariation.

    python examples/small/shuffled_columns.py collection/benchmarks/alignment.tsv --output shuffled

Writes shuffled/alignment.tsv, the same targets with one alignment each, shuffled/<target>.a3m. A model that is not
better with the real alignment than with this one has not learnt to use covariation. The target's row stays as it is.
"""

import argparse
import csv
import sys
import zlib
from pathlib import Path

import numpy as np

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write
from data_pipeline.parse.alignment import read_alignment

_MAX_ROWS = 4096  # of an alignment; the network reads far fewer


def shuffled_letters(letters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the rows (n r) with the letters of each column shuffled, except the target's row."""
    return np.concatenate([letters[:1], rng.permuted(letters[1:], axis=0)])


def shuffle_benchmark(table: Path, output: Path) -> int:
    """Write the alignments and the table; return the number of targets."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows:
        alignments = [read_alignment(path, max_rows=_MAX_ROWS) for path in row["msa"].split(";")]
        query = alignments[0].query
        letters = np.concatenate([each.letters for each in alignments if each.query == query])
        rng = np.random.default_rng(zlib.crc32(row["id"].encode()))
        text = "".join(
            f">{index}\n{line.tobytes().decode()}\n" for index, line in enumerate(shuffled_letters(letters, rng))
        )
        path = output / f"{row['id']}.a3m"
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="ascii")
        row["msa"] = str(path.resolve())
    with atomic_write(output / table.name) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, help="a benchmark with alignments, as prepare.py writes it")
    parser.add_argument("--output", type=Path, default=Path("shuffled"))
    options = parser.parse_args()
    try:
        count = shuffle_benchmark(options.table, options.output)
    except (InputError, OSError) as error:
        sys.exit(f"shuffled_columns.py: {error}")
    print(f"-> {options.output}: {count} targets")
