"""Read a pulldown: baits and the preys that they may bind, every pair of them a complex to predict."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from os import PathLike, fspath

from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR, COPIES
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError, InputProblems, input_problems, printable
from data_pipeline.parse.csv_table import read_rows
from data_pipeline.parse.fasta import filesystem_key, read_fasta, target_name_problem

MAX_COMPLEXES = 100_000
_BETWEEN = "__"  # the names of bait and prey in the name of their complex
_MAX_COPIES = 100
Sequences = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class PulldownComplex:
    """A complex of baits and preys; the chains of the baits come first."""

    target: ComplexTarget
    proteins: tuple[str, ...]  # names of the chains' records
    baits: int  # number of chains that are baits

    @property
    def name(self) -> str:
        """Return the complex's name."""
        return self.target.name


def read_pulldown(
    baits: str | PathLike[str],
    preys: str | PathLike[str],
    table: str | PathLike[str] | None = None,
    problems: InputProblems | None = None,
) -> list[PulldownComplex]:
    """Return the complexes of two FASTA files: of each bait with each prey, or those that a table names.

    A CSV or TSV table has the columns `bait` and `prey`, each with names of records between colons, such as
    `heavy:light`, and with numbers of copies, such as `antigen*2`; a column `id` names the complexes. Of two complexes
    of the same proteins, as of a bait and a prey that are in both files, the first one is returned. Raise `InputError`
    with file and line for names that no record has or that are one directory, and for more than `MAX_COMPLEXES`; the
    errors of single records and complexes are added to `problems` instead, if they are given.
    """
    with input_problems(problems) as collection:
        known = _sequences(baits, collection), _sequences(preys, collection)
        if table is not None:
            return _complexes(table, _rows(table, known, collection), known, collection)
        count = len(known[0]) * len(known[1])
        if count > MAX_COMPLEXES:
            raise InputError.at(preys, f"{count:,} pairs with the baits, and {MAX_COMPLEXES:,} are the most; divide it")
        named = ((None, "", bait, prey) for bait, prey in product(*known))
        return _complexes(
            preys, ((line, name, (bait,), (prey,)) for line, name, bait, prey in named), known, collection
        )


def _sequences(path: str | PathLike[str], problems: InputProblems) -> Sequences:
    return {record.name: record.sequence for record in read_fasta(path, problems)}


# A complex as it is given: line, name or "", names of baits, names of preys.
_Given = tuple[int | None, str, tuple[str, ...], tuple[str, ...]]


def _rows(path: str | PathLike[str], known: tuple[Sequences, Sequences], problems: InputProblems) -> Iterator[_Given]:
    """Yield the complexes of a table; names that no record has are added to `problems`."""
    delimiter = "\t" if fspath(path).lower().endswith((".tsv", ".tsv.gz")) else ","
    count, before = 0, len(problems)
    for line, cells in read_rows(path, ("bait", "prey"), delimiter, problems):
        count += 1
        if count > MAX_COMPLEXES:
            raise InputError.at(path, f"there are more than {MAX_COMPLEXES:,} complexes; divide the table", line=line)
        try:
            bait, prey = (
                _proteins(cells[role], sequences, role) for role, sequences in zip(("bait", "prey"), known, strict=True)
            )
        except InputError as error:
            problems.add(InputError.at(path, str(error), line=line))
            continue
        yield line, cells.get("id", ""), bait, prey
    if not count and len(problems) == before:
        raise InputError.at(path, "there is no complex; write a bait and a prey in each line")


def _proteins(text: str, known: Sequences, role: str) -> tuple[str, ...]:
    """Return the names of the chains' records in text such as `heavy:light*2`."""
    found: list[str] = []
    for word in map(str.strip, text.split(CHAIN_SEPARATOR)):
        name, star, copies = (word, "", "") if word in known else word.partition(COPIES)
        if name not in known:
            raise InputError(f"no {role} is named '{printable(name)}'; names are those of records in the FASTA file")
        if star and not (copies.isascii() and copies.isdecimal() and 1 <= int(copies[:9]) <= _MAX_COPIES):
            raise InputError(
                f"'{printable(word)}' names no number of copies; it is written {name}*2, from 1 to {_MAX_COPIES}"
            )
        found += [name] * (int(copies) if star else 1)
    return tuple(found)


def _complexes(
    path: str | PathLike[str], given: Iterator[_Given], known: tuple[Sequences, Sequences], problems: InputProblems
) -> list[PulldownComplex]:
    found: dict[tuple[tuple[str, str], ...], PulldownComplex] = {}
    names: dict[str, str] = {}
    for line, given_name, baits, preys in given:
        sequences = [*(known[0][bait] for bait in baits), *(known[1][prey] for prey in preys)]
        key = tuple(sorted(zip((*baits, *preys), sequences, strict=True)))
        if key in found:
            continue
        name = given_name or _BETWEEN.join(("_".join(baits), "_".join(preys)))
        with problems.collected(name):
            problem = target_name_problem(name)
            if problem is None and (other := names.get(filesystem_key(name))) is not None:
                problem = f"a complex named '{printable(other)}' comes before; name them in a column 'id' of a table"
            if problem is not None:
                raise InputError.at(path, problem, line=line, record=name)
            names[filesystem_key(name)] = name
            try:
                target = ComplexTarget.of(name, sequences)
            except InputError as error:
                raise InputError.at(path, str(error), line=line) from error
            found[key] = PulldownComplex(target=target, proteins=(*baits, *preys), baits=len(baits))
    return list(found.values())
