"""Prepare the training data and the benchmarks of the small model by an existing split.

    python examples/small/prepare.py DATA collection
    helixfold features --structures collection/structures --chains collection/chains.txt \\
        --alignments collection/alignments --templates-from collection/templates --templates-of-any-date \\
        --output training_set
    helixfold train training_set --recipe small --held-out collection/held_out.txt --output runs

collection/
  structures/, chains.txt     files (linked) and names of the training chains and of some targets to evaluate
  held_out.txt                names of these targets
  alignments/<chain>/         alignments of DATA, rows from the library and the sample databases, template hits; for
                              chains without enough natural rows, simulated homologs (simulated_homologs.py)
  templates/                  the library's files, under names that template hits can refer to
  benchmarks/*.tsv            the targets with their references, alignments and templates, for helixfold evaluate

The training uses nothing under a copyleft licence: neither structures, nor alignments, nor templates.
"""

import argparse
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from families import Relation, find_relations
from library import LibraryChain, by_name, read_library
from manifest import is_copyleft, link, rows
from natural_rows import natural_alignments
from simulated_homologs import add_simulated
from split import ALIGNMENT, SET_ASIDE, SINGLE, TEMPLATE, TRAIN, SplitChain, read_split

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.gemmi_chains import BLANK_CHAIN
from data_pipeline.parse.structures import read_structure
from data_pipeline.training_sets.chain_alignment import alignment_for_chain
from data_pipeline.training_sets.record_builder import chain_name

EVALUATED = {TEMPLATE: 24, ALIGNMENT: 16, SINGLE: 24}  # targets that the training evaluates
MAX_TEMPLATES = 8  # of a chain, in the training set
_DUPLICATE = 0.95  # identity from which a template has the structure of the chain itself
_MIN_NATURAL_ROWS = 16  # with fewer, simulated homologs are added


def evaluated_targets(split: Sequence[SplitChain]) -> list[SplitChain]:
    """Return the targets that the training evaluates, selected by a hash of their names."""
    targets = []
    for kind, count in EVALUATED.items():
        some = [chain for chain in split if chain.target == kind]
        targets += sorted(some, key=lambda chain: (zlib.crc32(chain.name.encode()), chain.name))[:count]
    return targets


def template_entry(file: str) -> str:
    """Return the name of a library file as a template's entry: letters, digits and '-', in lower case."""
    folder, _, name = file.partition("/")
    return re.sub(r"[^a-z0-9]", "-", f"{folder}-{name.split('.')[0]}".lower())


def hit_lines(
    chain: SplitChain, relations: Sequence[Relation], library: Mapping[str, LibraryChain], *, learnt: bool
) -> list[str]:
    """Return the template hits of a chain, best first, without its own entry and near-identical chains."""
    lines: list[str] = []
    for hit in relations:
        target = library[hit.target]
        usable = not (learnt and target.is_copyleft) and target.chain != BLANK_CHAIN
        if usable and hit.identity < _DUPLICATE and target.entry != library[chain.name].entry:
            name = f"{template_entry(target.file)}_{target.chain}"
            lines.append("\t".join((chain.name, name, *hit.columns)))
    return lines[:MAX_TEMPLATES]


def link_alignments(data: Path, output: Path, sets: Mapping[str, SplitChain]) -> dict[str, str]:
    """Link the alignments of training and evaluated chains; return the query of each chain's first alignment.

    Training chains only get alignments without a copyleft licence.
    """
    licences = {row["file"]: row["licence"] for row in rows(data / "manifest.tsv")}
    searched: dict[str, str] = {}
    for target in rows(data / "triples.tsv"):
        path = data / target["structure"]
        chain = BLANK_CHAIN if target["structure_chain"] == "_" else target["structure_chain"]
        name = chain_name(read_structure(path), chain, path)
        if name not in sets:
            continue
        for index, alignment in enumerate(target["msas"].split(";")):
            is_left = sets[name].set == TRAIN and is_copyleft(licences[alignment])
            if is_left or ".hhr" in alignment:  # some targets also list their template hits
                continue
            try:
                query = read_alignment(data / alignment, max_rows=1).query
            except InputError as error:
                print(f"left out: {error}", file=sys.stderr)
                continue
            link(data / alignment, output / "alignments" / name / f"{index}_{Path(alignment).name}")
            searched.setdefault(name, query)
    return searched


def fitted(path: Path, sequence: str, directory: Path) -> Path:
    """Return the path of an alignment of this sequence: `path`, or a copy in `directory` cut to it."""
    alignment = read_alignment(path)
    adapted = alignment_for_chain(alignment, sequence, path)
    if adapted is alignment:
        return path
    lines = []
    for name, row, insertions in zip(adapted.names, adapted.letters, adapted.deletion_matrix, strict=True):
        letters = row.tobytes().decode("ascii")
        # The inserted residues are unknown here and never read.
        lines += [
            f">{name}",
            "".join("x" * int(count) + letter for count, letter in zip(insertions, letters, strict=True)),
        ]
    copy = directory / f"{path.name.partition('.')[0]}.a3m"
    _write(copy, lines)
    return copy


def write_benchmarks(
    data: Path, output: Path, split: Sequence[SplitChain], library: Mapping[str, LibraryChain]
) -> None:
    """Write a benchmark table for each kind of target, with alignments and templates.

    An alignment of another version of the sequence, such as the whole chain of a domain, is cut to the sequence.
    """
    for kind in (TEMPLATE, ALIGNMENT, SINGLE):
        lines = ["id\tsequence\treferences\tmsa\ttemplates"]
        for chain in (chain for chain in split if chain.target == kind):
            folder = output / "alignments" / chain.name
            sequence = library[chain.name].sequence
            cut = output / "benchmarks" / "alignments" / chain.name
            deep = [fitted(path, sequence, cut) for path in sorted(folder.glob("[0-9]_*"))] if kind == ALIGNMENT else []
            template = library[chain.template].file if kind == TEMPLATE else ""
            cells = (
                chain.name,
                sequence,
                str((data / chain.file).resolve()),
                ";".join(str(path.resolve()) for path in deep),
                str((data / template).resolve()) if template else "",
            )
            lines.append("\t".join(cells))
        _write(output / "benchmarks" / f"{kind}.tsv", lines)


def _write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def prepare(data: Path, output: Path, split: Sequence[SplitChain], *, cpus: int, simulated_rows: int) -> None:
    """Write the whole collection; running it again changes nothing."""
    chains = read_library(data)
    library = by_name(chains)
    learnt = [chain for chain in split if chain.set == TRAIN]
    evaluated = evaluated_targets(split)
    used = {chain.name: chain for chain in (*learnt, *evaluated)}
    searched = link_alignments(
        data, output, {**used, **{chain.name: chain for chain in split if chain.target == ALIGNMENT}}
    )
    for chain in used.values():
        link(data / chain.file, output / "structures" / chain.file)
    for file in {chain.file for chain in split}:
        suffix = "".join(Path(file).suffixes[-2:])
        link(data / file, output / "templates" / f"{template_entry(file)}{suffix}")
    _write(output / "chains.txt", sorted(used))
    _write(output / "held_out.txt", [chain.name for chain in evaluated])
    hits: dict[str, list[Relation]] = {}
    for hit in find_relations(chains, cpus=cpus):
        hits.setdefault(hit.query, []).append(hit)
    for chain in used.values():
        # Hits have residue numbers of the query, so the query must be the chain's sequence.
        if searched.get(chain.name, library[chain.name].sequence) != library[chain.name].sequence:
            continue
        if lines := hit_lines(chain, hits.get(chain.name, []), library, learnt=chain.set != SET_ASIDE):
            _write(output / "alignments" / chain.name / "library.m8", lines)
    write_benchmarks(data, output, split, library)
    alone = [library[chain.name] for chain in learnt if chain.name not in searched]
    depths = natural_alignments(data, output / "alignments", alone, [library[chain.name] for chain in learnt], cpus)
    few = [chain for chain in alone if depths.get(chain.name, 1) < _MIN_NATURAL_ROWS]
    add_simulated(data, output / "alignments", few, alone, rows=simulated_rows)
    print(f"{len(learnt)} training chains, {len(evaluated)} evaluated; {len(searched)} with deep alignments,")
    print(f"{len(depths)} with rows from the library and sample databases, {len(few)} with simulated homologs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("output", type=Path, metavar="OUTPUT")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--simulated-rows", type=int, default=64, metavar="N", help="of an alignment (%(default)s)")
    options = parser.parse_args()
    try:
        prepare(options.data, options.output, read_split(), cpus=options.cpus, simulated_rows=options.simulated_rows)
    except (InputError, OSError) as error:
        sys.exit(f"prepare.py: {error}")
