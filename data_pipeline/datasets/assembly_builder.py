"""Building of an assembly's record from a structure file and the records of its chains."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.datasets.assembly_record import ASSEMBLY_VERSION, AssemblyRecord, PlacedChain, motion_of
from data_pipeline.datasets.build_cache import content_key, file_digest
from data_pipeline.datasets.chain_alignment import alignment_for_chain
from data_pipeline.datasets.source_files import AlignmentFile
from data_pipeline.features.pairing import PairingRows
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.assemblies import read_assembly

# Differs from AlphaFold: features of larger assemblies do not fit the memory of a loader's worker.
MAX_ASSEMBLY_RESIDUES = 10_000


@dataclass(frozen=True, kw_only=True)
class AcceptedChain:
    """A chain that has a record: its name in the training set, its sequence, and the search for paired rows."""

    name: str
    sequence: str
    key: str
    pairing: AlignmentFile | None


def assembly_key(path: Path, digest: str, chains: Mapping[str, AcceptedChain]) -> str:
    """Return the hash of all inputs of an assembly's record; `chains` are those of the file, by the author's id."""
    inputs = [
        [chain, each.name, each.key, each.pairing and [each.pairing.path.name, file_digest(each.pairing.path)]]
        for chain, each in sorted(chains.items())
    ]
    return content_key("assembly", ASSEMBLY_VERSION, path.name, digest, inputs)


def build_assembly(name: str, path: Path, chains: Mapping[str, AcceptedChain]) -> AssemblyRecord:
    """Build the record of a file's first assembly, with the chains that have a record.

    Raise `InputError` if the file or a search for paired rows cannot be read.
    """
    assembly = read_assembly(path)
    if assembly.problem:
        return AssemblyRecord(name=name, pairing={}, problem=assembly.problem)
    copies = [copy for copy in assembly.copies if copy.chain in chains]
    residues = sum(len(chains[copy.chain].sequence) for copy in copies)
    if not copies:
        problem = "none of its assembly's chains is in the training set"
        return AssemblyRecord(name=name, pairing={}, problem=problem)
    if residues > MAX_ASSEMBLY_RESIDUES:
        problem = f"its assembly has {residues:,} residues, and at most {MAX_ASSEMBLY_RESIDUES:,} are allowed"
        return AssemblyRecord(name=name, pairing={}, problem=problem)
    different = {chains[copy.chain].sequence: chains[copy.chain] for copy in copies}
    # The rows of one sequence have no others to be paired with.
    paired = [chain for chain in different.values() if chain.pairing is not None and len(different) > 1]
    return AssemblyRecord(
        name=name,
        chains=tuple(
            PlacedChain(name=chains[copy.chain].name, motion=motion_of(copy.rotation, copy.translation))
            for copy in copies
        ),
        pairing={chain.name: _pairing_rows(chain) for chain in paired},
    )


def _pairing_rows(chain: AcceptedChain) -> PairingRows:
    assert chain.pairing is not None
    path = chain.pairing.path
    alignment = read_alignment(path, max_rows=chain.pairing.max_rows)
    return PairingRows.of(chain.sequence, alignment_for_chain(alignment, chain.sequence, path))
