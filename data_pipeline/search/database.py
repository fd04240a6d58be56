"""Describe sequence and template databases, with the search tool of each.

`AlignmentTool` and `TemplateTool` are the names of search tools in profiles. `HMMER_TOOLS` run in this process with
pyhmmer, or as installed programs, as the `Engine` of a database states.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

AlignmentTool = Literal["jackhmmer", "hhblits", "mmseqs", "colabfold"]
TemplateTool = Literal["hmmsearch", "hhsearch", "mmseqs"]
_TEMPLATE_RESULTS = {"hmmsearch": "pdb_hits.sto", "hhsearch": "pdb_hits.hhr", "mmseqs": "pdb_hits.m8"}
Engine = Literal["pyhmmer", "program"]
HMMER_TOOLS = ("jackhmmer", "hmmsearch")  # run with pyhmmer unless the database sets engine = "program"
# The release month in a file name, as in mgy_clusters_2022_05.fa, colabfold_envdb_202108_db, uniref30_2302_db and
# pdb100_230517.
_RELEASE = re.compile(r"(?<=[_-])(20[0-9]{2}_?|[12][0-9])(0[1-9]|1[0-2])([0-3][0-9])?(?![0-9])")


@dataclass(frozen=True, kw_only=True)
class AlignmentDatabase:
    """A database of sequences or profiles to search for homologs of a target.

    `name` is the name of the result file without `_hits.sto` or `_hits.a3m`. `paths` has a FASTA file, or prefixes of
    databases that are searched together. `max_rows` limits the rows of the result to read, including the target.
    `options` are options of the tool that differ from the defaults.
    """

    name: str  # of the result file, `<name>_hits.sto` or `<name>_hits.a3m`
    tool: AlignmentTool
    paths: tuple[Path, ...]  # a FASTA file, or prefixes of hh-suite or ColabFold databases that are searched together
    engine: Engine = "pyhmmer"  # only for the tools in `HMMER_TOOLS`
    max_rows: int | None = None  # rows of the result to read, including the target; None: all
    options: Mapping[str, Any] = field(default_factory=dict)  # tool options that differ from AlphaFold's

    @property
    def result_file(self) -> str:
        """Name of the file that stores a target's result."""
        return f"{self.name}_hits.{'sto' if self.tool == 'jackhmmer' else 'a3m'}"


@dataclass(frozen=True, kw_only=True)
class TemplateDatabase:
    """A database of sequences or profiles of chains with known structures, and the directory of the structures.

    `obsolete` is the PDB's list of replaced entries, and `release_dates` a table of lines such as `1abc: 2001-02-03`.
    Structures newer than `latest_release` are not used. `options` are options of the tool.
    """

    tool: TemplateTool
    paths: tuple[Path, ...]
    structures: Path  # directory of mmCIF (or PDB) files, flat or divided
    obsolete: Path | None = None  # the PDB's list of replaced entries
    release_dates: Path | None = None  # table of lines `1abc: 2001-02-03`, to skip new files without opening them
    latest_release: date | None = None  # newer structures are not used as templates
    engine: Engine = "pyhmmer"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def result_file(self) -> str:
        """Name of the file that stores a target's result."""
        return _TEMPLATE_RESULTS[self.tool]


@dataclass(frozen=True, kw_only=True)
class SearchedDatabase:
    """The description of a searched database in the results.

    `name` is its file name or prefix, or the name of the search on a server. `version` is the release in the name.
    `size` is in bytes, and `url` is the address of a server.
    """

    name: str  # file name or prefix of the database; for a server, the name of the search
    version: str | None = None  # the release in the name
    size: int | None = None  # bytes of all files; None if unknown, as for a server
    url: str | None = None  # of the server


@dataclass(frozen=True, kw_only=True)
class DatabaseProfile:
    """All databases for the searches of a target, in the order in which the MSA rows are merged.

    Rows of `uniprot` are for complexes, paired by the species in their names. `complex_templates` is for chains of
    complexes, which else use `templates`. Notes are sentences about databases that are present but not used;
    `complex_notes` are about databases that only complexes need.
    """

    alignments: tuple[AlignmentDatabase, ...] = ()
    templates: TemplateDatabase | None = None
    uniprot: AlignmentDatabase | None = None  # for rows of complexes, paired by the species in the row names
    complex_templates: TemplateDatabase | None = None  # for chains of complexes; None: use `templates`
    notes: tuple[str, ...] = ()  # databases that are present but not used, with the reasons
    complex_notes: tuple[str, ...] = ()  # the same for databases that only complexes need


def database_files(database: AlignmentDatabase | TemplateDatabase) -> list[Path]:
    """Return the existing files of a database: a FASTA file, or all files whose names start with a prefix."""
    return [
        file
        for path in database.paths
        for file in ([path] if _is_single_file(path) else sorted(path.parent.glob(f"{path.name}*")))
    ]


def searched_databases(database: AlignmentDatabase | TemplateDatabase) -> tuple[SearchedDatabase, ...]:
    """Return the description of each of the database's `paths`, for the results, with their sizes in bytes."""
    descriptions = []
    for path in database.paths:
        release = _RELEASE.search(path.name)
        sizes = [file.stat().st_size for file in database_files(replace(database, paths=(path,)))]
        descriptions.append(SearchedDatabase(name=path.name, version=release and release[0], size=sum(sizes)))
    return tuple(descriptions)


def _is_single_file(path: Path) -> bool:
    """Return whether a database is one file, such as FASTA; MMseqs2 databases have further files."""
    return path.is_file() and not path.with_name(f"{path.name}.dbtype").is_file()
