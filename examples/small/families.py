"""Which chains of a library are related: relations by MMseqs2, the proteins and families that they make, templates."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from library import LibraryChain

from data_pipeline.search.mmseqs_program import require_mmseqs
from data_pipeline.search.process import run_program, working_directory

SENSITIVITY = 7.5
LEAST_COVERAGE = 0.5  # of the query
MAX_E_VALUE = 1e-3
SAME_PROTEIN = 0.6  # identity above which two chains are taken for one protein
SAME_TARGET = 0.9  # and above which one of them is enough to try a model on
# Columns of a hit table as the feature store reads it, and identity again, which has more digits so.
_COLUMNS = "query,target,fident,alnlen,mismatch,gapopen,qstart,qend,tstart,tend,evalue,bits,cigar"


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A hit of one chain's sequence on another's."""

    query: str
    target: str
    identity: float  # of the aligned residues, 0 to 1
    bits: float
    columns: tuple[str, ...]  # of the hit table, from the third on


def find_relations(chains: Sequence[LibraryChain], *, cpus: int = 2) -> list[Relation]:
    """Return all hits between different chains: MMseqs2 at sensitivity 7.5, at least half of the query covered."""
    unique: dict[str, list[str]] = {}
    for chain in chains:
        unique.setdefault(chain.sequence, []).append(chain.name)
    numbered = list(unique.items())
    program = require_mmseqs()
    with working_directory() as directory:
        fasta = "".join(f">{number}\n{sequence}\n" for number, (sequence, _) in enumerate(numbered))
        directory.joinpath("all.fasta").write_text(fasta)
        search = f"-s {SENSITIVITY} -e {MAX_E_VALUE} -c {LEAST_COVERAGE} --cov-mode 2 --max-seqs 4000 -a"
        for step in (
            ["createdb", "all.fasta", "all", "--dbtype", "1", "--shuffle", "0"],
            ["search", "all", "all", "hits", "steps", *search.split(), "--threads", str(cpus)],
            ["convertalis", "all", "all", "hits", "hits.m8", "--format-output", _COLUMNS, "--threads", str(cpus)],
        ):
            run_program([program, *step, "-v", "1"], timeout=None, directory=directory)
        table = directory.joinpath("hits.m8").read_text()
    found = []
    for line in table.splitlines():
        query, target, *columns = line.split("\t")
        for one in numbered[int(query)][1]:
            for other in numbered[int(target)][1]:
                if one != other:
                    identity, bits = float(columns[0]), float(columns[9])
                    found.append(
                        Relation(query=one, target=other, identity=identity, bits=bits, columns=tuple(columns))
                    )
    return sorted(found, key=lambda hit: (hit.query, -hit.bits, hit.target))


def components(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the connected component of each name: the first of its names, in alphabetical order."""
    parent = {name: name for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for one, other in pairs:
        first, second = sorted((root(one), root(other)))
        parent[second] = first
    return {name: root(name) for name in parent}


def families_of(chains: Sequence[LibraryChain], relations: Sequence[Relation]) -> dict[str, str]:
    """Return the family of each chain: all that are connected by relations or belong to one entry's copies."""
    return components((chain.name for chain in chains), ((hit.query, hit.target) for hit in relations))


def proteins_of(
    chains: Sequence[LibraryChain], relations: Sequence[Relation], least: float = SAME_PROTEIN
) -> dict[str, str]:
    """Return the protein of each chain: all that are connected by relations of at least 60 % identity, or `least`."""
    alike = ((hit.query, hit.target) for hit in relations if hit.identity >= least)
    return components((chain.name for chain in chains), alike)


def representatives(chains: Sequence[LibraryChain], relations: Sequence[Relation]) -> set[str]:
    """Return one of each group of chains of more than 90 % identity: a clustered one if any, then by chance."""
    groups = proteins_of(chains, relations, SAME_TARGET)
    ordered = sorted(chains, key=lambda chain: (not chain.is_clustered, zlib.crc32(chain.name.encode()), chain.name))
    found: dict[str, str] = {}
    for chain in ordered:
        found.setdefault(groups[chain.name], chain.name)
    return set(found.values())


def best_templates(
    chains: Sequence[LibraryChain], relations: Sequence[Relation], proteins: Mapping[str, str]
) -> dict[str, Relation]:
    """Return for each chain its best hit, by score, on a chain of another entry that is another protein."""
    entries = {chain.name: chain.entry for chain in chains}
    found: dict[str, Relation] = {}
    for hit in relations:  # the best of a query comes first
        other = proteins[hit.query] != proteins[hit.target] and entries[hit.query] != entries[hit.target]
        if other and hit.query not in found:
            found[hit.query] = hit
    return found
