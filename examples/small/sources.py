"""List every file that the small model learnt from, with the repository that it was copied from and its licence.

    python examples/small/sources.py training_set held_out.txt DATA small_sources.tsv

DATA is what `collect.py` reads. The card has the numbers of files by licence, and says what follows from them.
"""

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chains import Chains

from data_pipeline.datasets.record_builder import chain_name
from data_pipeline.errors import InputError
from data_pipeline.files import atomic_write
from data_pipeline.parse.gemmi_chains import BLANK_CHAIN
from data_pipeline.parse.structures import read_structure

# Names of chains by the entry that they are of: of the Protein Data Bank, or a target of CASP.
_PDB, _CASP = re.compile(r"[1-9][a-z0-9]{3}_", re.IGNORECASE), re.compile(r"t\d{4}", re.IGNORECASE)
COLUMNS = ("kind", "chains", "file", "repository", "commit", "path", "licence")


def sources(names: set[str], data: Path) -> list[dict[str, str]]:
    """The structures that have the chains of these names, and the alignments of those that have any."""
    manifest = {row["file"]: row for row in rows(data / "manifest.tsv")}
    targets = sorted(rows(data / "triples.tsv"), key=lambda row: Path(row["structure"]).name)
    missing, structures, alignments = set(names), dict[str, list[str]](), dict[str, set[str]]()
    for target in targets:
        # Of several files with a chain of one name, the first that is a target's counts.
        path = data / target["structure"]
        structure = read_structure(path)
        found = {chain_name(structure, chain.name, path) for chain in structure.chains} & missing
        structures.setdefault(target["structure"], []).extend(sorted(found))
        missing -= found
        chain = BLANK_CHAIN if target["structure_chain"] == "_" else target["structure_chain"]
        name = chain_name(structure, chain, path)
        if name in names:
            for alignment in target["msas"].split(";"):
                alignments.setdefault(alignment, set()).add(name)
    for path in sorted((data / "train_mmcif").iterdir()):
        name = path.name.partition(".")[0]
        if name in missing:
            structures[f"train_mmcif/{path.name}"] = [name]
            missing.remove(name)
    if missing:
        raise InputError(f"there is no file of {', '.join(sorted(missing)[:5])}")
    used = [("structure", file, found) for file, found in sorted(structures.items()) if found]
    used += [("alignment", file, sorted(found)) for file, found in sorted(alignments.items())]
    return [line(kind, file, found, manifest) for kind, file, found in used]


def line(kind: str, file: str, chains: list[str], manifest: dict[str, dict[str, str]]) -> dict[str, str]:
    """A line of the list."""
    known = manifest[file]
    return {
        "kind": kind,
        "chains": ";".join(chains),
        "file": file,
        "repository": known["repo"],
        "commit": known["commit"],
        "path": known["path"],
        "licence": known["licence"] or "not known",
    }


def rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t")


@dataclass(frozen=True)
class SourceCounts:
    """What the card says of the list."""

    files: int
    licences: list[tuple[str, int, int]]  # each with the numbers of chains and of alignments; the most chains first
    repositories: list[tuple[str, str, int]]  # of alignments: repository, licence, number; the most first
    pdb: int  # chains
    casp: int
    unnamed: list[str]  # names of the other chains
    aligned: int  # chains with alignments
    copyleft: tuple[int, int, int]  # chains; alignments; chains with such an alignment


def counts(lines: Sequence[dict[str, str]]) -> SourceCounts:
    """The numbers of a list."""
    chains, alignments = Counter[str](), Counter[tuple[str, str]]()
    names, aligned, copyleft = list[str](), set[str](), set[str]()
    for each in lines:
        found = each["chains"].split(";")
        if each["kind"] == "structure":
            chains[each["licence"]] += len(found)
            names += found
            continue
        alignments[each["repository"], each["licence"]] += 1
        aligned |= set(found)
        copyleft |= set(found) if is_copyleft(each["licence"]) else set()
    by_licence = Counter[str]()
    for (_, licence), count in alignments.items():
        by_licence[licence] += count
    others = [name for name in names if not _CASP.match(name) and not _PDB.match(name)]
    return SourceCounts(
        files=len(lines),
        licences=[
            (licence, chains[licence], by_licence[licence])
            for licence in sorted({*chains, *by_licence}, key=lambda each: (-chains[each], each))
        ],
        repositories=[(*of, count) for of, count in sorted(alignments.items(), key=lambda each: (-each[1], each[0]))],
        pdb=sum(bool(_PDB.match(name)) for name in names),
        casp=sum(bool(_CASP.match(name)) for name in names),
        unnamed=sorted(others),
        aligned=len(aligned),
        copyleft=(
            sum(count for licence, count in chains.items() if is_copyleft(licence)),
            sum(count for licence, count in by_licence.items() if is_copyleft(licence)),
            len(copyleft),
        ),
    )


def is_copyleft(licence: str) -> bool:
    """Whether the licence is the GPL, the LGPL or the AGPL."""
    return "GPL" in licence


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("training_set", type=Path)
    parser.add_argument("held_out", type=Path, help="names of the chains that were not trained on")
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("output", type=Path, metavar="OUTPUT")
    options = parser.parse_args()
    try:
        found = sources(set(Chains.open(options.training_set, options.held_out).trained), options.data)
    except (InputError, OSError) as error:
        sys.exit(f"sources.py: {error}")
    with atomic_write(options.output) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    print(f"-> {options.output}: {len(found)} files")
