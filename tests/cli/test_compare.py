"""`helixfold compare` shows in what two results differ that made them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from helixfold.cli.main import main
from helixfold.results.packed import pack_targets
from tests.apps.predict.commands import predict

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one command but for --output."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "one.fasta").write_text(">one\nMKTAYIAKQR\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("helixfold.apps.predict.postprocess.STEPS", ())
        patch.setattr("helixfold.apps.predict.lot.write_alignment", lambda *_: None)
        patch.setattr("helixfold.apps.predict.lot.write_coverage", lambda *_: None)
        for name in ("a", "b"):
            assert predict([str(folder / "one.fasta"), "--output", str(folder / name)], folder / "log") == 0
    return folder


@pytest.fixture
def results(made: Path, tmp_path: Path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        shutil.copytree(made / name / "one", tmp_path / name)
    return tmp_path / "a", tmp_path / "b"


def change(result: Path, change: Any) -> None:
    content = json.loads((result / "settings.json").read_text())
    change(content)
    (result / "settings.json").write_text(json.dumps(content))


def test_results_of_one_command_are_the_same_wherever_they_are(
    results: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *map(str, results)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("the same: sequence, alignments, ")
    assert {"torch", "command", "seed", "dtype", "features"} < set(line[10:].split(", "))
    assert line.endswith(" operators")
    assert main(["compare", str(results[0] / "settings.json"), str(results[1])]) == 0


def test_each_difference_has_both_values(results: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    def another(content: Any) -> None:
        content["inputs"]["alignments"] = [{"file": "x.a3m", "sha256": "ab" * 32}]
        content["options"]["num_recycles"] = 3
        content["predictions"]["tiny"]["weights"] = "cd" * 32
        (entry,) = content["provenance"]
        entry["software"]["torch"] = "1.0"
        entry["device"] = {"kind": "cuda", "name": "A card", "capability": "9.0"}
        entry["backends"]["linear"] = ["triton"]
        del entry["backends"]["add_change"]
        entry["command"] += ["--seed", "3"]

    change(results[1], another)
    assert main(["compare", *map(str, results)]) == 1
    lines = capsys.readouterr().out.splitlines()
    table = {
        lines[row].split("  first")[0].strip(): (lines[row], lines[row + 1]) for row in range(0, len(lines) - 1, 2)
    }
    assert list(table) == [
        *("alignments", "num recycles", "weights", "torch", "device", "command"),
        *("operator add_change", "operator linear"),
    ]
    for name, (first, second) in {
        "alignments": ("none", "abababababab"),
        "num recycles": ("0", "3"),
        "device": (None, "A card (cuda, 9.0)"),
        "operator add_change": ("reference", "none"),
        "operator linear": (None, "triton"),
        "command": ("none", "--seed 3"),
    }.items():
        assert first is None or table[name][0].endswith(f"  first   {first}")
        assert table[name][1].endswith(f"  second  {second}")
    assert "torch" not in lines[-1]
    assert main(["compare", "--json", *map(str, results)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert list(found["differences"]) == list(table)
    assert found["differences"]["alignments"] == ["none", "ab" * 32]
    assert found["same"]["dtype"] == "float32"


def test_predictions_are_compared_by_name(results: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    def another_seed(content: Any) -> None:
        content["predictions"]["tiny_seed_1"] = {**content["predictions"]["tiny"], "seed": 1}

    change(results[1], another_seed)
    assert main(["compare", "--json", *map(str, results)]) == 1
    assert json.loads(capsys.readouterr().out)["differences"] == {"predictions": ["tiny", "tiny, tiny_seed_1"]}
    change(results[0], another_seed)  # of which neither has a record
    change(results[1], lambda content: content["provenance"][0].update(predictions=["tiny", "tiny_seed_1"]))
    assert main(["compare", "--json", *map(str, results)]) == 1
    differences = json.loads(capsys.readouterr().out)["differences"]
    assert differences["executor"] == ["tiny whole, tiny_seed_1 not recorded", "whole"]


def test_what_earlier_versions_did_not_record_is_no_sameness(
    results: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def earlier(content: Any) -> None:
        del content["provenance"]
        content["helixfold"] = "0.1.0"

    change(results[0], earlier)
    assert main(["compare", "--json", *map(str, results)]) == 1
    differences = json.loads(capsys.readouterr().out)["differences"]
    assert differences["helixfold"][0] == "0.1.0"
    assert differences["torch"][0] == differences["command"][0] == "not recorded"
    change(results[1], earlier)
    assert main(["compare", *map(str, results)]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first == "programs, device and command: recorded in neither"
    assert "helixfold" in last


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (None, "not a result; pass the directory of a target"),
        ("", "not a complete JSON file"),
        ("[]", "expected an object"),
        ("{}", "has no predictions"),
        ('{"predictions": {"tiny": 7}}', "predictions.tiny: expected an object"),
        ('{"predictions": {"tiny": {}}, "options": []}', "options: expected an object"),
    ],
)
def test_what_is_no_result_is_one_sentence(
    damage: str | None, said: str, results: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = results[1] / "settings.json"
    path.unlink()
    if damage is not None:
        path.write_text(damage)
    assert main(["compare", *map(str, results)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(results[1]) in line
    assert said in line


def test_a_directory_of_one_result_stands_for_it_and_one_of_more_names_one(
    results: tuple[Path, Path], made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(made / "a"), str(made / "b" / "one")]) == 0
    both = results[0].parent
    assert main(["compare", str(made / "a"), str(both)]) == 2
    assert f"{both}: has 2 results; pass one of them, such as {both / 'a'}" in capsys.readouterr().err


def test_structures_are_rejected_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one.pdb", "other.cif"):
        (tmp_path / name).write_text("ATOM\n")
    assert main(["compare", str(tmp_path / "one.pdb"), str(tmp_path / "other.cif")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'one.pdb'}: not a result; pass the directory of a target" in line
    assert "to compare structures, use `helixfold evaluate`" in line
    assert "--overwrite" not in line


def test_packed_results_are_compared_as_others(
    results: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    change(results[1], lambda content: content["options"].update(num_recycles=3))
    assert main(["compare", *map(str, results)]) == 1
    expected = capsys.readouterr().out
    for result in results:
        (result / "ranking_debug.json").write_text("{}")
    assert pack_targets(tmp_path, ["a", "b"], lambda _: {}) == {}
    assert main(["compare", *map(str, results)]) == 1
    assert capsys.readouterr().out == expected
    assert main(["compare", str(results[0]), str(tmp_path / "c")]) == 2
