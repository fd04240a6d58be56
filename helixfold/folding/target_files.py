"""Find the file of each target of a batch, such as the structure that its recycling starts from."""

from pathlib import Path

from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.fasta import file_names

# Suffixes of the files that `file_of_target` looks for.
STRUCTURE_SUFFIXES = (".cif", ".mmcif", ".pdb", ".cif.gz", ".pdb.gz")
RESTRAINT_SUFFIXES = (".csv", ".tsv", ".txt")


def file_of_target(path: Path, target: str, suffixes: tuple[str, ...], *, only: bool) -> Path:
    """Return the file of the target with the name `target`: `path` itself, or a file in the directory `path`.

    A `path` that is a file must be for the `only` target. In a directory, the file has the target's name and one of the
    `suffixes`. Raise `InputError` if no such file exists, or if one file is passed for several targets.
    """
    example = f"{printable(target)}{suffixes[0]}"
    if path.is_file():
        if only:
            return path
        raise InputError.at(path, f"is one file for several targets; pass a directory with {example} and so on")
    if not path.is_dir():
        raise InputError.at(path, "no such file or directory")
    files = (path / f"{name}{suffix}" for name in file_names(target) for suffix in suffixes)
    target_file = next((file for file in files if file.is_file()), None)
    if target_file is None:
        raise InputError.at(path, f"has no file of this target, such as {example}", record=target)
    return target_file
