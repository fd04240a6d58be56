"""The small model's card: every chain by name and once, commands that start the same runs, and no number by hand."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from data_pipeline.errors import InputError
from helixfold.training.config import TrainingConfig
from helixfold.training.log import TrainingLog
from helixfold.training.presets import training_preset
from helixfold.training.run_files import CONFIG_FILE
from tests.examples.small.scripts import small_script
from tests.examples.small.test_assess import rows
from tests.training.test_log import record

card, chains, stages, summary = map(small_script, ("card", "chains", "stages", "summary"))


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two runs, the second from what the first left."""
    directories = []
    for number, changes in enumerate((("model.template=null", "steps=3"), ("optimizer.learning_rate=1e-4",))):
        directory = tmp_path / f"run{number}"
        log = TrainingLog(directory, first_step=0, last_step=3, progress=False)
        for step in range(3):
            log.step(replace(record(step), losses={"weighted": 5.0 - step, "total": 50.0}))
        log.evaluation(2, {"lddt_ca": 0.2 + number / 10, "tm_score": 0.1}, [])
        log.close()
        about = {
            "name": "tiny",
            "training_set": "/somewhere/training_set",
            "weights": str(tmp_path / "run0" / "weights" / "last.safetensors") if number else None,
            "ranks": 2 - number,
            "versions": {"helixfold": "0.1.0", "torch": "2.13.0"},
            "config": training_preset("tiny").with_settings(changes).to_dict(),
        }
        (directory / CONFIG_FILE).write_text(json.dumps(about))
        directories.append(directory)
    return directories


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    path = tmp_path / "sources.tsv"
    lines = [
        ("alignment", "x", "one/two", "MIT"),
        ("alignment", "x;y", "one/two", "MIT"),
        ("alignment", "z", "three/four", "GPL-3.0"),
        ("structure", "1abc_A;1abc_B", "five/six", "LGPL"),
        ("structure", "T1031-D1", "five/six", "LGPL"),
        ("structure", "0099_A", "one/two", "MIT"),
    ]
    path.write_text("kind\tchains\trepository\tlicence\n" + "".join("\t".join(line) + "\n" for line in lines))
    return path


def assessed(**changes: object) -> dict[str, object]:
    model = {"name": "small", "digest": "0" * 64, "parameters": 4_000_000, "num_recycles": 3, "seed": 0}
    return {"model": model, "failures": {}, **summary.summarised(rows()), **changes}


def write(
    tmp_path: Path, store: Path, runs: list[Path], sources: Path, **changes: object
) -> tuple[str, dict[str, object]]:
    (tmp_path / "summary.json").write_text(json.dumps(assessed(**changes)))
    card.write(
        tmp_path / "summary.json",
        chains.Chains.open(store / "store", store / "held_out.txt"),
        stages.read_stages(runs),
        sources,
        packaged=tmp_path / "packaged",
        image=tmp_path / "images" / "curves.png",
    )
    packaged = tmp_path / "packaged"
    return (packaged / "small.md").read_text(), json.loads((packaged / "small.json").read_text())


def test_the_card_names_each_chain_once_and_tells_no_directory(
    tmp_path: Path, store: Path, runs: list[Path], sources: Path
) -> None:
    text, _ = write(tmp_path, store, runs, sources)
    for entry in chains.Chains.open(store / "store", store / "held_out.txt").store.entries:
        assert len(re.findall(rf"(?<!\S){re.escape(entry.name)}(?!\S)", text)) == 1, entry.name
    assert str(tmp_path) not in text
    assert "/somewhere" not in text
    assert "one/two (MIT): 2; three/four (GPL-3.0): 1." in text
    for line in ("| LGPL | 3 | 0 |", "| MIT | 1 | 2 |", "| GPL-3.0 | 0 | 1 |"):
        assert line in text
    assert "2 of\n  the chains are entries of it. 1 are targets of CASP" in text
    assert "The files of 1 chains (0099_A) do not" in text
    assert "3 chains come from repositories\n  under the GPL or LGPL" in text
    assert "1 files of alignments, for 1 of the 3 chains that have any" in text
    assert (tmp_path / "images" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_what_the_program_says_is_what_the_assessment_found(
    tmp_path: Path, store: Path, runs: list[Path], sources: Path
) -> None:
    text, facts = write(tmp_path, store, runs, sources)
    held_out = assessed()["sets"]["held_out"]
    score = held_out["methods"]["model"]["lddt_ca"]
    assert facts["held_out_lddt_ca"] == {name: score[name] for name in ("mean", "low", "high")}
    assert set(facts["baselines"]) == {"untrained", "secondary_structure", "nearest_chain"}
    assert facts["plddt_pearson"] == held_out["plddt_pearson"]["residues"]["pearson"]
    assert (facts["parameters"], facts["training_chains"], facts["held_out_chains"]) == (4_000_000, 7, 8)
    assert f"{score['mean']:.3f} [{score['low']:.3f}, {score['high']:.3f}]" in text


def test_a_verdict_says_no_more_than_its_interval() -> None:
    def of(low: float, high: float) -> str:
        difference = {"mean": (low + high) / 2, "low": low, "high": high}
        return card.verdict("untrained", {"model_minus": {"untrained": {"lddt_ca": difference}}})

    assert "is better than the untrained network" in of(0.01, 0.05)
    assert "cannot be told apart from" in of(-0.01, 0.05)
    assert "is worse than" in of(-0.04, -0.01)


def test_a_stages_command_has_its_settings(runs: list[Path]) -> None:
    first, second = stages.read_stages(runs)
    for stage in (first, second):
        words = shlex.split(stage.command.replace("\\\n", " "))
        given = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        assert training_preset("tiny").with_settings(given) == stage.config
    assert first.command.startswith(
        "torchrun --nproc-per-node 2 -m helixfold.cli.main train training_set --output run0"
    )
    assert second.command.startswith("helixfold train training_set --output run1")
    assert "--weights run0/weights/last.safetensors" in second.command
    assert (first.examples, first.seconds) == (6, 0.75)


def test_every_kind_of_setting_survives_a_command_line() -> None:
    changed = TrainingConfig.from_dict(
        training_preset("initial_training").with_settings(["dtype=bfloat16", "steps=5"]).to_dict()
    )
    given = stages.settings(training_preset("tiny"), changed)
    line = stages.wrapped(["helixfold", *(word for each in given for word in ("--set", each))])
    assert all(len(part) < 140 for part in line.split("\n"))
    words = shlex.split(line.replace("\\\n", " "))
    assert training_preset("tiny").with_settings([word for word in words[1:] if word != "--set"]) == changed


def test_an_assessment_with_gaps_makes_no_card(tmp_path: Path, store: Path, runs: list[Path], sources: Path) -> None:
    with pytest.raises(InputError, match="1 structures are missing"):
        write(tmp_path, store, runs, sources, failures={"x, model": "RuntimeError: no room"})
    assert not (tmp_path / "packaged").exists()


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: does not describe a training run"):
        stages.read_stages([tmp_path])
