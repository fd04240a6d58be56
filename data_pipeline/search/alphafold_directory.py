"""Find the databases in a directory that AlphaFold's download scripts filled."""

from collections.abc import Collection
from pathlib import Path

from data_pipeline.errors import InputError
from data_pipeline.search.database import AlignmentDatabase, DatabaseProfile, TemplateDatabase

# Rows that AlphaFold 2 reads of each result (run_alphafold.py of 2.3), including the target's.
UNIREF_ROWS, MGNIFY_ROWS, UNIPROT_ROWS = 10_000, 501, 50_000
UNIPROT = "uniprot"  # name of its database, and so of its results


def alphafold_directory(root: Path, programs: Collection[str], *, reduced: bool) -> DatabaseProfile:
    """Return the databases in a directory that AlphaFold's download scripts filled; see `read_database_profile`."""
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
