"""Planning figures in the README and the docs match the output of the command that they quote."""

import re
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from helixfold.cli.main import main
from tests.support.sources import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
# Commands as pages quote them, and options that a page may add to them.
PLANS = {
    "helixfold plan --hardware a100-80x128": [""],
    "helixfold plan --hardware a100-80x256+512": ["", "--parallel-blocks"],
}
_FIGURE = re.compile(r"(?<![\w.])([\d,]*\d(?:\.\d+)?) (days|s)(?!\w)")


def passages(command: str, pages: dict[Path, str]) -> list[tuple[Path, str]]:
    """The lines of pages, and the cells of their tables, that quote exactly this command in backticks."""
    quoted = re.compile(rf"`{re.escape(command)}`")
    return [
        (page, passage)
        for page, text in pages.items()
        for line in text.splitlines()
        for passage in (line.split("|") if line.startswith("|") else [line])
        if quoted.search(passage)
    ]


def is_rounded(figure: str, value: float) -> bool:
    return figure == f"{value:,.{len(figure.partition('.')[2])}f}"


def wrong(passages: list[str], printed: dict[str, list[float]]) -> list[str]:
    """Figures in the passages that the command does not print, and printed days that are missing there."""
    texts = [re.sub(r"`[^`]*`", "", passage) for passage in passages]
    unlike = [
        f"{figure} {unit}"
        for text in texts
        for figure, unit in _FIGURE.findall(text)
        if not any(is_rounded(figure, value) for value in printed[unit])
    ]
    numbers = [number for text in texts for number in re.findall(r"\d+\.\d+", text)]
    missing = [days for days in printed["days"] if not any(is_rounded(number, days) for number in numbers)]
    return unlike + [f"{days:.2f} days are missing" for days in missing]


@cache
def totals(words: str) -> dict[str, float]:
    """The days of a training and the mean seconds per step, as the command prints them."""
    with redirect_stdout(StringIO()) as output:
        assert main(words.split()[1:]) == 0
    (line,) = (line for line in output.getvalue().splitlines() if line.startswith("in all"))
    *_, seconds, days, unit = line.split()
    assert unit == "days"
    return {"days": float(days), "s": float(seconds)}


@pytest.mark.parametrize(
    "command",
    [
        # Half a minute, and a minute and a half.
        pytest.param(command, marks=pytest.mark.long)
        for command in PLANS
    ],
)
def test_documented_training_days_match_the_command(command: str) -> None:
    found = passages(command, {page: page.read_text() for page in PAGES})
    each = [totals(f"{command} {more}") for more in PLANS[command]]
    printed = {unit: [values[unit] for values in each] for unit in ("days", "s")}
    where = ", ".join(sorted({page.name for page, _ in found}))
    assert wrong([passage for _, passage in found], printed) == [], f"`{command}` in {where or 'no page'}"


def test_a_wrong_or_missing_figure_is_found_wherever_its_command_is_quoted() -> None:
    command = "helixfold plan --hardware a100x128"
    cells = "| 7.548 days | 3.65 days, or 1,003 s: `helixfold plan --hardware a100x128` | 2 s: `helixfold plan` |"
    found = passages(command, {Path("a.md"): f"9 days\n{cells}\n", Path("b.md"): f"Run `{command}`: 3.11 days."})
    printed = {"days": [3.112], "s": [1002.6]}
    assert [page.name for page, _ in found] == ["a.md", "b.md"]
    assert wrong([passage for _, passage in found], printed) == ["3.65 days"]
    assert wrong([found[0][1]], printed) == ["3.65 days", "3.11 days are missing"]
    assert wrong([f"1.64 days with, 1.83 without: `{command}`"], {"days": [1.64, 1.83], "s": []}) == []
