"""The Python in README and docs runs, their links lead somewhere, and they are short. .ci/run runs their commands."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from helixfold.cli.main import main
from helixfold.weights import demonstration
from tests.data_pipeline.training_sets.training_files import write_training_files

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES}
each_page = pytest.mark.parametrize("page", PAGES, ids=TEXTS)
MAX_WORDS = {"README.md": 1200, "docs/explanation/performance.md": 1500}


def example(words: str) -> str:
    """The Python example that contains these words."""
    blocks = [block for text in TEXTS.values() for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    (found,) = (block for block in blocks if words in block)
    return str(found)


def run(source: str) -> None:
    exec(compile(source, "an example", "exec"), {})


@pytest.mark.integration
def test_the_page_on_python_runs_from_top_to_bottom(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    page = TEXTS["docs/how-to/from-python.md"]
    # These two have the usual number of passes, which take most of the time.
    for first, then in ((", dropout=True", ")"), ('"small"', ", templates=helixfold.example_file")):
        assert page.count(first + then) == 1
        page = page.replace(first + then, f"{first}, num_recycles=0{then}")
    for language, block in re.findall(r"```(bash|python)\n(.*?)```", page, re.DOTALL):
        if language == "bash":
            assert main(shlex.split(block)[1:]) == 0
        else:
            exec(compile(block, "an example", "exec"), names)
    printed = capsys.readouterr().out
    for words in ("<Prediction small_seed_", "evoformer.0.row", "network ", "(76, 76, 32)", "('H', 'L')"):
        assert words in printed


def test_a_task_in_python_takes_at_most_five_lines() -> None:
    tasks, _ = TEXTS["docs/how-to/from-python.md"].split("## What a prediction has")
    lines = {task.splitlines()[0]: task.count("\n", *span(task)) - 1 for task in tasks.split("\n## ")[1:]}
    assert len(lines) == 12
    assert max(lines.values()) <= 5, lines


def span(task: str) -> tuple[int, int]:
    """Where the Python block of a task begins and ends."""
    start = task.index("```python")
    return start, task.index("```", start + 3)


def test_the_training_example_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_training_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["features", "--structures", "structures", "--output", "training_set", "--workers", "1"]) == 0
    run(example("TrainingDataset("))
    assert "(40, 14, 3)" in capsys.readouterr().out


@each_page
def test_links_lead_to_files_that_exist(page: Path) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\((?!http|#)([^)\s]+)\)", page.read_text())]
    assert [link for link in links if not (page.parent / link).exists()] == []


def anchors(page: Path) -> list[tuple[str, str]]:
    """The links of a page to sections, as file (empty: the page itself) and anchor."""
    return re.findall(r"\]\((?!http)([^)#\s]*)#([^)\s]+)\)", page.read_text())


def broken(page: Path) -> list[str]:
    """The anchors that a page links to and that are no heading's."""
    found = []
    for link, anchor in anchors(page):
        headings = re.findall(r"^#+ (.+)$", (page.parent / link if link else page).read_text(), re.MULTILINE)
        if anchor not in {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}:
            found.append(f"{link}#{anchor}")
    return found


def test_links_to_a_section_lead_to_its_heading(tmp_path: Path) -> None:
    assert [f"{page}: {anchor}" for page in PAGES for anchor in broken(page)] == []
    # Pages may have no such link, but the docs have some; and one that leads nowhere is found.
    assert sum(len(anchors(page)) for page in PAGES) > 0
    wrong = tmp_path / "wrong.md"
    wrong.write_text("# One `thing`, and more\n[a](#one-thing-and-more) [b](#two) [c](wrong.md#three) [d](wrong.md)\n")
    assert broken(wrong) == ["#two", "wrong.md#three"]


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = re.findall(r"^- \[[^]]+\]\(([\w/-]+\.md)\)", TEXTS["docs/index.md"], re.MULTILINE)
    assert sorted([*listed, "index.md"]) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in DOCS)


@pytest.mark.parametrize("page", MAX_WORDS)
def test_pages_for_visitors_are_short(page: str) -> None:
    assert len(TEXTS[page].split()) <= MAX_WORDS[page]


def test_the_readme_begins_with_the_example_and_ends_with_the_tests() -> None:
    commands = re.findall(r"^```bash\n(.*?)^```", TEXTS["README.md"], re.DOTALL | re.MULTILINE)
    for first_and_last in (commands[0], commands[-1]):
        assert len(first_and_last.splitlines()) == 1
        assert first_and_last.startswith("python -m pip install -c constraints.txt ")
    assert "&& helixfold predict " in commands[0]
    assert commands[-1].endswith("&& python -m pytest -n auto\n")


def test_no_page_has_a_placeholder_for_the_address_of_the_repository() -> None:
    assert [name for name in TEXTS if "/OWNER/" in TEXTS[name]] == []


def test_ci_runs_the_commands_of_pages_in_subfolders() -> None:
    found = subprocess.run(
        ["bash", "-c", "shopt -s globstar; printf '%s\\n' docs/**/*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert sorted(found.stdout.split()) == [page.relative_to(ROOT).as_posix() for page in DOCS]
    script = (ROOT / ".ci" / "run").read_text()
    assert "\nrun_commands_of README.md\n" in script
    assert re.search(r'shopt -s globstar\n.*\n +for page in docs/\*\*/\*\.md; do\n +run_commands_of "\$page"\n', script)


@each_page
def test_code_blocks_are_in_a_known_language(page: Path) -> None:
    """Blocks marked `bash` are run by .ci/run, those marked `sh` are not."""
    languages = set(re.findall(r"^ *```(\w+)", page.read_text(), re.MULTILINE))
    assert languages <= {"bash", "sh", "python", "json", "toml", "text", "bibtex", "nginx"}


def test_the_page_of_the_demonstration_model_has_its_numbers() -> None:
    facts, text = demonstration.facts(), TEXTS["docs/explanation/demonstration-model.md"]
    template, alignment = facts["template"], facts["alignment"]

    def interval(found: dict[str, float]) -> str:
        return "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**found)

    for first, count, own, beside, gain in (
        ("with a template of 25 to 60 % identity", template, "lddt_ca", "copied", "gain"),
        ("the same targets", template, "lddt_ca", "without", None),
        ("with an alignment", alignment, "lddt_ca", "without", "gain"),
    ):
        (row,) = (line for line in text.splitlines() if line.startswith(f"| {first}"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[1:3] == [str(count["targets"]), interval(count[own])]
        assert cells[3].startswith(interval(count[beside]))
        assert gain is None or cells[4] == interval(count[gain])
    (row,) = (line for line in text.splitlines() if line.startswith("| by the sequence alone"))
    assert f"| {facts['held_out_chains']} | {interval(facts['held_out_lddt_ca'])} |" in row
    assert f"have a correlation of {facts['plddt_pearson']['pearson']:.2f}." in " ".join(text.split())
    assert f"{facts['training_chains']:,} chains " in text
