"""What a stranger's name may do to the pages about it: nothing."""

import csv
import json
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from data_pipeline.parse.fasta import directory_name
from helixfold.cli.main import main
from tests.data_pipeline.parse.seeds import PDB

# As far as a record's name may go: no blank, no slash.
NAMES = (
    '"><script>alert(1)<!--',
    "'onmouseover=alert(1)'",
    "&lt;b&gt;<b>",
    "javascript:alert(1)",
    "=cmd|'calc'!A0",
    "a%00#?b",
)


class Tags(HTMLParser):
    """All elements of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    records = "".join(f">{name}\nGAMGAMGAMG{'ACDEFG'[number]}\n" for number, name in enumerate(NAMES))
    (folder / "x.fasta").write_text(f">plain\nGAMGAMGAMGH\n{records}")
    (folder / '"><img src=x onerror=alert(1)>.pdb').write_bytes(PDB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("helixfold.weights.find.parameters_directory", lambda: folder / "no_parameters")
        patch.setattr("helixfold.apps.predict.postprocess.write_plots", lambda *_: None)  # names are not drawn
        words = ["predict", str(folder / "x.fasta"), "--templates", str(folder / '"><img src=x onerror=alert(1)>.pdb')]
        assert main([*words, "--output", str(folder / "out"), "--num-recycles", "0"]) == 0
    return folder / "out"


def tags(path: Path) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(path.read_text())
    return parser.seen


def test_a_name_adds_no_element_and_no_handler_to_a_page(output: Path) -> None:
    plain = [tag for tag, _ in tags(output / "plain/report.html")]
    for name in NAMES:
        found = tags(output / directory_name(name) / "report.html")
        assert [tag for tag, _ in found] == plain, name
    for path in output.rglob("*.html"):
        for _, attributes in tags(path):
            assert not [key for key in attributes if key.startswith("on")], path
            assert "javascript:" not in (attributes.get("href") or "").lower()[:11], path
        assert "<script>alert(1)" not in path.read_text(), path
        assert "<img src=x" not in path.read_text(), path


def test_links_of_the_index_lead_to_the_targets_and_nowhere_else(output: Path) -> None:
    links = [attributes.get("href") or "" for tag, attributes in tags(output / "index.html") if tag == "a"]
    assert len(links) >= len(NAMES)
    for link in links:
        assert not link.startswith(("/", "//", "javascript:", "data:", "http")), link
        assert ".." not in link
        assert link.startswith("#") or (output / unquote(link.partition("#")[0])).exists(), link


def test_tables_and_json_stay_what_they_are(output: Path) -> None:
    for path in output.rglob("*.json"):
        json.loads(path.read_text())
    for path in output.rglob("*.tsv"):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        assert len({len(row) for row in csv.reader(lines, delimiter="\t")}) <= 1, path
