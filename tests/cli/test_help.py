"""Help pages fit the screen, describe every option, and show defaults in one way."""

import re

import pytest

from helixfold.cli.app import COMMANDS
from helixfold.cli.benchmark import BENCHMARKS
from helixfold.cli.main import main

PAGES = [
    [],
    *([command] for command in COMMANDS),
    *(["weights", action] for action in ("download", "inspect", "convert")),
    *(["databases", action] for action in ("download", "build", "check")),
    *(["benchmark", part] for part in (*BENCHMARKS, "all")),
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


def test_the_first_page_names_the_commands_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of([], capsys)
    places = [text.index(f"\n  {command} ") for command in COMMANDS]
    assert places == sorted(places)


def test_defaults_are_shown_and_required_words_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    page = " ".join(help_of(["evaluate"], capsys).split())
    assert "(default: evaluation)" in page
    page = page[page.index("Arguments:") :]
    assert page.index("PREDICTIONS") < page.index("REFERENCES") < page.index("--output") < page.index("--benchmark")
    page = " ".join(help_of(["relax"], capsys).split())
    page = page[page.index("Arguments:") :]
    assert page.index("STRUCTURE") < page.index("(required)") < page.index("--output")
    page = " ".join(help_of(["plan"], capsys).split())
    assert "(default: a100x128)" in page
    page = " ".join(help_of(["predict"], capsys).split())
    for default in ("predictions", "0", "never", "auto", "as many as the model was trained with"):
        assert f"(default: {default})" in page
    assert "None" not in page
    assert page.index("--memory SIZE") < page.index("examples: helixfold predict --example")


def test_hidden_options_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--patience" not in help_of(["train"], capsys)
