"""Every message that the troubleshooting page quotes is one that the program can say."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.sources import ROOT, files, nodes

PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
# So much of a message must stand in the code as it stands on the page; less could be chance.
_LEAST_FIXED = 15
_BEGINNING = re.compile("^helixfold: (error: )?")


def quoted() -> list[str]:
    blocks: list[str] = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def texts(path: Path) -> Iterator[list[str | None]]:
    """Yield the texts in a module, in pieces; None stands for a value."""
    inside = {piece for node in nodes(path) if isinstance(node, ast.JoinedStr) for piece in node.values}
    for node in nodes(path):
        if isinstance(node, ast.JoinedStr):
            yield [str(piece.value) if isinstance(piece, ast.Constant) else None for piece in node.values]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield [node.value]


def problem(pieces: list[str | None]) -> list[str | None]:
    """Return the pieces of a text before its first semicolon, after which messages have advice."""
    for index, piece in enumerate(pieces):
        if piece is not None and ";" in piece:
            return [*pieces[:index], piece.partition(";")[0]]
    return pieces


@cache
def patterns(*, without_advice: bool = False) -> list[tuple[str, str]]:
    """Return patterns of the texts in the code, after their longest pieces; a value may be anything."""
    sources = files("helixfold", "data_pipeline")
    every = (problem(pieces) if without_advice else pieces for path in sources for pieces in texts(path))
    found = (pieces for pieces in every if is_long(pieces))
    return sorted({(max((piece or "" for piece in pieces), key=len), pattern(pieces)) for pieces in found})


def is_long(pieces: list[str | None]) -> bool:
    fixed = "".join(piece for piece in pieces if piece is not None)
    return len(_BEGINNING.sub("", fixed).strip()) >= _LEAST_FIXED


def pattern(pieces: list[str | None]) -> str:
    """Of a text that begins with a value and goes on with `; advice`, where the advice begins is the group `advice`.

    A value at the end, after `; `, is the group `remedy`.
    """
    written = "".join(".+?" if piece is None else re.escape(piece) for piece in pieces)
    written = re.sub(r";\\ \.\+\?$", r";\\ (?P<remedy>.+)", written)
    return re.sub(r"^(\.\+\?)+;", "(?P<advice>;)", written) if written.startswith(".+?") else written


def is_said(message: str) -> bool:
    """Whether the code has it: of `{problem}; advice`, the problem as well, and of `problem; ...` only the problem."""
    if message.endswith("; ..."):
        return any(re.search(each, message) for piece, each in patterns(without_advice=True) if piece in message)
    for match in filter(None, (re.search(each, message) for piece, each in patterns() if piece in message)):
        groups = match.groupdict()
        if "remedy" in groups and not is_said(groups["remedy"]):
            continue
        if "advice" not in groups or is_said(message[: match.start("advice")]):
            return True
    return False


def test_the_program_says_what_is_quoted() -> None:
    messages = quoted()
    assert len(messages) > 25
    assert not [message for message in messages if not is_said(message)]


@pytest.mark.parametrize(
    "message",
    [
        "helixfold: error: runs/first: begun before with other settings (...); repeat them, or give another --output",
        "helixfold: error: raw.fasta, line 1: a sequence before the first header; is this FASTA?",
        "helixfold: error: the name 'ubiquitin' comes three times; give each target its own",
        "helixfold: error: gene.fasta, record 'gene': these are bases, not residues; ...",
    ],
)
def test_what_it_does_not_say_is_found_out(message: str) -> None:
    assert not is_said(message)
