"""The files of ColabFold's MMseqs2 databases, checked before a search, and where to find them in a directory.

A database of clusters consists of their representatives (`X`), all members (`X_seq`) and the alignments of the members
to their representatives (`X_aln`). A search finds representatives, and replaces each by the members of its cluster.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.search.database import AlignmentDatabase, DatabaseProfile, TemplateDatabase

# In a database's `.dbtype`; bits above tell of compression, padding for GPUs and an external header.
_TYPE_BITS, _SEQUENCES, _PROFILES, _ALIGNMENTS = 0xFFFF, 0, 2, 5
_KINDS = {_SEQUENCES: "protein sequences", _PROFILES: "profiles", _ALIGNMENTS: "alignments"}
_INDEX = ".idx"
_MADE = "download or unpack it again, or make one with `helixfold databases build`"


@dataclass(frozen=True)
class ClusterDatabase:
    """A database of clusters, checked on construction: `InputError` names a file that is missing or of a wrong kind."""

    path: Path  # without an ending: the prefix of all its files

    def __post_init__(self) -> None:
        check_kind(self.path, _SEQUENCES, _PROFILES)
        check_kind(with_ending(self.path, "_h"))
        if not self.is_indexed:
            check_kind(with_ending(self.path, "_seq"), _SEQUENCES)
            check_kind(with_ending(self.path, "_seq_h"))
            check_kind(with_ending(self.path, "_aln"), _ALIGNMENTS)

    @property
    def is_indexed(self) -> bool:
        """Return whether `mmseqs createindex` made an index, which holds members and alignments too."""
        return is_indexed(self.path)

    @property
    def members(self) -> str:
        """The database of all members, or the index that holds it."""
        return str(with_ending(self.path, _INDEX if self.is_indexed else "_seq"))

    @property
    def alignments(self) -> str:
        """The database of the members' alignments, or the index that holds it."""
        return str(with_ending(self.path, _INDEX if self.is_indexed else "_aln"))

    @property
    def has_taxonomy(self) -> bool:
        """Return whether the species of the members are known, by which rows of complexes are paired."""
        taxonomy = (with_ending(self.path, ending).is_file() for ending in ("_taxonomy", "_nodes.dmp"))
        return with_ending(self.path, "_mapping").is_file() and any(taxonomy)

    def identity(self) -> str:
        """Return the name and the sizes of the files; another release of a database has others."""
        parts = [self.path, with_ending(self.path, "_seq"), with_ending(self.path, "_aln")]
        return f"{self.path.name}:{':'.join(str(database_size(part)) for part in parts)}"


def with_ending(path: Path, ending: str) -> Path:
    """Return a file of a database, which is named by the database's prefix and an ending."""
    return path.with_name(f"{path.name}{ending}")


def is_indexed(path: Path) -> bool:
    """Return whether `mmseqs createindex` made an index of a database."""
    return with_ending(path, f"{_INDEX}.index").is_file()


def database_size(path: Path) -> int:
    """Return the bytes of a database's data, which may be divided into files X.0, X.1 and so on; 0 if there is none."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}.[0-9]*"))


def check_kind(path: Path, *kinds: int) -> None:
    """Raise `InputError` if one of a database's files is missing, or if the database is of none of these kinds.

    Without `kinds`, its kind does not matter.
    """
    for ending in (".dbtype", ".index"):
        if not with_ending(path, ending).is_file():
            raise InputError.at(with_ending(path, ending), f"this file of the MMseqs2 database is missing; {_MADE}")
    if not path.is_file() and not with_ending(path, ".0").is_file():
        raise InputError.at(path, f"this file of the MMseqs2 database is missing; {_MADE}")
    content = with_ending(path, ".dbtype").read_bytes()
    if len(content) != 4:
        raise InputError.at(
            with_ending(path, ".dbtype"), f"it holds {len(content)} bytes, not 4: not MMseqs2's; {_MADE}"
        )
    kind = int.from_bytes(content, "little") & _TYPE_BITS
    if kinds and kind not in kinds:
        wanted = " or ".join(_KINDS[each] for each in kinds)
        raise InputError.at(path, f"MMseqs2 needs a database of {wanted} here, and this one is of kind {kind}; {_MADE}")


def check_sequences(path: Path) -> None:
    """Raise `InputError` unless `path` is a database of single protein sequences, such as ColabFold's pdb100."""
    check_kind(path, _SEQUENCES)
    check_kind(with_ending(path, "_h"))


def colabfold_directory(root: Path) -> DatabaseProfile | None:
    """Return the databases in a directory that ColabFold's setup script filled; None if it is another directory.

    The newest UniRef30 by name is searched, then the environmental sequences, and pdb100 (or pdb70) for templates if
    the structures are there.
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
    """Return the last database by name that fits the first pattern with any match; None if there is none."""
    for pattern in patterns:
        found: Collection[Path] = [
            path.with_suffix("")
            for path in root.glob(f"{pattern}.dbtype")
            if not path.stem.endswith(("_h", "_seq", "_aln", "_a3m", _INDEX))
        ]
        if found:
            return max(found)
    return None
