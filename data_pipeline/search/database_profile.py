"""Read which databases to search from a profile file, AlphaFold's data directory, or FASTA files."""

import tomllib
from collections.abc import Collection
from datetime import date
from pathlib import Path
from typing import Any, get_args

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.fasta import target_name_problem
from data_pipeline.parse.text_files import read_text_bytes
from data_pipeline.search.database import (
    HMMER_TOOLS,
    AlignmentDatabase,
    AlignmentTool,
    DatabaseProfile,
    Engine,
    TemplateDatabase,
    TemplateTool,
)

_MAX_PROFILE_BYTES = 2**20
_MAX_LINE_BYTES = 2**13  # the time to parse a dotted name rises with the square of its parts
# Rows that AlphaFold 2 reads of each result (run_alphafold.py of 2.3), including the target's.
UNIREF_ROWS, MGNIFY_ROWS = 10_000, 501


def read_database_profile(path: Path, programs: Collection[str], *, reduced: bool = False) -> DatabaseProfile:
    """Return the databases of a TOML profile, or of a directory laid out as AlphaFold's download scripts do.

    `programs` are the installed search programs: in a directory, a database that needs another program is replaced by
    its substitute. With `reduced`, the small BFD replaces BFD and UniRef30. Raise `InputError` for an invalid profile,
    and for one that names a missing file.
    """
    if path.is_dir():
        return _alphafold_directory(path, programs, reduced=reduced)
    return _toml_profile(path)


def profile_from_fasta(paths: Collection[Path]) -> DatabaseProfile:
    """Return a profile of FASTA files, to be searched with jackhmmer and merged in the order given."""
    databases: list[AlignmentDatabase] = []
    for path in paths:
        name = path.name.split(".")[0]
        if target_name_problem(name) is not None:
            raise InputError.at(path, "results are named after the database; give the file a plain name")
        if not path.is_file():
            raise InputError.at(path, "there is no such database file")
        if any(name == other.name for other in databases):
            raise InputError.at(path, f"two databases are named '{name}'; give each file its own name")
        databases.append(AlignmentDatabase(name=name, tool="jackhmmer", paths=(path,)))
    return DatabaseProfile(alignments=tuple(databases))


def _alphafold_directory(root: Path, programs: Collection[str], *, reduced: bool) -> DatabaseProfile:
    notes: list[str] = []
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
    return DatabaseProfile(
        alignments=tuple(alignments), templates=_alphafold_templates(root, programs, notes), notes=tuple(notes)
    )


def _alphafold_templates(root: Path, programs: Collection[str], notes: list[str]) -> TemplateDatabase | None:
    structures, obsolete = root / "pdb_mmcif" / "mmcif_files", root / "pdb_mmcif" / "obsolete.dat"
    pdb70, seqres = _first(root, "pdb70/*_a3m.ffdata"), _first(root, "pdb_seqres/*.txt", "pdb_seqres/*.fasta")
    if not structures.is_dir():
        if pdb70 is not None or seqres is not None:
            notes.append(f"no templates are searched: {structures} is missing")
        return None
    replaced = obsolete if obsolete.is_file() else None
    if pdb70 is not None and "hhsearch" in programs:
        return TemplateDatabase(tool="hhsearch", paths=(_prefix(pdb70),), structures=structures, obsolete=replaced)
    if pdb70 is not None:
        notes.append("pdb70 is not searched: hhsearch is not installed (package hhsuite)")
    if seqres is not None:
        return TemplateDatabase(tool="hmmsearch", paths=(seqres,), structures=structures, obsolete=replaced)
    return None


def _first(root: Path, *patterns: str) -> Path | None:
    """Return the last file by name (the newest release) that fits the first pattern with any match, or None."""
    for pattern in patterns:
        if (path := max(root.glob(pattern), default=None)) is not None:
            return path
    return None


def _prefix(path: Path) -> Path:
    """Return an hh-suite database's prefix, from the path of its `_a3m.ffdata` file."""
    return Path(str(path).removesuffix("_a3m.ffdata"))


def _toml_profile(path: Path) -> DatabaseProfile:
    content = read_text_bytes(path, _MAX_PROFILE_BYTES)
    for number, line in enumerate(content.split(b"\n"), start=1):
        if len(line) > _MAX_LINE_BYTES:
            raise InputError.at(path, f"the line is longer than {_MAX_LINE_BYTES:,} bytes; divide it", line=number)
    try:
        table = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError.at(path, f"not a TOML profile of databases: {printable(str(error))}") from error
    _only_keys(path, "profile", table, ("alignments", "templates"))
    given = table.get("alignments", [])
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise InputError.at(path, "write each alignment database as its own [[alignments]] table")
    alignments = [_alignment_database(path, entry) for entry in given]
    names = [database.name for database in alignments]
    if len(set(names)) < len(names):
        raise InputError.at(path, f"each database needs its own name, got {', '.join(names)}")
    templates = table.get("templates")
    if templates is not None and not isinstance(templates, dict):
        raise InputError.at(path, "write the template database as one [templates] table")
    if not alignments and templates is None:
        raise InputError.at(path, "the profile names no database; it needs [[alignments]] or [templates]")
    return DatabaseProfile(
        alignments=tuple(alignments), templates=None if templates is None else _template_database(path, templates)
    )


def _alignment_database(profile: Path, entry: dict[str, Any]) -> AlignmentDatabase:
    _only_keys(profile, "[[alignments]]", entry, ("name", "tool", "path", "engine", "max_rows", "options"))
    name = entry.get("name")
    if not isinstance(name, str) or target_name_problem(name) is not None:
        raise InputError.at(profile, f"[[alignments]] needs a name without blanks and slashes, got {name!r}")
    where = f"database '{name}'"
    max_rows = entry.get("max_rows")
    if max_rows is not None and (not isinstance(max_rows, int) or isinstance(max_rows, bool) or max_rows < 1):
        raise InputError.at(profile, f"{where}: max_rows must be a whole number from 1, got {max_rows!r}")
    tool = _choice(profile, where, entry, "tool", get_args(AlignmentTool))
    return AlignmentDatabase(
        name=name,
        tool=tool,  # type: ignore[arg-type]  # one of the literal's values
        paths=_database_paths(profile, where, entry, prefix=tool == "hhblits"),
        engine=_engine(profile, where, entry, tool),
        max_rows=max_rows,
        options=_options(profile, where, entry),
    )


def _template_database(profile: Path, entry: dict[str, Any]) -> TemplateDatabase:
    where = "[templates]"
    keys = ("tool", "path", "structures", "obsolete", "release_dates", "latest_release", "engine", "options")
    _only_keys(profile, where, entry, keys)
    tool = _choice(profile, where, entry, "tool", get_args(TemplateTool))
    structures: Any = entry.get("structures")
    latest: Any = entry.get("latest_release")
    if not isinstance(structures, str) or not (profile.parent / structures).is_dir():
        raise InputError.at(profile, f"{where}: structures must be a directory of mmCIF files, got {structures!r}")
    if latest is not None and type(latest) is not date:
        raise InputError.at(profile, f"{where}: latest_release must be a date such as 2021-11-01, got {latest!r}")
    return TemplateDatabase(
        tool=tool,  # type: ignore[arg-type]  # one of the literal's values
        paths=_database_paths(profile, where, entry, prefix=tool == "hhsearch"),
        structures=profile.parent / structures,
        obsolete=_file(profile, where, entry, "obsolete"),
        release_dates=_file(profile, where, entry, "release_dates"),
        latest_release=latest,
        engine=_engine(profile, where, entry, tool),
        options=_options(profile, where, entry),
    )


def _file(profile: Path, where: str, entry: dict[str, Any], key: str) -> Path | None:
    given = entry.get(key)
    if given is None:
        return None
    if not isinstance(given, str) or not (profile.parent / given).is_file():
        raise InputError.at(profile, f"{where}: {key} must be a file, got {given!r}")
    return profile.parent / given


def _database_paths(profile: Path, where: str, entry: dict[str, Any], *, prefix: bool) -> tuple[Path, ...]:
    given: Any = entry.get("path")
    texts: list[Any] = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InputError.at(profile, f"{where}: path must be a file name (or a list of them), got {given!r}")
    paths = tuple(profile.parent / text for text in texts)
    for path in paths:
        if prefix and not path.parent.joinpath(f"{path.name}_a3m.ffdata").is_file():
            raise InputError.at(profile, f"{where}: there is no hh-suite database {path} ({path}_a3m.ffdata)")
        if not prefix and not path.is_file():
            raise InputError.at(profile, f"{where}: there is no file {path}")
    if len(paths) > 1 and not prefix:
        raise InputError.at(profile, f"{where}: only hh-suite databases are searched together; make one table for each")
    return paths


def _engine(profile: Path, where: str, entry: dict[str, Any], tool: str) -> Engine:
    if tool not in HMMER_TOOLS:
        if "engine" in entry:
            raise InputError.at(profile, f"{where}: engine can be chosen for {' and '.join(HMMER_TOOLS)} only")
        return "program"
    return _choice(profile, where, {"engine": "pyhmmer", **entry}, "engine", get_args(Engine))  # type: ignore[return-value]


def _options(profile: Path, where: str, entry: dict[str, Any]) -> dict[str, Any]:
    options = entry.get("options", {})
    if not isinstance(options, dict):
        raise InputError.at(profile, f"{where}: options must be a table such as {{ e_value = 0.001 }}")
    return options


def _choice(profile: Path, where: str, entry: dict[str, Any], key: str, allowed: Collection[str]) -> str:
    value = entry.get(key)
    if value not in allowed or not isinstance(value, str):
        raise InputError.at(profile, f"{where}: {key} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def _only_keys(profile: Path, where: str, table: dict[str, Any], allowed: Collection[str]) -> None:
    if unknown := sorted(set(table) - set(allowed)):
        raise InputError.at(
            profile, f"{where}: unknown {printable(', '.join(unknown))}; it can hold {', '.join(allowed)}"
        )
