"""Read which databases to search from a profile file, AlphaFold's data directory, or FASTA files.

`UNIREF_ROWS`, `MGNIFY_ROWS` and `UNIPROT_ROWS` are the numbers of rows that are read of each result. `UNIPROT` is the
name of the database whose rows are paired by species.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, cast, get_args

from data_pipeline.io.errors import InputError, choice_problem
from data_pipeline.io.toml_files import read_toml, require_keys
from data_pipeline.parse.fasta import file_name_problem
from data_pipeline.search.colabfold_databases import colabfold_directory
from data_pipeline.search.database import (
    HMMER_TOOLS,
    AlignmentDatabase,
    AlignmentTool,
    DatabaseProfile,
    Engine,
    TemplateDatabase,
    TemplateTool,
)

# Rows that AlphaFold 2 reads of each result (run_alphafold.py of 2.3), including the target's.
UNIREF_ROWS, MGNIFY_ROWS, UNIPROT_ROWS = 10_000, 501, 50_000
UNIPROT = "uniprot"  # name of its database, and so of its results


def alphafold_directory(root: Path, programs: Collection[str], *, reduced: bool) -> DatabaseProfile:
    """Return the databases in a directory that AlphaFold's download scripts filled; see `read_database_profile`.

    The notes of the profile name databases that are not searched. Raise `InputError` if none is for alignments, or with
    `reduced` if the small BFD is missing.
    """
    notes: list[str] = []
    alignments = _alignments(root, programs, notes, reduced=reduced)
    uniprot = _first(root, "uniprot/uniprot.fasta", "uniprot/*.fasta", "uniprot/*.fa")
    complex_notes = ["there is no uniprot/uniprot.fasta, whose rows are paired by species"] if uniprot is None else []
    templates, complex_templates = _templates(root, programs, notes, complex_notes)
    return DatabaseProfile(
        alignments=tuple(alignments),
        templates=templates,
        uniprot=None
        if uniprot is None
        else AlignmentDatabase(name=UNIPROT, tool="jackhmmer", paths=(uniprot,), max_rows=UNIPROT_ROWS),
        complex_templates=complex_templates,
        notes=tuple(notes),
        complex_notes=tuple(complex_notes),
    )


def _alignments(root: Path, programs: Collection[str], notes: list[str], *, reduced: bool) -> list[AlignmentDatabase]:
    """Return the databases of homologs in AlphaFold's order; add to the notes what is not searched."""
    alignments: list[AlignmentDatabase] = []
    uniref90 = _first(root, "uniref90/*.fasta", "uniref90/*.fa")
    if uniref90 is not None:
        alignments.append(AlignmentDatabase(name="uniref90", tool="jackhmmer", paths=(uniref90,), max_rows=UNIREF_ROWS))
    profiles = tuple(
        _prefix(path)
        for path in (
            _first(root, "bfd/*_a3m.ffdata"),
            _first(root, "uniref30/*_a3m.ffdata", "uniclust30/*_a3m.ffdata", "uniclust30/*/*_a3m.ffdata"),
        )
        if path is not None
    )
    small_bfd = _first(root, "small_bfd/*.fasta", "small_bfd/*.fa")
    if reduced and small_bfd is None:
        raise InputError(f"{root}: there is no small_bfd in this directory, which the reduced databases have for BFD")
    profiles = () if reduced else profiles
    if profiles and "hhblits" in programs:
        alignments.append(AlignmentDatabase(name="bfd_uniref", tool="hhblits", paths=profiles))
    elif small_bfd is not None:
        alignments.append(AlignmentDatabase(name="small_bfd", tool="jackhmmer", paths=(small_bfd,)))
    if profiles and "hhblits" not in programs:
        names = ", ".join(path.name for path in profiles)
        notes.append(f"{names} is not searched: hhblits is not installed (package hhsuite)")
    mgnify = _first(root, "mgnify/*.fa", "mgnify/*.fasta")
    if mgnify is not None:
        alignments.append(AlignmentDatabase(name="mgnify", tool="jackhmmer", paths=(mgnify,), max_rows=MGNIFY_ROWS))
    if not alignments:
        raise InputError(
            f"{root}: no uniref90, bfd, uniref30, small_bfd or mgnify database in this directory; "
            "name a profile file (TOML) or the directory that AlphaFold's download script filled"
        )
    return alignments


def _templates(
    root: Path, programs: Collection[str], notes: list[str], complex_notes: list[str]
) -> tuple[TemplateDatabase | None, TemplateDatabase | None]:
    """Return the databases for single chains, hhsearch's before hmmsearch's, and for chains of complexes, hmmsearch's.

    So does AlphaFold search. The second one is None where the first is for both.
    """
    structures, obsolete = root / "pdb_mmcif" / "mmcif_files", root / "pdb_mmcif" / "obsolete.dat"
    pdb70, seqres = _first(root, "pdb70/*_a3m.ffdata"), _first(root, "pdb_seqres/*.txt", "pdb_seqres/*.fasta")
    if not structures.is_dir():
        if pdb70 is not None or seqres is not None:
            notes.append(f"no templates are searched: {structures} is missing")
        return None, None
    replaced = obsolete if obsolete.is_file() else None
    by_sequence = (
        None
        if seqres is None
        else TemplateDatabase(tool="hmmsearch", paths=(seqres,), structures=structures, obsolete=replaced)
    )
    if pdb70 is None:
        return by_sequence, None
    if "hhsearch" not in programs:
        notes.append("pdb70 is not searched: hhsearch is not installed (package hhsuite)")
        return by_sequence, None
    if by_sequence is None:
        complex_notes.append("there is no pdb_seqres/pdb_seqres.txt, so pdb70 is searched for templates")
    by_profile = TemplateDatabase(tool="hhsearch", paths=(_prefix(pdb70),), structures=structures, obsolete=replaced)
    return by_profile, by_sequence


def _first(root: Path, *patterns: str) -> Path | None:
    """Return the last file by name (the newest release) that fits the first pattern with any match, or None."""
    for pattern in patterns:
        if (path := max(root.glob(pattern), default=None)) is not None:
            return path
    return None


def _prefix(path: Path) -> Path:
    """Return an hh-suite database's prefix, from the path of its `_a3m.ffdata` file."""
    return Path(str(path).removesuffix("_a3m.ffdata"))


_LOG = logging.getLogger(__name__)
_TABLES = {
    "templates": "template database",
    "uniprot": "database of rows that are paired by species",
    "complex_templates": "template database of complexes",
}
# By tool: ending that completes a database's prefix to a file, name in errors, and how many are searched together.
_PREFIX_DATABASES = {
    "hhblits": ("_a3m.ffdata", "hh-suite database", 100),
    "hhsearch": ("_a3m.ffdata", "hh-suite database", 100),
    "colabfold": (".dbtype", "MMseqs2 database", 2),
    "mmseqs for templates": (".dbtype", "MMseqs2 database", 1),
}


def read_database_profile(path: Path, programs: Collection[str], *, reduced: bool = False) -> DatabaseProfile:
    """Return the databases of a TOML profile, or of a directory laid out as AlphaFold's or ColabFold's scripts do.

    `programs` are the installed search programs: in a directory, a database that needs another program is replaced by
    its substitute, or left out with a note. With `reduced`, the small BFD of AlphaFold's directory replaces BFD and
    UniRef30; it has no effect on profiles and ColabFold's directories. Raise `InputError` for an invalid profile, for
    one that names a missing file, and for a directory without databases.
    """
    _LOG.debug("databases from %s", path.absolute())
    if path.is_dir():
        return colabfold_directory(path) or alphafold_directory(path, programs, reduced=reduced)
    return _toml_profile(path)


def profile_from_fasta(paths: Collection[Path]) -> DatabaseProfile:
    """Return a profile of FASTA files, to be searched with jackhmmer and merged in the order given.

    Databases are named after the files, up to the first dot. Raise `InputError` for a missing file, and for names that
    are equal or cannot be file names.
    """
    databases: list[AlignmentDatabase] = []
    for path in paths:
        name = path.name.split(".")[0]
        if file_name_problem(name) is not None:
            raise InputError.at(path, "results are named after the database; give the file a plain name")
        if not path.is_file():
            raise InputError.at(path, "no such database file")
        if any(name == other.name for other in databases):
            raise InputError.at(path, f"two databases are named '{name}'; give each file its own name")
        databases.append(AlignmentDatabase(name=name, tool="jackhmmer", paths=(path,)))
    return DatabaseProfile(alignments=tuple(databases))


def _toml_profile(path: Path) -> DatabaseProfile:
    """Read and check a TOML profile."""
    profile = _Table(path, "profile", read_toml(path, "TOML profile of databases"))
    profile.require_keys("alignments", *_TABLES)
    entries = profile.values.get("alignments", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError.at(path, "write each alignment database as its own [[alignments]] table")
    alignments = [_alignment_database(path, entry) for entry in entries]
    tables = {name: _Table(path, f"[{name}]", profile.values[name]) for name in _TABLES if name in profile.values}
    for name, table in tables.items():
        if not isinstance(table.values, dict):
            raise InputError.at(path, f"write the {_TABLES[name]} as one [{name}] table")
    names = [database.name for database in alignments] + [UNIPROT] * (UNIPROT in tables)
    if len(set(names)) < len(names):
        raise InputError.at(path, f"each database needs its own name, got {', '.join(names)}")
    if not alignments and not tables:
        raise InputError.at(path, "the profile names no database; it needs [[alignments]] or [templates]")
    return DatabaseProfile(
        alignments=tuple(alignments),
        templates=_template_database(tables["templates"]) if "templates" in tables else None,
        uniprot=_uniprot_database(tables[UNIPROT]) if UNIPROT in tables else None,
        complex_templates=_template_database(tables["complex_templates"]) if "complex_templates" in tables else None,
    )


def _alignment_database(profile: Path, values: dict[str, Any]) -> AlignmentDatabase:
    """Return the database of an [[alignments]] table; `profile` is the file."""
    table = _Table(profile, "[[alignments]]", values)
    table.require_keys("name", "tool", "path", "engine", "max_rows", "options")
    name = table.value(
        "name",
        lambda value: isinstance(value, str) and file_name_problem(value) is None,
        "a word without blanks and slashes",
    )
    table = _Table(profile, f"database '{name}'", values)
    tool = table.choice("tool", get_args(AlignmentTool))
    return AlignmentDatabase(
        name=name,
        tool=tool,
        paths=table.database_paths(tool),
        engine=table.engine(tool),
        max_rows=table.max_rows(default=None),
        options=table.options(),
    )


def _uniprot_database(table: "_Table") -> AlignmentDatabase:
    """Return the database for paired rows; it needs jackhmmer, whose rows have names with the species."""
    table.require_keys("path", "engine", "max_rows", "options")
    return AlignmentDatabase(
        name=UNIPROT,
        tool="jackhmmer",
        paths=table.database_paths("jackhmmer"),
        engine=table.engine("jackhmmer"),
        max_rows=table.max_rows(default=UNIPROT_ROWS),
        options=table.options(),
    )


def _template_database(table: "_Table") -> TemplateDatabase:
    """Return the template database of a table."""
    table.require_keys("tool", "path", "structures", "obsolete", "release_dates", "latest_release", "engine", "options")
    tool = table.choice("tool", get_args(TemplateTool))
    return TemplateDatabase(
        tool=tool,
        paths=table.database_paths("mmseqs for templates" if tool == "mmseqs" else tool),
        structures=table.path("structures", Path.is_dir, "a directory of mmCIF files"),
        obsolete=table.path("obsolete", Path.is_file, "a file") if "obsolete" in table.values else None,
        release_dates=table.path("release_dates", Path.is_file, "a file") if "release_dates" in table.values else None,
        latest_release=table.value(
            "latest_release", lambda value: value is None or type(value) is date, "a date such as 2021-11-01"
        ),
        engine=table.engine(tool),
        options=table.options(),
    )


@dataclass(frozen=True)
class _Table:
    """A table of a profile, called `where` in errors; its methods raise `InputError` for values that are not right."""

    profile: Path
    where: str
    values: dict[str, Any]

    def require_keys(self, *allowed: str) -> None:
        """Raise `InputError` if the table has other keys than these."""
        require_keys(self.profile, self.values, allowed, f"{self.where}: ")

    def value(self, key: str, is_right: Callable[[Any], bool], what: str, default: object = None) -> Any:
        """Return a value that `is_right`; `what` completes "must be ..."."""
        value = self.values.get(key, default)
        if not is_right(value):
            raise self._error(f"{key} must be {what}, got {value!r}")
        return value

    def choice(self, key: str, allowed: Collection[str], default: str | None = None) -> Any:
        """Return one of the allowed words."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise self._error(f"{key} {choice_problem(value, allowed)}")
        return value

    def path(self, key: str, is_right: Callable[[Path], bool], what: str) -> Path:
        """Return a path, which the profile gives relative to its own directory."""
        folder = self.profile.parent
        return folder / self.value(key, lambda value: isinstance(value, str) and is_right(folder / value), what)

    def options(self) -> dict[str, Any]:
        """Return the options of the table's tool."""
        what = "a table such as { e_value = 0.001 }"
        return dict(self.value("options", lambda value: isinstance(value, dict), what, default={}))

    def max_rows(self, *, default: int | None) -> int | None:
        """Return the number of rows of a result to read; None: all."""
        count: int | None = self.value(
            "max_rows",
            lambda value: value is None or (type(value) is int and value >= 1),
            "a whole number from 1",
            default=default,
        )
        return count

    def engine(self, tool: str) -> Engine:
        """Return what runs the table's tool."""
        if tool in HMMER_TOOLS:
            return cast(Engine, self.choice("engine", get_args(Engine), default="pyhmmer"))
        if "engine" in self.values:
            raise self._error(f"engine can be chosen for {' and '.join(HMMER_TOOLS)} only")
        return "program"

    def database_paths(self, tool: str) -> tuple[Path, ...]:
        """Return the database's file, or the prefixes of hh-suite or ColabFold databases that are searched together."""
        value = self.value("path", _are_texts, "a file name (or a list of them)")
        paths = tuple(self.profile.parent / text for text in (value if isinstance(value, list) else [value]))
        ending, what, max_count = _PREFIX_DATABASES.get(tool, ("", "file", 1))
        for path in paths:
            if not path.with_name(f"{path.name}{ending}").is_file():
                raise self._error(f"there is no {what} {path}" + (f" ({path}{ending})" if ending else ""))
        if len(paths) > max_count:
            problem = (
                "only hh-suite databases are searched together, and ColabFold's UniRef30 with one of environmental"
            )
            raise self._error(f"{problem} sequences; make one table for each")
        return paths

    def _error(self, problem: str) -> InputError:
        return InputError.at(self.profile, f"{self.where}: {problem}")


def _are_texts(value: Any) -> bool:
    """Return whether a value is text or a list of texts, none of them empty."""
    texts = value if isinstance(value, list) else [value]
    return bool(texts) and all(isinstance(text, str) and text for text in texts)
