"""Lay out the training set of the small model: clustered chains, and targets with alignments, as `features` reads them.

    python examples/small/collect.py DATA collection
    helixfold features --structures collection/structures --alignments collection/alignments --output training_set
    python examples/small/hold_out.py training_set > held_out.txt

DATA has `train_mmcif/` (one chain in each file, no two alike) and `triples.tsv` (target, alignments, structure, chain).
Files are linked, not copied. Running it again changes nothing.
"""

import argparse
import csv
import sys
from pathlib import Path

from data_pipeline.datasets.record_builder import chain_name
from data_pipeline.errors import InputError
from data_pipeline.parse.gemmi_chains import BLANK_CHAIN
from data_pipeline.parse.structures import read_structure

# Of several chains with one name the first by path counts, and that of a target with alignments should.
ALIGNED, CLUSTERED = "1_aligned", "2_clustered"


def collect(data: Path, output: Path) -> tuple[int, int]:
    """Link everything; how many targets with alignments and how many further chains there are."""
    with (data / "triples.tsv").open(encoding="utf-8", newline="") as file:
        targets = list(csv.DictReader(file, delimiter="\t"))
    chains = set()
    for target in targets:
        path = data / target["structure"]
        link(path, output / "structures" / ALIGNED / path.name)
        structure = read_structure(path)
        chain = BLANK_CHAIN if target["structure_chain"] == "_" else target["structure_chain"]
        name = chain_name(structure, chain, path)
        chains.add(name)
        for number, alignment in enumerate(target["msas"].split(";")):
            found = data / alignment
            # The deepest first: of equal rows and of too many, those that come first stay.
            link(found, output / "alignments" / name / f"{number}_{found.name}")
    files = sorted((data / "train_mmcif").iterdir())
    for path in files:
        link(path, output / "structures" / CLUSTERED / path.name)
    return len(chains), len(files)


def link(source: Path, target: Path) -> None:
    """A link to a file, where there is none yet."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink():
        target.symlink_to(source.resolve(strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("output", type=Path, metavar="OUTPUT")
    options = parser.parse_args()
    try:
        aligned, clustered = collect(options.data, options.output)
    except (InputError, OSError) as error:
        sys.exit(f"collect.py: {error}")
    print(f"{options.output}: {aligned} targets with alignments, {clustered} files of further chains")
