"""Find predicted structures in results of helixfold, AlphaFold or ColabFold, or in a directory of structure files."""

from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.templates.structure_directory import STRUCTURE_SUFFIXES
from helixfold.analysis.matching import StructureFile, structure_files
from helixfold.results.file_table import COLABFOLD_RELAXED, COLABFOLD_UNRELAXED, RANKED


def find_predictions(path: Path, *, all_ranks: bool = False) -> list[StructureFile]:
    """Return the best predicted structure of each target, or all with `all_ranks`, sorted by name and rank.

    `path` is an output directory of targets, one target's directory, a directory of structure files, or one file. Ranks
    count from 0. Of ColabFold's structures of the same rank, the relaxed one is returned. Raise `InputError` if there
    are no predictions.
    """
    if not path.is_dir():
        return structure_files(path)
    targets = sorted(inside for inside in path.iterdir() if inside.is_dir())
    files = (
        _ranked(path, all_ranks=all_ranks)
        or [each for target in targets for each in _ranked(target, all_ranks=all_ranks)]
        or _plain(path, all_ranks=all_ranks)
    )
    if not files:
        raise InputError.at(
            path,
            "it has no predictions: neither <target>/ranked_0.pdb nor files that end in "
            f"{', '.join(STRUCTURE_SUFFIXES)}",
        )
    return sorted(files, key=lambda each: (each.name, each.rank))


def _ranked(directory: Path, *, all_ranks: bool) -> list[StructureFile]:
    """Return the ranked structures in a target's directory, as mmCIF if there is such a file."""
    paths: dict[int, Path] = {}
    for path, fields in RANKED.files(directory):
        if all_ranks or int(fields["rank"]) == 0:
            paths.setdefault(int(fields["rank"]), path)
    return [StructureFile(name=directory.resolve().name, path=path, rank=rank) for rank, path in paths.items()]


def _plain(directory: Path, *, all_ranks: bool) -> list[StructureFile]:
    paths: dict[tuple[str, int], Path] = {}
    for each in structure_files(directory):
        name = each.path.name
        fields = COLABFOLD_RELAXED.match(name) or COLABFOLD_UNRELAXED.match(name)
        if fields is None:
            paths.setdefault((each.name, 0), each.path)
        elif all_ranks or int(fields["rank"]) == 1:
            # Relaxed structures are preferred; they come first in the order of names.
            paths.setdefault((fields["target"], int(fields["rank"]) - 1), each.path)
    return [StructureFile(name=name, path=path, rank=rank) for (name, rank), path in paths.items()]
