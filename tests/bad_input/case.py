"""One bad input: what lies in the folder, the command that meets it, and what must be said."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

# A file's content, or what makes it: a pipe, a link, a directory.
Content = bytes | Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """`says`: parts of the one sentence, such as file, line, record, what is wrong and what to do."""

    command: str
    files: Mapping[str, Content]
    says: tuple[str, ...]


def bad(command: str, files: Mapping[str, Content], *says: str) -> Case:
    return Case(command=command, files=files, says=says)


def lay_out(folder: Path, files: Mapping[str, Content]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)
