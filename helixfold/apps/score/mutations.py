"""Parse positions and mutations of a target: K30A, or A.K30A in a complex."""

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

ALL = "all"  # the word for all positions
# Separates simultaneous substitutions, as in tables of deep mutational scans.
SEPARATOR = ":"
_POSITIONS_FORM = re.compile(r"(?:([A-Za-z0-9]{1,4})\.)?(?:([0-9]{1,9})(?:-([0-9]{1,9}))?|all)")
_SUBSTITUTION_FORM = re.compile(r"(?:([A-Za-z0-9]{1,4})\.)?([A-Za-z])([0-9]{1,9})([A-Za-z])")


@dataclass(frozen=True, kw_only=True)
class Position:
    """A residue of a target: its chain, its number in the chain from 1, and its index among all residues from 0.

    `letter` is its amino acid in the target.
    """

    chain: str
    number: int
    letter: str
    index: int


@dataclass(frozen=True, kw_only=True)
class Substitution:
    """A substitution of the residue at a position by another amino acid (its letter)."""

    position: Position
    letter: str


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A mutant of a target: one or several substitutions, and its name, such as K30A:E34K."""

    name: str
    substitutions: tuple[Substitution, ...]


@dataclass(frozen=True, kw_only=True)
class TargetChains:
    """Names and sequences of a target's chains, in the order of its features, to look up residues.

    `target` is the name of the target.
    """

    target: str
    names: tuple[str, ...]
    sequences: tuple[str, ...]

    @classmethod
    def of(cls, target: AnyTarget) -> "TargetChains":
        """Return the chains of a single-chain target or a complex."""
        if not isinstance(target, ComplexInput):
            return cls(target=target.name, names=(ONLY_CHAIN,), sequences=(target.sequence,))
        names = tuple(chain for entity in target.target.entities for chain in entity.chain_ids)
        return cls(target=target.name, names=names, sequences=tuple(target.sequence.split(CHAIN_SEPARATOR)))

    @property
    def positions(self) -> list[Position]:
        """Return the positions of all residues, in order."""
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
        """Return the label of a residue: its number, with the chain in a complex (A.30)."""
        return str(position.number) if len(self.names) == 1 else f"{position.chain}.{position.number}"

    def mutant(self, substitutions: Sequence[Substitution]) -> Mutant:
        """Return the mutant with these substitutions, named such as K30A, or A.K30A in a complex."""
        words = []
        for each in substitutions:
            chain = "" if len(self.names) == 1 else f"{each.position.chain}."
            words.append(f"{chain}{each.position.letter}{each.position.number}{each.letter}")
        return Mutant(name=SEPARATOR.join(words), substitutions=tuple(substitutions))

    def position(self, chain: str | None, number: int) -> Position:
        """Return a residue by chain and number.

        Raise `InputError` if it does not exist, or if the chain is None and the target has several.
        """
        if chain is None and len(self.names) > 1:
            example = f"{self.names[0]}.{number}"
            raise self._error(f"position {number} could be in any chain; add the chain, such as {example}")
        if chain is not None and chain not in self.names:
            names = f"{', '.join(self.names)}{did_you_mean(chain, self.names)}"
            raise self._error(f"no chain {chain}; its chains are {names}")
        chain_index = 0 if chain is None else self.names.index(chain)
        sequence = self.sequences[chain_index]
        if not 1 <= number <= len(sequence):
            where = "the sequence" if len(self.names) == 1 else f"chain {self.names[chain_index]}"
            raise self._error(f"position {number} is outside {where}, which has residues 1 to {len(sequence)}")
        index = sum(map(len, self.sequences[:chain_index])) + number - 1
        return Position(chain=self.names[chain_index], number=number, letter=sequence[number - 1], index=index)

    def _error(self, problem: str) -> InputError:
        """Return an error that names the target."""
        return InputError(f"target '{printable(self.target)}': {problem}")


def mutants_at(chains: TargetChains, words: Sequence[str], letters: str) -> list[Mutant]:
    """Return the single mutants at positions (`words`) such as 30, 10-20, A.30, A.10-20, A.all or all, in order.

    No words are all positions. Each position is mutated to all `letters` except its own. Raise `InputError` for words
    and letters that are not valid, and for positions that the target does not have.
    """
    _check_letters(letters)
    positions: dict[int, Position] = {}
    for word in words or (ALL,):
        positions |= {position.index: position for position in _positions(chains, word)}
    return [
        chains.mutant([Substitution(position=position, letter=letter)])
        for _, position in sorted(positions.items())
        for letter in letters.upper()
        if letter != position.letter
    ]


def _positions(chains: TargetChains, word: str) -> list[Position]:
    """Return the positions that a word of --positions names."""
    match = _POSITIONS_FORM.fullmatch(word)
    if match is None:
        raise InputError(f"--positions must be such as 30, 10-20, A.30 or all, got '{printable(word, 40)}'")
    chain, first, last = match.groups()
    if first is None:
        if chain is None:
            return chains.positions
        chains.position(chain, 1)
        return [position for position in chains.positions if position.chain == chain]
    first_and_last = [chains.position(chain, int(number)) for number in (first, last or first)]
    if first_and_last[0].number > first_and_last[1].number:
        raise InputError(f"--positions {word}: the first residue of a range must not be after the last one")
    return [chains.position(chain, number) for number in range(first_and_last[0].number, first_and_last[1].number + 1)]


def _check_letters(letters: str) -> None:
    """Raise `InputError` unless all letters are amino acids and there is at least one."""
    unknown = next((letter for letter in letters.upper() if letter not in RESTYPES), None)
    if not letters or unknown is not None:
        raise InputError(f"--to must be letters of amino acids ({RESTYPES}), got '{printable(letters, 40)}'")


def mutants_in_table(path: Path, targets: Sequence[TargetChains]) -> dict[str, list[Mutant]]:
    """Read the mutants in a table, and return them by target, without duplicates.

    The table has the column `mutation`, and the column `id` with the target's name if there are several. Raise
    `InputError`, with the line, for a mutation that does not match its target.
    """
    by_name = {chains.target: chains for chains in targets}
    by_target: dict[str, dict[str, Mutant]] = {name: {} for name in by_name}
    delimiter = "," if path.name.lower().endswith((".csv", ".csv.gz")) else "\t"
    for line, cells in read_rows(path, ("mutation",), delimiter):
        word = cells["mutation"]
        name = cells.get("id", "") or (targets[0].target if len(targets) == 1 else "")
        if name not in by_name:
            problem = "no target; write one of several into the column id" if not name else "no such target"
            raise InputError.at(path, problem, line=line, record=name or word)
        try:
            mutant = read_mutant(by_name[name], word)
        except InputError as error:
            raise InputError.at(path, str(error), line=line, record=word) from None
        by_target[name][mutant.name] = mutant
    if not any(by_target.values()):
        raise InputError.at(path, "it has no mutations; write one into each row of the column mutation")
    return {name: list(mutants.values()) for name, mutants in by_target.items()}


def read_mutant(chains: TargetChains, word: str) -> Mutant:
    """Return the mutant with a name such as K30A, A.K30A or K30A:E34K.

    Raise `InputError` if the name is not valid or does not match the target's sequence.
    """
    substitutions = list(_substitutions(chains, word))
    if len({each.position.index for each in substitutions}) < len(substitutions):
        raise InputError("it changes a position twice")
    return chains.mutant(substitutions)


def _substitutions(chains: TargetChains, word: str) -> Iterator[Substitution]:
    """Yield the substitutions in the name of a mutant, checked against the sequence."""
    for part in word.split(SEPARATOR):
        match = _SUBSTITUTION_FORM.fullmatch(part.strip())
        if match is None:
            raise InputError(f"a mutation must be such as K30A, or A.K30A in a complex, got '{printable(part, 40)}'")
        chain, old_letter, number, new_letter = match.groups()
        position = chains.position(chain, int(number))
        if old_letter.upper() != position.letter:
            problem = f"residue {chains.label(position)} is {position.letter}, not {old_letter.upper()}"
            raise InputError(f"target '{printable(chains.target)}': {problem}; numbers count from 1 in each chain")
        if new_letter.upper() not in RESTYPES:
            raise InputError(f"'{printable(new_letter)}' is not an amino acid; expected one of {RESTYPES}")
        if new_letter.upper() == position.letter:
            raise InputError(f"residue {chains.label(position)} is {position.letter} already")
        yield Substitution(position=position, letter=new_letter.upper())


def scanned_positions(mutants: Sequence[Mutant]) -> dict[int, Position]:
    """Return the positions that the mutants change, each once, by its index among all residues, in order."""
    positions: Mapping[int, Position] = {
        each.position.index: each.position for mutant in mutants for each in mutant.substitutions
    }
    return dict(sorted(positions.items()))
