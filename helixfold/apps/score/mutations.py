"""Read which residues of a target are to be mutated, and to what: K30A, of a complex A.K30A."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.io.errors import InputError, did_you_mean, printable
from data_pipeline.parse.csv_table import read_rows
from data_pipeline.residues import RESTYPES

ALL = "all"
# Between substitutions that are made at once, as in tables of deep mutational scans.
SEPARATOR = ":"
_POSITIONS = re.compile(r"(?:([A-Za-z0-9]{1,4})\.)?(?:([0-9]{1,9})(?:-([0-9]{1,9}))?|all)")
_SUBSTITUTION = re.compile(r"(?:([A-Za-z0-9]{1,4})\.)?([A-Za-z])([0-9]{1,9})([A-Za-z])")


@dataclass(frozen=True, kw_only=True)
class Position:
    """A residue of a target: its chain, its number in it from 1, and its index among all residues of the features."""

    chain: str
    number: int
    letter: str
    index: int


@dataclass(frozen=True, kw_only=True)
class Substitution:
    """Another amino acid at a position."""

    position: Position
    letter: str


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A target with one or several substitutions, under the name that tables have."""

    name: str
    substitutions: tuple[Substitution, ...]


@dataclass(frozen=True, kw_only=True)
class TargetChains:
    """The chains of a target in the order of its features, by whose names and numbers residues are found."""

    target: str
    names: tuple[str, ...]
    sequences: tuple[str, ...]

    @classmethod
    def of(cls, target: AnyTarget) -> "TargetChains":
        """Return the chains of a target."""
        if not isinstance(target, ComplexInput):
            return cls(target=target.name, names=(ONLY_CHAIN,), sequences=(target.sequence,))
        names = tuple(chain for entity in target.target.entities for chain in entity.chain_ids)
        return cls(target=target.name, names=names, sequences=tuple(target.sequence.split(CHAIN_SEPARATOR)))

    @property
    def positions(self) -> list[Position]:
        """Return all residues in order."""
        residues = [
            (name, number, letter)
            for name, sequence in zip(self.names, self.sequences, strict=True)
            for number, letter in enumerate(sequence, start=1)
        ]
        return [
            Position(chain=name, number=number, letter=letter, index=index)
            for index, (name, number, letter) in enumerate(residues)
        ]

    def label(self, position: Position) -> str:
        """Return a residue's number, of a complex with its chain."""
        return str(position.number) if len(self.names) == 1 else f"{position.chain}.{position.number}"

    def mutant(self, substitutions: Sequence[Substitution]) -> Mutant:
        """Return the mutant with these substitutions."""
        words = []
        for each in substitutions:
            chain = "" if len(self.names) == 1 else f"{each.position.chain}."
            words.append(f"{chain}{each.position.letter}{each.position.number}{each.letter}")
        return Mutant(name=SEPARATOR.join(words), substitutions=tuple(substitutions))

    def position(self, chain: str | None, number: int) -> Position:
        """Return a residue; raise `InputError` if there is none, or if a complex's chain is not named."""
        if chain is None and len(self.names) > 1:
            example = f"{self.names[0]}.{number}"
            raise self._error(f"position {number} could be in any chain; name it with one, such as {example}")
        if chain is not None and chain not in self.names:
            known = f"{', '.join(self.names)}{did_you_mean(chain, self.names)}"
            raise self._error(f"there is no chain {chain}; its chains are {known}")
        place = 0 if chain is None else self.names.index(chain)
        sequence = self.sequences[place]
        if not 1 <= number <= len(sequence):
            of_chain = "the sequence" if len(self.names) == 1 else f"chain {self.names[place]}"
            raise self._error(f"position {number} is outside {of_chain}, which has residues 1 to {len(sequence)}")
        index = sum(map(len, self.sequences[:place])) + number - 1
        return Position(chain=self.names[place], number=number, letter=sequence[number - 1], index=index)

    def _error(self, problem: str) -> InputError:
        return InputError(f"target '{printable(self.target)}': {problem}")


def mutants_at(chains: TargetChains, words: Sequence[str], letters: str) -> list[Mutant]:
    """Return the single mutants of positions such as 30, 10-20, A.30, A.10-20, A.all or all, in order.

    Each position is mutated to all `letters` but its own. Raise `InputError` for a word or a letter that is none of
    these, and for positions that the target has not.
    """
    _check_letters(letters)
    found: dict[int, Position] = {}
    for word in words or (ALL,):
        found |= {position.index: position for position in _positions(chains, word)}
    return [
        chains.mutant([Substitution(position=position, letter=letter)])
        for _, position in sorted(found.items())
        for letter in letters.upper()
        if letter != position.letter
    ]


def _positions(chains: TargetChains, word: str) -> list[Position]:
    match = _POSITIONS.fullmatch(word)
    if match is None:
        raise InputError(f"--positions are such as 30, 10-20, A.30 or all, got '{printable(word, 40)}'")
    chain, first, last = match.groups()
    if first is None:
        if chain is None:
            return chains.positions
        chains.position(chain, 1)
        return [position for position in chains.positions if position.chain == chain]
    ends = [chains.position(chain, int(number)) for number in (first, last or first)]
    if ends[0].number > ends[1].number:
        raise InputError(f"--positions {word}: the first residue of a range comes first")
    return [chains.position(chain, number) for number in range(ends[0].number, ends[1].number + 1)]


def _check_letters(letters: str) -> None:
    unknown = next((letter for letter in letters.upper() if letter not in RESTYPES), None)
    if not letters or unknown is not None:
        raise InputError(f"--to names amino acids by the letters {RESTYPES}, got '{printable(letters, 40)}'")


def mutants_in_table(path: Path, targets: Sequence[TargetChains]) -> dict[str, list[Mutant]]:
    """Return the mutants that a table names, by target, each once.

    The table has the column `mutation`, and `id` with the target's name if there are several. Raise `InputError` for a
    mutation that does not match its target, at its line.
    """
    by_name = {chains.target: chains for chains in targets}
    found: dict[str, dict[str, Mutant]] = {name: {} for name in by_name}
    delimiter = "," if path.name.lower().endswith((".csv", ".csv.gz")) else "\t"
    for line, cells in read_rows(path, ("mutation",), delimiter):
        word = cells["mutation"]
        name = cells.get("id", "") or (targets[0].target if len(targets) == 1 else "")
        if name not in by_name:
            problem = "there are several targets; name one in the column id" if not name else "there is no such target"
            raise InputError.at(path, problem, line=line, record=name or word)
        try:
            mutant = read_mutant(by_name[name], word)
        except InputError as error:
            raise InputError.at(path, str(error), line=line, record=word) from None
        found[name][mutant.name] = mutant
    if not any(found.values()):
        raise InputError.at(path, "there is no mutation in it; write one in each row of the column mutation")
    return {name: list(mutants.values()) for name, mutants in found.items()}


def read_mutant(chains: TargetChains, word: str) -> Mutant:
    """Return the mutant of a name such as K30A, A.K30A or K30A:E34K; raise `InputError` if it does not match."""
    substitutions = list(_substitutions(chains, word))
    if len({each.position.index for each in substitutions}) < len(substitutions):
        raise InputError("it changes a position twice")
    return chains.mutant(substitutions)


def _substitutions(chains: TargetChains, word: str) -> Iterator[Substitution]:
    for part in word.split(SEPARATOR):
        match = _SUBSTITUTION.fullmatch(part.strip())
        if match is None:
            raise InputError(f"a mutation is such as K30A, of a complex A.K30A, got '{printable(part, 40)}'")
        chain, before, number, after = match.groups()
        position = chains.position(chain, int(number))
        if before.upper() != position.letter:
            problem = f"residue {chains.label(position)} is {position.letter}, not {before.upper()}"
            raise InputError(f"target '{printable(chains.target)}': {problem}; numbers count from 1 in each chain")
        if after.upper() not in RESTYPES:
            raise InputError(f"'{printable(after)}' is no amino acid; they have the letters {RESTYPES}")
        if after.upper() == position.letter:
            raise InputError(f"residue {chains.label(position)} is {position.letter} already")
        yield Substitution(position=position, letter=after.upper())


def scanned_positions(mutants: Sequence[Mutant]) -> dict[int, Position]:
    """Return the positions that any mutant changes, by index, in order."""
    found: Mapping[int, Position] = {
        each.position.index: each.position for mutant in mutants for each in mutant.substitutions
    }
    return dict(sorted(found.items()))
