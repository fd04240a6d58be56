"""Relations between the chains of a library by MMseqs2: proteins, families and best templates."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from library import LibraryChain

from data_pipeline.search.mmseqs_program import require_mmseqs
from data_pipeline.search.process import run_program, working_directory

SENSITIVITY = 7.5
MIN_COVERAGE = 0.5  # of the query
MAX_E_VALUE = 1e-3
SAME_PROTEIN = 0.6  # identity above which two chains count as one protein
SAME_TARGET = 0.9  # identity above which only one chain is a target
# Columns of a hit table as the feature store reads it.
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
        fasta = "".join(f">{index}\n{sequence}\n" for index, (sequence, _) in enumerate(numbered))
        directory.joinpath("all.fasta").write_text(fasta)
        search = f"-s {SENSITIVITY} -e {MAX_E_VALUE} -c {MIN_COVERAGE} --cov-mode 2 --max-seqs 4000 -a"
        for step in (
            ["createdb", "all.fasta", "all", "--dbtype", "1", "--shuffle", "0"],
            ["search", "all", "all", "hits", "steps", *search.split(), "--threads", str(cpus)],
            ["convertalis", "all", "all", "hits", "hits.m8", "--format-output", _COLUMNS, "--threads", str(cpus)],
        ):
            run_program([program, *step, "-v", "1"], timeout=None, directory=directory)
        table = directory.joinpath("hits.m8").read_text()
    relations = []
    for line in table.splitlines():
        query, target, *columns = line.split("\t")
        for one in numbered[int(query)][1]:
            for other in numbered[int(target)][1]:
                if one != other:
                    identity, bits = float(columns[0]), float(columns[9])
                    relations.append(
                        Relation(query=one, target=other, identity=identity, bits=bits, columns=tuple(columns))
                    )
    return sorted(relations, key=lambda hit: (hit.query, -hit.bits, hit.target))


def components(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the connected component of each name: the alphabetically first of its names."""
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
    """Return the family of each chain: the chains that relations connect, directly or through others."""
    return components((chain.name for chain in chains), ((hit.query, hit.target) for hit in relations))


def proteins_of(
    chains: Sequence[LibraryChain], relations: Sequence[Relation], min_identity: float = SAME_PROTEIN
) -> dict[str, str]:
    """Return the protein of each chain: the chains that relations of at least `min_identity` (0 to 1) connect."""
    alike = ((hit.query, hit.target) for hit in relations if hit.identity >= min_identity)
    return components((chain.name for chain in chains), alike)


def representatives(chains: Sequence[LibraryChain], relations: Sequence[Relation]) -> set[str]:
    """Return one of each group of chains of more than 90 % identity: a clustered one if any, then by a hash."""
    groups = proteins_of(chains, relations, SAME_TARGET)
    ordered = sorted(chains, key=lambda chain: (not chain.is_clustered, zlib.crc32(chain.name.encode()), chain.name))
    by_group: dict[str, str] = {}
    for chain in ordered:
        by_group.setdefault(groups[chain.name], chain.name)
    return set(by_group.values())


def best_templates(
    chains: Sequence[LibraryChain], relations: Sequence[Relation], proteins: Mapping[str, str]
) -> dict[str, Relation]:
    """Return for each chain its best hit, by score, on a chain of another entry that is another protein."""
    entries = {chain.name: chain.entry for chain in chains}
    best: dict[str, Relation] = {}
    for hit in relations:  # sorted, the best hit of a query first
        other = proteins[hit.query] != proteins[hit.target] and entries[hit.query] != entries[hit.target]
        if other and hit.query not in best:
            best[hit.query] = hit
    return best
