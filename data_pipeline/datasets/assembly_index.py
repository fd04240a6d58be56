"""Table of a training set's assemblies, and the table of those that are left out with the reasons."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.datasets.index import MAX_INDEX_BYTES, chain_name_problem
from data_pipeline.errors import InputError, printable
from data_pipeline.files import atomic_write
from data_pipeline.parse.text_files import read_text

ASSEMBLIES_FILE, SKIPPED_ASSEMBLIES_FILE = "assemblies.tsv", "skipped_assemblies.tsv"

_HEAD = "name\tkey\tchains"
_ADVICE = "build the feature store again"


@dataclass(frozen=True, kw_only=True)
class AssemblyEntry:
    """Entry of one assembly: its chains by their names in the training set, once for each copy, and its record."""

    name: str
    key: str
    chains: tuple[str, ...]


def write_assemblies(directory: Path, entries: Iterable[AssemblyEntry], skipped: Mapping[str, str]) -> None:
    """Write both tables into a store's directory; equal entries give equal bytes."""
    tables = {
        ASSEMBLIES_FILE: [_HEAD, *("\t".join((entry.name, entry.key, *entry.chains)) for entry in entries)],
        SKIPPED_ASSEMBLIES_FILE: [
            "name\treason",
            *(f"{printable(name)}\t{printable(skipped[name], 1000)}" for name in sorted(skipped)),
        ],
    }
    for name, lines in tables.items():
        with atomic_write(directory / name) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")


def read_assemblies(directory: Path) -> tuple[AssemblyEntry, ...]:
    """Return the assemblies of a store's directory, none if it was built without; raise `InputError` if damaged."""
    path = directory / ASSEMBLIES_FILE
    if not path.is_file():
        return ()
    head, *lines = read_text(path, MAX_INDEX_BYTES, _ADVICE).removesuffix("\n").split("\n")
    if head != _HEAD:
        raise InputError.at(path, f"the first line must name the columns name, key and chains; {_ADVICE}", line=1)
    entries: dict[str, AssemblyEntry] = {}
    for number, line in enumerate(lines, start=2):
        name, *rest = line.split("\t")
        if len(rest) < 2 or len(rest[0]) != 32 or any(map(chain_name_problem, (name, *rest[1:]))):
            raise InputError.at(path, f"not a name, a key and names of chains; {_ADVICE}", line=number)
        if name in entries:
            raise InputError.at(path, f"'{printable(name)}' is also in an earlier line; {_ADVICE}", line=number)
        entries[name] = AssemblyEntry(name=name, key=rest[0], chains=tuple(rest[1:]))
    return tuple(entries.values())
