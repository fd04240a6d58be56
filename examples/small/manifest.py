"""The table of the files in DATA, and links to them."""

import csv
from collections.abc import Iterator
from pathlib import Path


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a tab-separated table as dicts with the names in its first line."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t")


def is_copyleft(licence: str) -> bool:
    """Return whether the licence is the GPL, the LGPL or the AGPL."""
    return "GPL" in licence


def link(source: Path, target: Path) -> None:
    """Make a symbolic link to a file, unless it exists."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink():
        target.symlink_to(source.resolve(strict=True))
