"""List every file that the small model was trained on, with its repository and licence.

    python examples/small/sources.py DATA collection training_set small_sources.tsv

DATA and collection are the arguments of prepare.py. Simulated homologs are computed from the structures and are not
listed. The model card has the numbers of files by licence.
"""

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from manifest import is_copyleft, rows
from natural_rows import SAMPLES
from prepare import template_entry
from split import SplitChain, read_split

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write
from data_pipeline.training_sets.store import FeatureStore
from helixfold.training.evaluate import read_names

# Names of chains of the Protein Data Bank, and of targets of CASP.
_PDB, _CASP = re.compile(r"[1-9][a-z0-9]{3}_", re.IGNORECASE), re.compile(r"t\d{4}", re.IGNORECASE)
COLUMNS = ("kind", "chains", "file", "repository", "commit", "path", "licence")
STRUCTURE, ALIGNMENT, TEMPLATE, SEQUENCES = "structure", "alignment", "template", "sequences"
KINDS = (STRUCTURE, ALIGNMENT, TEMPLATE, SEQUENCES)


def trained_chains(training_set: Path, held_out: Path) -> list[str]:
    """Return the names of the chains of a training set that are not held out, sorted."""
    names = {entry.name for entry in FeatureStore.open(training_set).entries}
    return sorted(names - set(read_names(held_out, names)))


def sources(names: Collection[str], split: Sequence[SplitChain], data: Path, collection: Path) -> list[dict[str, str]]:
    """Return a line for each file that the training used for these chains, and for each sample database.

    The files are structures, alignments and templates. Raise `InputError` if a chain is not in the split.
    """
    chains = {chain.name: chain for chain in split}
    if unknown := sorted(set(names) - chains.keys()):
        raise InputError(f"the split has no chain {', '.join(unknown[:5])}")
    entries = {template_entry(chain.file): chain.file for chain in split}
    used: dict[tuple[str, str], set[str]] = {}
    for name in names:
        used.setdefault((STRUCTURE, chains[name].file), set()).add(name)
        folder = collection / "alignments" / name
        for path in folder.glob("[0-9]*_*"):
            used.setdefault((ALIGNMENT, str(path.resolve().relative_to(data.resolve()))), set()).add(name)
        hits = folder / "library.m8"
        for line in hits.read_text(encoding="utf-8").splitlines() if hits.is_file() else ():
            entry = line.split("\t")[1].rpartition("_")[0]
            used.setdefault((TEMPLATE, entries[entry]), set()).add(name)
    manifest = {row["file"]: row for row in rows(data / "manifest.tsv")}
    for file, row in manifest.items():
        if file.startswith(SAMPLES) and not is_copyleft(row["licence"]):
            used[SEQUENCES, file] = set()
    return [
        {
            "kind": kind,
            "chains": ";".join(sorted(chain_names)),
            "file": file,
            "repository": manifest[file]["repo"],
            "commit": manifest[file]["commit"],
            "path": manifest[file]["path"],
            "licence": manifest[file]["licence"] or "not known",
        }
        for (kind, file), chain_names in sorted(used.items(), key=lambda item: (KINDS.index(item[0][0]), item[0][1]))
    ]


@dataclass(frozen=True, kw_only=True)
class SourceCounts:
    """Counts of the training data for the model card."""

    files: int
    licences: list[tuple[str, dict[str, int]]]  # counts of chains for structures, of files for the other kinds
    repositories: list[tuple[str, str, int]]  # of alignments: name, licence, files
    pdb: int  # chains
    casp: int
    unnamed: list[str]  # names of the other chains
    aligned: int  # chains with alignments from DATA
    with_templates: int  # chains with relatives among the templates


def counts(lines: Sequence[dict[str, str]]) -> SourceCounts:
    """Count the lines of `sources`."""
    by_licence: dict[str, Counter[str]] = {}
    alignments, names = Counter[tuple[str, str]](), list[str]()
    chains: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for each in lines:
        chain_names = each["chains"].split(";") if each["chains"] else []
        chains[each["kind"]] |= set(chain_names)
        amount = len(chain_names) if each["kind"] == STRUCTURE else 1
        by_licence.setdefault(each["licence"], Counter())[each["kind"]] += amount
        if each["kind"] == STRUCTURE:
            names += chain_names
        elif each["kind"] == ALIGNMENT:
            alignments[each["repository"], each["licence"]] += 1
    return SourceCounts(
        files=len({each["file"] for each in lines}),
        licences=[
            (licence, {kind: by_licence[licence][kind] for kind in KINDS})
            for licence in sorted(by_licence, key=lambda each: (-by_licence[each][STRUCTURE], each))
        ],
        repositories=[(*of, count) for of, count in sorted(alignments.items(), key=lambda each: (-each[1], each[0]))],
        pdb=sum(bool(_PDB.match(name)) for name in names),
        casp=sum(bool(_CASP.match(name)) for name in names),
        unnamed=sorted(name for name in names if not _CASP.match(name) and not _PDB.match(name)),
        aligned=len(chains[ALIGNMENT]),
        with_templates=len(chains[TEMPLATE]),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("collection", type=Path)
    parser.add_argument("training_set", type=Path)
    parser.add_argument("output", type=Path, metavar="OUTPUT")
    options = parser.parse_args()
    try:
        names = trained_chains(options.training_set, options.collection / "held_out.txt")
        lines = sources(names, read_split(), options.data, options.collection)
    except (InputError, OSError) as error:
        sys.exit(f"sources.py: {error}")
    with atomic_write(options.output) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    print(f"-> {options.output}: {len(lines)} lines")
