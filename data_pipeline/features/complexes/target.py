"""A complex to predict: its chains and distinct sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from data_pipeline.features.complexes.chain_ids import check_chain_ids, default_chain_ids
from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.fasta import MAX_RESIDUES, check_sequence, unknown_residues_problem


@dataclass(frozen=True, kw_only=True)
class Entity:
    """A distinct sequence of a complex, and the IDs of the chains with this sequence."""

    sequence: str
    chain_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ComplexTarget:
    """A complex to predict: a name, and the sequence and ID of each chain in input order.

    Raise `InputError` for a complex without chains, without any known residue or with too many residues, for an empty
    chain, for letters that are not residues, and for chain IDs that are missing, invalid or used twice.

    `description` has the FASTA headers after the names. `fragments` has, by chain, the residue numbers of the sequence
    in a longer chain, such as 1-100,150-200; "" or an empty tuple means the whole chain.
    """

    name: str
    sequences: tuple[str, ...]  # by chain
    chain_ids: tuple[str, ...]  # by chain
    description: str = ""  # the headers of its FASTA records after the names
    # By chain, the residues of a longer chain that the sequence has, such as 1-100,150-200; "" or (): all of them.
    fragments: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, name: str, sequences: Sequence[str], chain_ids: Sequence[str] = (), description: str = ""
    ) -> "ComplexTarget":
        """Return the complex of these chains; without IDs, they are named A, B, ..."""
        ids = tuple(chain_ids) or default_chain_ids(len(sequences))
        return cls(name=name, sequences=tuple(sequences), chain_ids=ids, description=description)

    def __post_init__(self) -> None:
        owner = f"complex '{printable(self.name)}'"
        if not self.sequences:
            raise InputError(f"{owner} has no chain; pass at least one sequence")
        check_chain_ids(self.chain_ids, len(self.sequences))
        if (residues := sum(map(len, self.sequences))) > MAX_RESIDUES:
            raise InputError(f"{owner} has {residues:,} residues; at most {MAX_RESIDUES:,} are allowed")
        for identifier, sequence in zip(self.chain_ids, self.sequences, strict=True):
            check_sequence(sequence, f"chain {identifier} of {owner}")
        if (problem := unknown_residues_problem("".join(self.sequences))) is not None:
            raise InputError(f"{owner} cannot be predicted: {problem}")

    def with_fragments(self, fragments: Sequence[str]) -> "ComplexTarget":
        """Return the complex with a fragment for each chain, such as 1-100,150-200, or "" for a whole chain.

        The sequences are unchanged, because they already have only the residues of the fragments.
        """
        return replace(self, fragments=tuple(fragments) if any(fragments) else ())

    @property
    def entities(self) -> tuple[Entity, ...]:
        """The distinct sequences in the order of their first occurrence, with their chains."""
        chains: dict[str, list[str]] = {}
        for identifier, sequence in zip(self.chain_ids, self.sequences, strict=True):
            chains.setdefault(sequence, []).append(identifier)
        return tuple(Entity(sequence=sequence, chain_ids=tuple(ids)) for sequence, ids in chains.items())
