"""Find and check the files of ColabFold's MMseqs2 databases.

A database of clusters consists of the representatives (`X`), all members (`X_seq`), and the alignments of the members
to their representatives (`X_aln`). A search finds representatives, and replaces each by the members of its cluster.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.search.database import AlignmentDatabase, DatabaseProfile, TemplateDatabase

# Types in the `.dbtype` file; higher bits mark compression, padding for GPUs and an external header.
_TYPE_BITS, _SEQUENCES, _PROFILES, _ALIGNMENTS = 0xFFFF, 0, 2, 5
_NAME_OF_TYPE = {_SEQUENCES: "protein sequences", _PROFILES: "profiles", _ALIGNMENTS: "alignments"}
_INDEX_ENDING = ".idx"
_ADVICE = "download or unpack it again, or build one with `helixfold databases build`"


@dataclass(frozen=True)
class ClusterDatabase:
    """A database of clusters; the constructor raises `InputError` for a file that is missing or of the wrong kind.

    `path` is the prefix of all its files.
    """

    path: Path  # prefix of all its files

    def __post_init__(self) -> None:
        check_kind(self.path, _SEQUENCES, _PROFILES)
        check_kind(with_ending(self.path, "_h"))
        if not self.is_indexed:
            check_kind(with_ending(self.path, "_seq"), _SEQUENCES)
            check_kind(with_ending(self.path, "_seq_h"))
            check_kind(with_ending(self.path, "_aln"), _ALIGNMENTS)

    @property
    def is_indexed(self) -> bool:
        """Whether there is an index of `mmseqs createindex`, which includes members and alignments."""
        return is_indexed(self.path)

    @property
    def members(self) -> str:
        """Path of the database of all members, or of the index that includes it."""
        return str(with_ending(self.path, _INDEX_ENDING if self.is_indexed else "_seq"))

    @property
    def alignments(self) -> str:
        """Path of the database of the members' alignments, or of the index that includes it."""
        return str(with_ending(self.path, _INDEX_ENDING if self.is_indexed else "_aln"))

    @property
    def has_taxonomy(self) -> bool:
        """Whether the database has the species of its members, which are needed to pair rows of complexes."""
        taxonomy = (with_ending(self.path, ending).is_file() for ending in ("_taxonomy", "_nodes.dmp"))
        return with_ending(self.path, "_mapping").is_file() and any(taxonomy)

    def identity(self) -> str:
        """Return the name and the sizes in bytes of the data files, which differ between releases of a database."""
        parts = [self.path, with_ending(self.path, "_seq"), with_ending(self.path, "_aln")]
        return f"{self.path.name}:{':'.join(str(database_size(part)) for part in parts)}"


def with_ending(path: Path, ending: str) -> Path:
    """Return the path of a database file: the prefix of the database with an ending."""
    return path.with_name(f"{path.name}{ending}")


def is_indexed(path: Path) -> bool:
    """Return whether the database with the prefix `path` has an index of `mmseqs createindex`."""
    return with_ending(path, f"{_INDEX_ENDING}.index").is_file()


def database_size(path: Path) -> int:
    """Return the size of a database's data in bytes, including split files X.0, X.1, ...; 0 if it is missing."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}.[0-9]*"))


def check_kind(path: Path, *kinds: int) -> None:
    """Raise `InputError` if a file of a database is missing, or if the database is not of one of `kinds`.

    `path` is the prefix of the database, and `kinds` are MMseqs2's type numbers. Without `kinds`, any is accepted.
    """
    for ending in (".dbtype", ".index"):
        if not with_ending(path, ending).is_file():
            raise InputError.at(with_ending(path, ending), f"this file of the MMseqs2 database is missing; {_ADVICE}")
    if not path.is_file() and not with_ending(path, ".0").is_file():
        raise InputError.at(path, f"this file of the MMseqs2 database is missing; {_ADVICE}")
    content = with_ending(path, ".dbtype").read_bytes()
    if len(content) != 4:
        raise InputError.at(
            with_ending(path, ".dbtype"), f"not a file of MMseqs2: got {len(content)} bytes, expected 4; {_ADVICE}"
        )
    kind = int.from_bytes(content, "little") & _TYPE_BITS
    if kinds and kind not in kinds:
        expected = " or ".join(_NAME_OF_TYPE[each] for each in kinds)
        raise InputError.at(path, f"expected an MMseqs2 database of {expected}, got type {kind}; {_ADVICE}")


def check_sequences(path: Path) -> None:
    """Raise `InputError` unless `path` is a database of single protein sequences, such as ColabFold's pdb100."""
    check_kind(path, _SEQUENCES)
    check_kind(with_ending(path, "_h"))


def colabfold_directory(root: Path) -> DatabaseProfile | None:
    """Return the databases in a directory of ColabFold's setup script, or None if it is not such a directory.

    The profile has the newest UniRef30 by name, then the environmental sequences, and pdb100 (or pdb70) for templates
    if the structures are present. Its notes name what is not searched.
    """
    uniref = _newest(root, "uniref30_*_db")
    if uniref is None:
        return None
    environmental = _newest(root, "colabfold_envdb_*_db")
    paths = (uniref,) if environmental is None else (uniref, environmental)
    notes = [] if environmental is not None else ["no environmental sequences are searched: no colabfold_envdb_*_db"]
    templates, structures = _newest(root, "pdb100*", "pdb70*"), root / "pdb" / "divided"
    if templates is not None and not structures.is_dir():
        notes.append(f"no templates are searched: {structures} is missing")
        templates = None
    return DatabaseProfile(
        alignments=(AlignmentDatabase(name="colabfold", tool="colabfold", paths=paths),),
        templates=None
        if templates is None
        else TemplateDatabase(tool="mmseqs", paths=(templates,), structures=structures),
        notes=tuple(notes),
    )


def _newest(root: Path, *patterns: str) -> Path | None:
    """Return the last database by name that matches the first pattern with a match, or None."""
    for pattern in patterns:
        databases: Collection[Path] = [
            path.with_suffix("")
            for path in root.glob(f"{pattern}.dbtype")
            if not path.stem.endswith(("_h", "_seq", "_aln", "_a3m", _INDEX_ENDING))
        ]
        if databases:
            return max(databases)
    return None
