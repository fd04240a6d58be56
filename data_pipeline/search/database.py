"""Databases, and the tool that searches each."""

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
HMMER_TOOLS = ("jackhmmer", "hmmsearch")  # run in this process unless the database names the program
# The month of a release in a file's name, as in mgy_clusters_2022_05.fa, colabfold_envdb_202108_db, uniref30_2302_db
# and pdb100_230517.
_RELEASE = re.compile(r"(?<=[_-])(20[0-9]{2}_?|[12][0-9])(0[1-9]|1[0-2])([0-3][0-9])?(?![0-9])")


@dataclass(frozen=True, kw_only=True)
class AlignmentDatabase:
    """A database of sequences or profiles to search for a target's homologs."""

    name: str  # results are stored as `<name>_hits.sto` or `.a3m`
    tool: AlignmentTool
    paths: tuple[Path, ...]  # FASTA file, or prefixes of hh-suite or ColabFold databases, which are searched together
    engine: Engine = "pyhmmer"  # only for the tools in `HMMER_TOOLS`
    max_rows: int | None = None  # rows of the result to read, including the target's; None: all
    options: Mapping[str, Any] = field(default_factory=dict)  # tool options that differ from AlphaFold's

    @property
    def result_file(self) -> str:
        """Name of the file that stores a target's result."""
        return f"{self.name}_hits.{'sto' if self.tool == 'jackhmmer' else 'a3m'}"


@dataclass(frozen=True, kw_only=True)
class TemplateDatabase:
    """A database of sequences or profiles of chains with known structures, and the directory of those structures."""

    tool: TemplateTool
    paths: tuple[Path, ...]
    structures: Path  # directory of mmCIF (or PDB) files, flat or divided
    obsolete: Path | None = None  # the PDB's list of replaced entries
    release_dates: Path | None = None  # table of lines `1abc: 2001-02-03`; files that are too new need not be opened
    latest_release: date | None = None  # newer structures are not used as templates
    engine: Engine = "pyhmmer"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def result_file(self) -> str:
        """Name of the file that stores a target's result."""
        return _TEMPLATE_RESULTS[self.tool]


@dataclass(frozen=True, kw_only=True)
class SearchedDatabase:
    """A database as the results of a search tell of it."""

    name: str  # of its file, or of the prefix of its files; of a server's databases, that of the search
    version: str | None = None  # the release that the name gives
    size: int | None = None  # bytes of all its files; None for a server, which does not tell
    url: str | None = None  # of a server


@dataclass(frozen=True, kw_only=True)
class DatabaseProfile:
    """All databases that a target is searched in, in the order in which their rows are merged."""

    alignments: tuple[AlignmentDatabase, ...] = ()
    templates: TemplateDatabase | None = None
    uniprot: AlignmentDatabase | None = None  # for rows of complexes that are paired by the species in their names
    complex_templates: TemplateDatabase | None = None  # for chains of complexes; None: `templates` is for them too
    notes: tuple[str, ...] = ()  # databases that are present but not used, and why
    complex_notes: tuple[str, ...] = ()  # the same, of databases that only complexes need


def database_files(database: AlignmentDatabase | TemplateDatabase) -> list[Path]:
    """Return the existing files of a database."""
    return [
        file
        for path in database.paths
        for file in ([path] if _is_single_file(path) else sorted(path.parent.glob(f"{path.name}*")))
    ]


def searched_databases(database: AlignmentDatabase | TemplateDatabase) -> tuple[SearchedDatabase, ...]:
    """Return what results tell of the files of a database, or of each of several that are searched together."""
    found = []
    for path in database.paths:
        release = _RELEASE.search(path.name)
        sizes = [file.stat().st_size for file in database_files(replace(database, paths=(path,)))]
        found.append(SearchedDatabase(name=path.name, version=release and release[0], size=sum(sizes)))
    return tuple(found)


def _is_single_file(path: Path) -> bool:
    """Return whether a database is one file, such as FASTA; those of MMseqs2 have others with longer names."""
    return path.is_file() and not path.with_name(f"{path.name}.dbtype").is_file()
