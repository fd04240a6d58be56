"""Options in a file mean what they mean on the command line, and results record them as if given there."""

import json
from pathlib import Path
from typing import Any

import pytest

from helixfold.cli import predict
from helixfold.cli.main import main

TEXT = """
num_recycles = 5
models = ["tiny", "tiny_multimer"]
[predict]
inputs = ["a.fasta", "-b.fasta"]
max-msa-rows = 8
msa_server = true
templates = []
pulldown = ["baits.fasta", "preys.fasta"]
max_template_date = 2020-05-14
dropout = false
memory = "8GiB"
verbose = true
[score]
rescore = true
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The options of predictions, which are not carried out."""
    found: list[Any] = []
    monkeypatch.setattr(predict, "predict_on_devices", found.append)
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(TEXT)
    return found


def test_a_file_gives_the_same_options_as_the_command_line(calls: list[Any]) -> None:
    words = "--num-recycles 5 --models tiny tiny_multimer --max-msa-rows 8 --msa-server --templates --memory 8GiB"
    more = "--pulldown baits.fasta preys.fasta --max-template-date 2020-05-14 -- a.fasta -b.fasta"
    assert main(["predict", *words.split(), *more.split()]) == 0
    assert main(["predict", "--config", "c.toml"]) == 0
    first, second = ({**vars(options), "command": None} for options in calls)
    assert first == second
    # The recorded command needs no file, and gives these options once more.
    command = calls[1].command
    assert "c.toml" not in " ".join(command)
    assert main([*command[1:]]) == 0
    assert {**vars(calls[2]), "command": None} == first


def test_the_command_line_overrides_the_file(calls: list[Any]) -> None:
    assert main(["predict", "x.fasta", "--config=c.toml", "--num-recycles", "1", "--models", "small"]) == 0
    (options,) = calls
    assert (options.inputs, options.num_recycles, options.models) == ((Path("x.fasta"),), 1, ("small",))
    assert options.max_msa_rows == 8
    assert main([*options.command[1:]]) == 0
    assert {**vars(calls[1]), "command": None} == {**vars(options), "command": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_recyles = 3", "c.toml: unknown option 'num_recyles'; did you mean num_recycles?"),
        ("num_recycles = 'x'", "c.toml: num_recycles: must be a whole number from 0 to 1,000, got 'x'"),
        ("num_recycles = [1, 2]", "c.toml: num_recycles: must be one value, got a list of 2"),
        ("dtype = 'float8'", "c.toml: dtype: must be one of auto, float32, bfloat16, float16, got 'float8'"),
        ("models = [['a']]", "c.toml: models: expected a value or a list of values, got"),
        ("[predcit]\nseed = 1", "c.toml: unknown command 'predcit'; did you mean predict?"),
        ("predict = 1", "c.toml: predict: must be a table, written as [predict]"),
        ("config = 'd.toml'", "c.toml: an option file cannot name another one"),
        ("seed = ", "c.toml: not a TOML file of options: Invalid value"),
        ("quiet = true\nverbose = true", "--quiet and --verbose cannot be combined"),
    ],
)
def test_mistakes_are_one_sentence_with_file_and_key(
    text: str, message: str, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("c.toml").write_text(text)
    assert main(["predict", "a.fasta", "--config", "c.toml"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not calls


def test_true_is_an_option_without_values_or_an_error(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.toml").write_text("cyclic = true\n")
    assert main(["predict", "x.fasta", "--config", "c.toml"]) == 0
    assert calls[0].cyclic == ()
    Path("c.toml").write_text("seed = true\n")
    assert main(["predict", "x.fasta", "--config", "c.toml"]) == 2
    assert "c.toml: seed: expected a value, got true" in capsys.readouterr().err


def test_a_missing_file_is_named(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "a.fasta", "--config", "none.toml"]) == 2
    assert "none.toml" in capsys.readouterr().err


@pytest.mark.integration
def test_results_record_the_options_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text('num_recycles = 0\nmodels = "tiny"\nmax_msa_rows = 8\ndevice = "cpu"\n')
    assert main(["predict", "MKTAYIAKQR", "--config", "c.toml", "-o", "out", "--quiet"]) == 0
    (settings,) = Path("out").glob("*/settings.json")
    record = json.loads(settings.read_text())
    (command,) = (each["command"] for each in record["provenance"])
    assert {"--num-recycles=0", "--models=tiny", "--max-msa-rows=8", "--device=cpu"} <= set(command)
    assert "--config" not in command
    assert record["options"]["num_recycles"] == 0
