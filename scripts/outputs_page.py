"""Write the tables of files in docs/reference/outputs.md from the file table: `python scripts/outputs_page.py`."""

import re
from pathlib import Path

from helixfold.results.file_table import FILES, FileKind

PAGE = Path(__file__).parents[1] / "docs/reference/outputs.md"
_TABLE = re.compile(r"(?<=<!-- files: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
_FIELD = re.compile(r"\{(\w+)(?::\w+)?\}")
_FIRST_WORDS = re.compile(r"^[^:;,]+")
_OPTION = re.compile(r"--[a-z][a-z-]*")


def renewed(text: str) -> str:
    """Return the text of the page with its tables updated from the file table."""
    return _TABLE.sub(lambda match: f"{match[1]}{match[2]}{_table(match[1])}", text)


def _table(name: str) -> str:
    kinds = [kind for kind in FILES if ("colabfold" if kind.writer.endswith(".colabfold") else kind.place) == name]
    rows = [["file", "what it is", "`--slim` keeps it", "since"], ["---"] * 4]
    rows += [[_names(kind), _purpose(kind), "yes" if kind.is_slim else "no", kind.since] for kind in kinds]
    if name != "target":
        rows = [[*row[:2], row[3]] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _names(kind: FileKind) -> str:
    name = _FIELD.sub(r"<\1>", kind.pattern)
    return ", ".join(f"`{text}`" for text in (name + kind.suffixes[0], *kind.suffixes[1:]))


def _purpose(kind: FileKind) -> str:
    """Return the purpose of a file, with the words before the first mark as a link to a section."""
    purpose = _OPTION.sub(r"`\g<0>`", kind.purpose)
    return _FIRST_WORDS.sub(rf"[\g<0>]({kind.link})", purpose) if kind.link else purpose


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
