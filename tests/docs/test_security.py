"""Every claim of docs/explanation/security.md names tests, all of which exist."""

import ast
import re

from tests.support.sources import ROOT

_TEST = re.compile(r"`(?P<file>[\w/]+\.py)?::(?P<name>test_\w+)`")


def claims() -> dict[str, list[tuple[str, str]]]:
    """Return the files and names of the tests of each claim."""
    lines = (ROOT / "docs/explanation/security.md").read_text().splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line[:1] == "|"]
    found: dict[str, list[tuple[str, str]]] = {}
    for claim, tests in (row for row in rows if row != ["---", "---"] and row[0].strip() != "claim"):
        found[claim.strip()], file = [], ""
        for word in tests.split(","):
            match = _TEST.fullmatch(word.strip())
            assert match, f"{claim.strip()}: {word.strip()} is not a test"
            file = match["file"] or file
            found[claim.strip()].append((file, match["name"]))
    return found


def test_every_claim_names_tests_that_exist() -> None:
    found = claims()
    assert len(found) > 30
    named = {test for tests in found.values() for test in tests}
    functions = {
        file: {node.name for node in ast.parse((ROOT / file).read_text()).body if hasattr(node, "name")}
        for file, _ in named
    }
    assert [f"{file}::{name}" for file, name in sorted(named) if name not in functions[file]] == []
