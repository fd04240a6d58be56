"""A database and what searches it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

from data_pipeline.search.tool import FileFormat

AlignmentTool = Literal["jackhmmer", "hhblits", "mmseqs"]
TemplateTool = Literal["hmmsearch", "hhsearch"]
Engine = Literal["pyhmmer", "program"]
HMMER_TOOLS = ("jackhmmer", "hmmsearch")  # tools that run in this process unless the program is asked for


@dataclass(frozen=True, kw_only=True)
class AlignmentDatabase:
    """Sequences (or their profiles) to search for a target's relatives."""

    name: str  # results are kept as `<name>_hits.sto` or `.a3m`
    tool: AlignmentTool
    paths: tuple[Path, ...]  # FASTA file, or prefixes of hh-suite databases that are searched together
    engine: Engine = "pyhmmer"  # of the tools in `HMMER_TOOLS`
    max_rows: int | None = None  # rows that are read of the result, the target's included; None: all
    options: Mapping[str, Any] = field(default_factory=dict)  # of the tool, where they differ from AlphaFold's

    @property
    def result_file(self) -> str:
        form: FileFormat = "sto" if self.tool == "jackhmmer" else "a3m"
        return f"{self.name}_hits.{form}"


@dataclass(frozen=True, kw_only=True)
class TemplateDatabase:
    """Sequences (or profiles) of chains of known structure, and where their structures are."""

    tool: TemplateTool
    paths: tuple[Path, ...]
    structures: Path  # directory of mmCIF (or PDB) files, flat or divided
    obsolete: Path | None = None  # the PDB's list of entries that were replaced
    release_dates: Path | None = None  # table `1abc: 2001-02-03`, which spares opening files that are too new
    latest_release: date | None = None  # newer structures are no templates
    engine: Engine = "pyhmmer"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def result_file(self) -> str:
        return "pdb_hits.sto" if self.tool == "hmmsearch" else "pdb_hits.hhr"


@dataclass(frozen=True, kw_only=True)
class DatabaseProfile:
    """Everything that one target's searches use, in the order in which their rows are merged."""

    alignments: tuple[AlignmentDatabase, ...] = ()
    templates: TemplateDatabase | None = None
    notes: tuple[str, ...] = ()  # what was found and is not used, and why


def database_files(database: AlignmentDatabase | TemplateDatabase) -> list[Path]:
    """The files a database consists of, as far as they exist."""
    return [
        file
        for path in database.paths
        for file in ([path] if path.is_file() else sorted(path.parent.glob(f"{path.name}*")))
    ]
