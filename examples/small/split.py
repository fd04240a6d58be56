"""Divide all chains into training chains and held-out families for the small model.

    python examples/small/split.py DATA

Writes split.tsv (a line for each chain) and split_counts.tsv next to this file, before any training. DATA has
`manifest.tsv`, `triples.tsv` and the structures. The split only depends on the sequences and names.

Families are held out whole, so that no training chain has a relative among the targets:

template    targets whose best template, a chain of another protein, has an identity within one of several ranges
alignment   targets with deep alignments
single      clustered chains without an alignment or a template

Chains from repositories under a copyleft licence may be targets and templates of targets, but not training chains.
"""

import argparse
import csv
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from families import Relation, best_templates, families_of, find_relations, proteins_of, representatives
from library import LibraryChain, read_library
from manifest import is_copyleft, rows

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write
from data_pipeline.parse.gemmi_chains import BLANK_CHAIN
from data_pipeline.parse.structures import read_structure
from data_pipeline.training_sets.record_builder import chain_name

HERE = Path(__file__).parent
SPLIT_FILE, COUNTS_FILE = "split.tsv", "split_counts.tsv"
TRAIN, SET_ASIDE, COPYLEFT = "train", "set_aside", "copyleft"
TEMPLATE, ALIGNMENT, SINGLE = "template", "alignment", "single"
# Lower limits of identity to the best template, in per cent; two chains of 60 % or more are one protein.
BINS = (0, 20, 25, 30, 40, 50)
# Minimum number of targets in each bin. Few are below 25 %, because a search rarely finds such templates.
FILLED = {20: 12, 25: 25, 30: 25, 40: 25, 50: 25}
ALIGNED_TARGETS = 16
SINGLE_TARGETS = 132
LONGEST_TARGET = 400  # residues, so that all targets can be folded within an hour on two cores
_LARGEST_SINGLE_FAMILY = 4  # chains, of a family that is set aside for a single target
_LARGEST_FAMILY_SHARE = 0.02  # of all chains, of a family that is set aside for templates
_ALIGNMENT_COST = 20  # chains that an alignment is worth, if its family is set aside for templates


@dataclass(frozen=True, kw_only=True)
class SplitChain:
    """A line of split.tsv: one chain."""

    name: str
    file: str
    chain: str
    length: int
    family: str
    protein: str
    set: str  # train, set_aside (held out) or copyleft
    target: str  # template, alignment or single; empty for other chains
    template: str  # name of the best template of a target; empty if there is none
    identity: float | None  # to that template, 0 to 1


def bin_of(identity: float) -> int:
    """Return the lower limit, in per cent, of the bin of an identity from 0 to 1."""
    return max(low for low in BINS if 100 * identity >= low)


def split_chains(
    chains: Sequence[LibraryChain], relations: Sequence[Relation], aligned: Mapping[str, tuple[int, bool]]
) -> list[SplitChain]:
    """Divide the chains; `aligned` maps chains with alignments to the depth and whether all are under copyleft."""
    families, proteins = families_of(chains, relations), proteins_of(chains, relations)
    best = best_templates(chains, relations, proteins)
    standing = representatives(chains, relations)
    members: dict[str, list[LibraryChain]] = {}
    for chain in chains:
        members.setdefault(families[chain.name], []).append(chain)
    valuable = Counter(families[name] for name, (_, is_left) in aligned.items() if not is_left)
    candidates = [
        chain
        for chain in chains
        if chain.name in standing and chain.name in best and len(chain.sequence) <= LONGEST_TARGET
    ]
    limit = max(_LARGEST_SINGLE_FAMILY, int(_LARGEST_FAMILY_SHARE * len(chains)))
    small = {family for family, some in members.items() if len(some) <= limit}
    families_aside = families_for_bins(
        {
            family: Counter(bin_of(best[chain.name].identity) for chain in candidates if families[chain.name] == family)
            for family in sorted({families[chain.name] for chain in candidates} & small)
        },
        {
            family: sum(not chain.is_copyleft for chain in members[family]) + _ALIGNMENT_COST * valuable[family]
            for family in small
        },
    )
    targets = dict.fromkeys((chain.name for chain in candidates if families[chain.name] in families_aside), TEMPLATE)
    left = {name for name in aligned if families[name] in families_aside or not valuable[families[name]]}
    deep = aligned_targets({name: aligned[name][0] for name in left - targets.keys()})
    targets |= dict.fromkeys(deep, ALIGNMENT)
    families_aside |= {families[name] for name in deep}
    alone = single_targets(
        chain
        for chain in chains
        if chain.is_clustered
        and chain.name not in targets
        and chain.name not in aligned
        and len(chain.sequence) <= LONGEST_TARGET
        and len(members[families[chain.name]]) <= _LARGEST_SINGLE_FAMILY
        and not valuable[families[chain.name]]
    )
    targets |= dict.fromkeys(alone, SINGLE)
    families_aside |= {families[name] for name in alone}
    return [
        _split_chain(
            chain,
            family=families[chain.name],
            protein=proteins[chain.name],
            template=best.get(chain.name),
            is_aside=families[chain.name] in families_aside,
            target=targets.get(chain.name, ""),
        )
        for chain in chains
    ]


def _split_chain(
    chain: LibraryChain, *, family: str, protein: str, template: Relation | None, is_aside: bool, target: str
) -> SplitChain:
    template = template if target else None
    return SplitChain(
        name=chain.name,
        file=chain.file,
        chain=chain.chain,
        length=len(chain.sequence),
        family=family,
        protein=protein,
        set=SET_ASIDE if is_aside else COPYLEFT if chain.is_copyleft else TRAIN,
        target=target,
        template=template.target if template else "",
        identity=template.identity if template else None,
    )


def families_for_bins(targets: Mapping[str, Counter[int]], costs: Mapping[str, int]) -> set[str]:
    """Choose families until each bin has enough targets, greedily by targets per chain lost for training.

    `targets` has the number of targets of each family by bin, and `costs` the number of chains lost with it. A hash of
    the name decides between equal families.
    """
    missing = dict(FILLED)
    families_aside: set[str] = set()

    def gain(family: str) -> tuple[float, int, str]:
        useful = sum(min(missing[low], targets[family][low]) for low in FILLED)
        return useful / max(1, costs[family]) if useful else 0.0, -zlib.crc32(family.encode()), family

    while any(count > 0 for count in missing.values()):
        left = [family for family in targets if family not in families_aside]
        best = max(left, key=gain, default=None)
        if best is None or gain(best)[0] == 0:
            break
        families_aside.add(best)
        for low in FILLED:
            missing[low] = max(0, missing[low] - targets[best][low])
    return families_aside


def aligned_targets(depths: Mapping[str, int]) -> list[str]:
    """Choose 16 targets with alignments, evenly from the deepest to the shallowest."""
    ordered = sorted(depths, key=lambda name: (-depths[name], name))
    if len(ordered) <= ALIGNED_TARGETS:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (ALIGNED_TARGETS - 1))] for place in range(ALIGNED_TARGETS)]


def single_targets(chains: Iterable[LibraryChain]) -> list[str]:
    """Choose 132 chains by a hash of their names; chains that the first edition held out come first."""
    codes = {chain.name: zlib.crc32(chain.name.encode()) for chain in chains}
    return sorted(codes, key=lambda name: (codes[name] % 10, codes[name], name))[:SINGLE_TARGETS]


def read_aligned(data: Path) -> dict[str, tuple[int, bool]]:
    """Return the depth of the alignments of each chain that has any, and whether all of them are under copyleft."""
    licences = {row["file"]: row["licence"] for row in rows(data / "manifest.tsv")}
    alignments: dict[str, tuple[int, bool]] = {}
    for target in rows(data / "triples.tsv"):
        path = data / target["structure"]
        chain = BLANK_CHAIN if target["structure_chain"] == "_" else target["structure_chain"]
        name = chain_name(read_structure(path), chain, path)
        is_left = all(is_copyleft(licences[alignment]) for alignment in target["msas"].split(";"))
        depth, before = alignments.get(name, (0, True))
        alignments[name] = max(depth, int(target["depth"])), before and is_left
    return alignments


def counts_table(split: Sequence[SplitChain], best: Mapping[str, Relation], standing: set[str]) -> str:
    """Return a table with the numbers of chains, different chains, held-out chains and targets by bin of identity."""
    lines = ["best_template_identity\tchains\tdifferent\tset_aside\ttargets"]
    for low, high in zip(BINS, (*BINS[1:], 60), strict=True):
        some = [chain for chain in split if chain.name in best and bin_of(best[chain.name].identity) == low]
        aside = sum(chain.set == SET_ASIDE for chain in some)
        targets = sum(chain.target == TEMPLATE for chain in some)
        different = sum(chain.name in standing for chain in some)
        lines.append(f"{low}-{high}\t{len(some)}\t{different}\t{aside}\t{targets}")
    none = [chain for chain in split if chain.name not in best]
    different = sum(chain.name in standing for chain in none)
    lines.append(f"none\t{len(none)}\t{different}\t{sum(chain.set == SET_ASIDE for chain in none)}\t0")
    return "".join(f"{line}\n" for line in lines)


def write_split(split: Sequence[SplitChain], path: Path) -> None:
    """Write the table, sorted by name."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(SplitChain.__dataclass_fields__)
        for chain in split:
            values = dict(vars(chain))
            values["identity"] = "" if chain.identity is None else f"{chain.identity:.3f}"
            writer.writerow(values.values())


def read_split(path: Path = HERE / SPLIT_FILE) -> list[SplitChain]:
    """Read the table that `write_split` writes."""
    chains = []
    for row in rows(path):
        identity = row.pop("identity")
        length = int(row.pop("length"))
        chains.append(SplitChain(**row, length=length, identity=float(identity) if identity else None))
    return chains


def main(data: Path, output: Path, cpus: int) -> None:
    """Write both tables, and print the numbers of sets and targets."""
    chains = read_library(data)
    relations = find_relations(chains, cpus=cpus)
    names = {chain.name for chain in chains}
    aligned = {name: about for name, about in read_aligned(data).items() if name in names}
    split = split_chains(chains, relations, aligned)
    proteins = proteins_of(chains, relations)
    counts = counts_table(split, best_templates(chains, relations, proteins), representatives(chains, relations))
    write_split(split, output / SPLIT_FILE)
    with atomic_write(output / COUNTS_FILE) as temporary:
        temporary.write_text(counts, encoding="utf-8")
    print(counts, end="")
    print(dict(Counter(chain.set for chain in split)), dict(Counter(chain.target for chain in split if chain.target)))
    largest = Counter(chain.family for chain in split).most_common(3)
    print(f"{len({chain.family for chain in split})} families, the largest {largest}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--output", type=Path, default=HERE, help="where the tables go (%(default)s)")
    parser.add_argument("--cpus", type=int, default=2)
    options = parser.parse_args()
    try:
        main(options.data, options.output, options.cpus)
    except (InputError, OSError) as error:
        sys.exit(f"split.py: {error}")
