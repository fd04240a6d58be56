"""The page on the architecture: its rooms are those of the code, and its classes are where it says."""

import ast
import re

from tests.support.sources import ROOT, nodes
from tests.test_layout import ROOMS

PAGE = (ROOT / "docs/explanation/architecture.md").read_text()


def section(title: str) -> list[list[str]]:
    """The cells of the table in a section, without its head."""
    text = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_the_rooms_are_those_of_the_code_from_the_ground_up() -> None:
    rooms = [name for row in section("Rooms") for name in re.findall(r"`([\w/]+)`", row[0])]
    of_data_pipeline = {path.parent.name for path in (ROOT / "data_pipeline").glob("*/__init__.py")}
    assert {room.removeprefix("data_pipeline/") for room in rooms if room.startswith("data_")} == of_data_pipeline
    assert [room.replace("/", ".") for room in rooms if room.startswith("helixfold")] == list(ROOMS[1:])


def test_each_algorithm_is_where_the_table_says() -> None:
    rows = section("From the supplement to the code")
    numbers = {int(number) for row in rows for number in re.findall(r"\b\d+\b", row[0])}
    assert numbers == {*range(1, 33)}
    missing = []
    for _, names, files in rows:
        defined = set()
        for file in re.findall(r"`([\w/]+\.py)`", files):
            path = ROOT / ("" if file.startswith(("helixfold", "data_pipeline")) else "helixfold/model") / file
            for node in nodes(path):
                if isinstance(node, ast.ClassDef):
                    defined |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    defined.add(node.name)
        missing += [
            name for name in re.findall(r"`([A-Za-z]\w*(?:\.\w+)?)`", names) if name not in {*defined, "global_columns"}
        ]
    assert not missing
