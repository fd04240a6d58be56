"""A complex to predict: its chains, and which of them have the same sequence."""

from collections.abc import Sequence
from dataclasses import dataclass

from data_pipeline.features.complexes.chain_ids import check_chain_ids, default_chain_ids
from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.fasta import MAX_RESIDUES, check_sequence, unknown_residues_problem


@dataclass(frozen=True, kw_only=True)
class Entity:
    """A sequence of a complex, and the IDs of the chains that have it."""

    sequence: str
    chain_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ComplexTarget:
    """A complex to predict: a name, and the sequence and the ID of each chain, in the order in which they are given.

    Raise `InputError` for a complex without chains, an empty chain, letters that are no residues, a complex without
    any known residue or with more residues than are read, and chain IDs that are missing, invalid or used twice.
    """

    name: str
    sequences: tuple[str, ...]  # by chain
    chain_ids: tuple[str, ...]  # by chain
    description: str = ""  # what the headers of its FASTA records say after the names

    @classmethod
    def of(
        cls, name: str, sequences: Sequence[str], chain_ids: Sequence[str] = (), description: str = ""
    ) -> "ComplexTarget":
        """Return the complex of these chains, named A, B, ... if there are no IDs."""
        ids = tuple(chain_ids) or default_chain_ids(len(sequences))
        return cls(name=name, sequences=tuple(sequences), chain_ids=ids, description=description)

    def __post_init__(self) -> None:
        owner = f"complex '{printable(self.name)}'"
        if not self.sequences:
            raise InputError(f"{owner} has no chain; give the sequence of at least one")
        check_chain_ids(self.chain_ids, len(self.sequences))
        if (residues := sum(map(len, self.sequences))) > MAX_RESIDUES:
            raise InputError(f"{owner} has {residues:,} residues; at most {MAX_RESIDUES:,} are allowed")
        for identifier, sequence in zip(self.chain_ids, self.sequences, strict=True):
            check_sequence(sequence, f"chain {identifier} of {owner}")
        if (problem := unknown_residues_problem("".join(self.sequences))) is not None:
            raise InputError(f"{owner} cannot be predicted: {problem}")

    @property
    def entities(self) -> tuple[Entity, ...]:
        """The different sequences, in the order in which they come first, with their chains."""
        chains: dict[str, list[str]] = {}
        for identifier, sequence in zip(self.chain_ids, self.sequences, strict=True):
            chains.setdefault(sequence, []).append(identifier)
        return tuple(Entity(sequence=sequence, chain_ids=tuple(ids)) for sequence, ids in chains.items())
