"""Help pages fit the screen, describe every option, and show defaults in one way."""

import re
import shlex

import pytest

from helixfold.cli.app import COMMANDS, GROUPS, application
from helixfold.cli.benchmark import BENCHMARKS
from helixfold.cli.main import main

PAGES = [
    [],
    *([command] for command in COMMANDS),
    *(["weights", action] for action in ("download", "inspect", "convert")),
    *(["databases", action] for action in ("download", "build", "check")),
    *(["benchmark", part] for part in BENCHMARKS),
    *(["serve", *words] for words in (["worker"], *(["token", action] for action in ("create", "list", "revoke")))),
]


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_a_page_fits_the_screen_and_describes_everything(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns in (120, 80):  # a narrower screen than the one before
        monkeypatch.setenv("COLUMNS", str(columns))
        text = help_of(words, capsys)
        lines = text.splitlines()
        assert lines[0].startswith(" ".join(["usage: helixfold", *words]))
        assert max(map(len, lines)) < columns
    assert text.isascii()
    assert "\n\n\n" not in text
    entries = re.findall(r"^  (-[^\n]*|[a-z]\w*  [^\n]*)((?:\n {20,}[^\n]*)*)", text, re.MULTILINE)
    for first, more in entries:
        words_of_entry = f"{first}{more}".split()
        assert len(words_of_entry) > 3 or words_of_entry[0] in COMMANDS, first


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_defaults_and_choices_are_plain_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    page = " ".join(help_of(words, capsys).split())
    defaults = re.findall(r"\(default: (.*?)\)(?= |$)", page)
    assert page.count("(default") == len(defaults)
    for default in [*defaults, *re.findall(r"\{(.*?)\}", page)]:
        assert re.fullmatch(r"[\w.,;:/%<>\-' `()]+", default), default
        # No None, no class, no member of an enumeration: words with a capital are names of programs or of devices.
        capitals = set(re.findall(r"\b[A-Z]\w*", default.replace("`helixfold weights download`", "")))
        assert capitals <= {"PyTorch", "DeepMind", "AlphaFold", "ColabFold", "OpenMM", "GPU", "CPU"}, default
        assert not re.search(r"\d\.0\b|'(?!s\b)|\w\(", default), default


def test_the_first_page_lists_the_commands_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of([], capsys)
    lines = [f"\n{title}:" if not name else f"\n  {name} " for title in GROUPS for name in ("", *GROUPS[title])]
    places = [text.index(line) for line in lines]
    assert places == sorted(places)
    assert list(GROUPS) == ["Predict", "Analyse", "Design", "Train", "Serve", "Maintain"]


def test_defaults_are_shown_and_required_words_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    page = " ".join(help_of(["evaluate"], capsys).split())
    assert "(default: evaluation)" in page
    page = page[page.index("Most used options:") :]
    assert page.index("PREDICTIONS") < page.index("REFERENCES") < page.index("--output") < page.index("--benchmark")
    page = " ".join(help_of(["relax"], capsys).split())
    page = page[page.index("Arguments:") :]
    assert page.index("STRUCTURE") < page.index("(required)") < page.index("--output")
    page = " ".join(help_of(["plan"], capsys).split())
    assert "(default: a100x128)" in page
    page = " ".join(help_of(["predict"], capsys).split())
    for default in ("predictions", "0", "never", "auto", "as in the model's training"):
        assert f"(default: {default})" in page
    assert "None" not in page
    assert page.index("--memory SIZE") < page.index("more examples: helixfold predict --example")


@pytest.mark.parametrize("words", [[], *([command] for command in COMMANDS)], ids=" ".join)
def test_the_first_screen_has_an_example_that_can_be_parsed(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(words, capsys).replace("\\\n", "")
    first_screen = text.splitlines()[:24]
    assert any(line.startswith(" ".join(["example: helixfold", *words])) for line in first_screen)
    for example in re.findall(r"^(?:example:|\ ) helixfold (.*)", text, re.MULTILINE):
        arguments = shlex.split(example.partition(" >")[0])
        application(arguments).parse_args(arguments, exit_on_error=False, print_error=False)


def test_the_most_used_options_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    for command, names in (
        ("predict", ("FILE", "--output", "--msa", "--templates", "--msa-server", "--models", "--num-recycles")),
        ("scan", ("FILE", "--positions", "--to", "--output")),
        ("score", ("STRUCTURE", "--reference", "--output", "--model")),
        ("serve", ("--data", "--host", "--port", "--workers", "--weights", "--databases")),
    ):
        page = help_of([command], capsys)
        most_used, _, others = page.partition("Most used options:")[2].partition("\n\n")
        entries = re.findall(r"^  (?:-o, )?(\S+)", most_used, re.MULTILINE)
        assert [name for name in entries if name in names] == list(names)
        assert not set(names) & set(re.findall(r"^  (?:-o, )?(\S+)", others, re.MULTILINE))


@pytest.mark.parametrize("command", ["weights", "databases", "design", "benchmark", "serve"])
def test_subcommands_are_not_listed_as_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = help_of([command], capsys)
    _, *options = page.split("\nOptions:\n")
    assert not any(re.match(r"  [a-z]", text) for text in options)
    assert re.search(r"^(Actions|Protocols|Benchmarks):\n  [a-z]", page, re.MULTILINE)


def test_earlier_spellings_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    page = help_of(["train"], capsys)
    assert "  --timeout SECONDS" in page
    assert "--patience" not in page
