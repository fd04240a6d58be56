"""Read the input of a pulldown: baits and preys, each pair of which is a complex to predict.

`MAX_COMPLEXES` limits the complexes of one pulldown. `Records` maps record names to FASTA records.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from os import PathLike, fspath

from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR, COPIES_MARK
from data_pipeline.features.complexes.sequence_files import with_fragment
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError, InputProblems, input_problems, printable
from data_pipeline.parse.csv_table import read_rows
from data_pipeline.parse.fasta import FastaRecord, filesystem_key, read_fasta, target_name_problem

MAX_COMPLEXES = 100_000
_NAME_SEPARATOR = "__"  # between the names of bait and prey in the name of a complex
_MAX_COPIES = 100
Records = Mapping[str, FastaRecord]


@dataclass(frozen=True, kw_only=True)
class PulldownComplex:
    """A complex of baits and preys; the chains of the baits come first.

    `proteins` has the FASTA record name of each chain, and `baits` is the number of chains that are baits.
    """

    target: ComplexTarget
    proteins: tuple[str, ...]  # record name of each chain
    baits: int  # number of chains that are baits

    @property
    def name(self) -> str:
        """Name of the complex."""
        return self.target.name


def read_pulldown(
    baits: str | PathLike[str],
    preys: str | PathLike[str],
    table: str | PathLike[str] | None = None,
    problems: InputProblems | None = None,
) -> list[PulldownComplex]:
    """Return the complexes of each bait with each prey in two FASTA files, or the complexes in a table.

    A CSV or TSV table has the columns `bait` and `prey` with record names, which are separated by colons
    (`heavy:light`) and may have numbers of copies (`antigen*2`). A column `id` may have names of complexes; by default,
    a complex is named `<bait>__<prey>`. If two complexes have the same proteins, because a bait and a prey are in both
    files, only the first is returned. Raise `InputError` with file and line for unknown records, for names that map to
    the same directory, and for more than `MAX_COMPLEXES`; errors of single records and complexes are added to
    `problems` if it is passed.
    """
    with input_problems(problems) as collection:
        records = _records(baits, collection), _records(preys, collection)
        if table is not None:
            return _complexes(table, _rows(table, records, collection), records, collection)
        count = len(records[0]) * len(records[1])
        if count > MAX_COMPLEXES:
            raise InputError.at(preys, f"{count:,} pairs with the baits; the maximum is {MAX_COMPLEXES:,}; split it")
        named = ((None, "", bait, prey) for bait, prey in product(*records))
        return _complexes(
            preys, ((line, name, (bait,), (prey,)) for line, name, bait, prey in named), records, collection
        )


def _records(path: str | PathLike[str], problems: InputProblems) -> Records:
    """Return the records of a FASTA file by name; errors of single records go to `problems`."""
    record_of_name = dict[str, FastaRecord]()
    for record in read_fasta(path, problems):
        with problems.collected(record.name):
            record_of_name[record.name] = with_fragment(path, record)
    return record_of_name


# A complex in the input: line, name or "", names of baits, names of preys.
_Row = tuple[int | None, str, tuple[str, ...], tuple[str, ...]]


def _rows(path: str | PathLike[str], records: tuple[Records, Records], problems: InputProblems) -> Iterator[_Row]:
    """Yield the complexes of a table; errors for unknown records are added to `problems`."""
    delimiter = "\t" if fspath(path).lower().endswith((".tsv", ".tsv.gz")) else ","
    count, problems_before = 0, len(problems)
    for line, cells in read_rows(path, ("bait", "prey"), delimiter, problems):
        count += 1
        if count > MAX_COMPLEXES:
            raise InputError.at(path, f"there are more than {MAX_COMPLEXES:,} complexes; split the table", line=line)
        try:
            bait, prey = (
                _proteins(cells[role], sequences, role)
                for role, sequences in zip(("bait", "prey"), records, strict=True)
            )
        except InputError as error:
            problems.add(InputError.at(path, str(error), line=line))
            continue
        yield line, cells.get("id", ""), bait, prey
    if not count and len(problems) == problems_before:
        raise InputError.at(path, "the table has no complexes; write a bait and a prey in each line")


def _proteins(text: str, records: Records, role: str) -> tuple[str, ...]:
    """Return the record name of each chain in text such as `heavy:light*2`."""
    names: list[str] = []
    for word in map(str.strip, text.split(CHAIN_SEPARATOR)):
        name, separator, copies = (word, "", "") if word in records else word.partition(COPIES_MARK)
        if name not in records:
            raise InputError(f"there is no {role} '{printable(name)}'; use the names of records in the FASTA file")
        if separator and not (copies.isascii() and copies.isdecimal() and 1 <= int(copies[:9]) <= _MAX_COPIES):
            raise InputError(
                f"'{printable(word)}' has no valid number of copies; write {name}*2, from 1 to {_MAX_COPIES}"
            )
        names += [name] * (int(copies) if separator else 1)
    return tuple(names)


def _complexes(
    path: str | PathLike[str], rows: Iterator[_Row], records: tuple[Records, Records], problems: InputProblems
) -> list[PulldownComplex]:
    """Return the complexes of the rows, without repetitions of an earlier complex in any order of its chains.

    `records` has the records of baits and of preys by name. Errors of single rows go to `problems`.
    """
    complexes: dict[tuple[tuple[str, str], ...], PulldownComplex] = {}
    names: dict[str, str] = {}
    for line, given_name, baits, preys in rows:
        chains = [*(records[0][bait] for bait in baits), *(records[1][prey] for prey in preys)]
        key = tuple(sorted((each.name, each.sequence) for each in chains))
        if key in complexes:
            continue
        name = given_name or _NAME_SEPARATOR.join(("_".join(baits), "_".join(preys)))
        with problems.collected(name):
            problem = target_name_problem(name)
            if problem is None and (other := names.get(filesystem_key(name))) is not None:
                problem = f"an earlier complex is named '{printable(other)}'; name them in a column 'id' of a table"
            if problem is not None:
                raise InputError.at(path, problem, line=line, record=name)
            names[filesystem_key(name)] = name
            try:
                target = ComplexTarget.of(name, [each.sequence for each in chains])
            except InputError as error:
                raise InputError.at(path, str(error), line=line) from error
            target = target.with_fragments([each.fragment for each in chains])
            complexes[key] = PulldownComplex(target=target, proteins=(*baits, *preys), baits=len(baits))
    return list(complexes.values())
