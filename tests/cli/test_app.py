"""What is wrong with a command line is one sentence; what is right is read in all the usual spellings."""

from pathlib import Path
from typing import Any

import pytest

from helixfold.apps.options import PredictOptions
from helixfold.cli.app import COMMANDS, PLACES, application
from helixfold.cli.main import main


def predict(*words: str) -> tuple[tuple[Path, ...], PredictOptions]:
    """The files and options that `helixfold predict` reads."""
    _, bound, _ = application(["predict"]).parse_args(["predict", *words])
    return bound.arguments.get("inputs", ()), bound.arguments.get("options", PredictOptions())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "name a COMMAND: predict, features, relax,"),
        ("fold a.fasta", "unknown command 'fold'; choose one of predict, features,"),
        (
            "layouts --ranks 4 --machine a100",
            "unknown command 'layouts'; use helixfold plan --layouts, with --hardware h100x128 for",
        ),
        ("layouts", "unknown command 'layouts'; use helixfold plan --layouts"),
        (
            "benchmark data --json x",
            "unknown command 'data'; use helixfold benchmark loader (see helixfold benchmark",
        ),
        ("--fold", "unknown command '--fold'"),
        ("weights", "name a COMMAND: download, inspect, convert, merge, verify (see helixfold weights --help)"),
        (
            "weights fetch",
            "unknown command 'fetch'; choose one of download, inspect, convert, merge, verify (see helixfold",
        ),
        ("predict a.fasta --num-recyles 3", "unknown option --num-recyles; did you mean --num-recycles? (see"),
        ("predict a.fasta --wieghts=w", "unknown option --wieghts; did you mean --weights? (see"),
        ("predict a.fasta --num-rec 3", "unknown option --num-rec; did you mean"),
        ("features a.fasta --max-plddt 3", "unknown option --max-plddt; did you mean --min-plddt?"),
        ("predict a.fasta -x", "unknown option -x (see helixfold predict --help)"),
        ("predict a.fasta --inputs b.fasta", "unknown option --inputs"),
        ("predict a.fasta --no-overwrite", "unknown option --no-overwrite; did you mean --overwrite?"),
        ("predict a.fasta --seed x", "--seed: must be a whole number, got 'x' (see helixfold predict --help)"),
        ("predict a.fasta --seed 2.7", "--seed: must be a whole number, got '2.7'"),
        (
            "predict a.fasta --preset casp",
            "--preset: must be one of monomer, monomer_ptm, monomer_casp14, multimer, quick,",
        ),
        ("predict a.fasta --msa-mode x", "--msa-mode: must be one of auto, files, databases, server,"),
        ("predict a.fasta --overwrite=maybe", "--overwrite: must be one of true, false, got 'maybe'"),
        ("predict a.fasta --models", "--models needs a value (see"),
        ("predict a.fasta --num-recycles", "--num-recycles needs a value"),
        ("predict a.fasta --memory 8", "--memory: must be a size with its unit, such as 8GiB or 6000MB, got '8'"),
        ("predict a.fasta --templates", "--templates alone takes templates from an MMseqs2 server: pass"),
        ("plan --samples 2 many", "--samples: must be a whole number of at least 1, got 'many'"),
        ("train store --set steps=1 batch_size=2", "unexpected argument 'batch_size=2'"),
        ("report", "DIRECTORY is required (see helixfold report --help)"),
        ("relax", "STRUCTURE is required (see helixfold relax --help)"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    words: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"helixfold: error: {message}"), said
    assert said.count("\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("predit a.fasta", "predict"),
        ("weights downlod", "download"),
        ("predict a.fasta --output-format colabfld", "colabfold"),
        ("predict a.fasta --preset monomr", "monomer"),
        ("predict a.fasta --model_preset=monomer_pmt", "monomer_ptm"),
        ("predict a.fasta --model-type alphafold2_pmt", "alphafold2_ptm"),
    ],
)
def test_the_choice_that_may_be_meant_comes_last(
    words: str, nearest: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert f"; did you mean {nearest}?" in said
    assert said.count("\n") == 1


def test_several_errors_are_lines_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.fasta").write_text(">a\x07\nMK1\n" * 30)
    assert main(["features", "x.fasta", "gone\n.fasta"]) == 2
    lines = capsys.readouterr().err.split("\n")
    assert len(lines) == 22
    assert lines[0].startswith(r"helixfold: error: x.fasta, line 1, record 'a\x07': the name contains control")
    assert lines[-2:] == ["helixfold: error: ... and 11 more", ""]
    assert all(line.isprintable() for line in lines)


def test_control_characters_are_shown_and_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["predict", "--seed", "\x1b]0;b\x07"],
        ["predict", "--\x1b[2J"],
        ["\x1b[2J"],
        ["report", "a", "\x07"],
    ):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.rstrip("\n").isprintable()


def test_files_may_stand_between_options() -> None:
    files, options = predict("a.fasta", "--seed", "3", "b.fasta", "--overwrite", "-o", "out", "c.fasta")
    assert files == (Path("a.fasta"), Path("b.fasta"), Path("c.fasta"))
    assert (options.seed, options.overwrite, options.output) == (3, True, Path("out"))


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("--models a b --seed 1", {"models": ("a", "b"), "seed": 1}),
        ("--models a --models b", {"models": ("a", "b")}),
        ("--seed 1 --seed=2", {"seed": 2}),
        ("--seed -1", {"seed": -1}),
        ("--weights none", {"weights": Path("none")}),
        ("--models-to-relax none", {"models_to_relax": "none"}),
        ("--recycle-tolerance nan", {"dtype": "auto"}),
        ("-oout", {"output": Path("out")}),
        ("--output=a=b", {"output": Path("a=b")}),
        ("--overwrite=false", {"overwrite": False}),
        ("--features [1] {2}", {"features": (Path("[1]"), Path("{2}"))}),
        ("--msa-server", {"msa_server": True}),
        ("--msa-server --threads 2", {"msa_server": True, "threads": 2}),
        ("--msa-server http://here", {"msa_server": "http://here"}),
        ("--memory 8GiB", {"memory": 2**33}),
    ],
)
def test_options_are_read_in_the_usual_spellings(words: str, values: dict[str, Any]) -> None:
    _, options = predict("a.fasta", *words.split())
    assert {name: getattr(options, name) for name in values} == values


@pytest.mark.parametrize("option", ["--model", "--models"])
def test_the_model_has_the_same_option_in_predict_scan_and_score(option: str) -> None:
    assert predict("a.fasta", option, "tiny")[1].models == ("tiny",)
    for command in ("scan", "score"):
        _, bound, _ = application([command]).parse_args([command, "a.fasta", option, "tiny"])
        assert bound.arguments["options"].model == "tiny"


def test_words_after_two_hyphens_are_files() -> None:
    assert predict("--seed", "1", "--", "-a", "--b")[0] == (Path("-a"), Path("--b"))


def test_settings_are_collected() -> None:
    words = ["train", "store", "--set", "steps=1", "--output", "run", "--set", "batch_size=2"]
    _, bound, _ = application(words).parse_args(words)
    assert bound.arguments["options"].settings == ("steps=1", "batch_size=2")
    assert bound.arguments["training_set"] == Path("store")


def test_every_command_has_a_module() -> None:
    folder = Path(__file__).parents[2] / "helixfold" / "cli"
    others = {"__init__", "main", "app", "command", "help"}
    assert {path.stem for path in folder.glob("*.py")} == {*others, *COMMANDS} - PLACES.keys()
