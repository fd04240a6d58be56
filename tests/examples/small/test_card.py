"""The small model's card: every chain by name and once, and no number by hand."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.store import FeatureStore
from helixfold.model.presets import preset
from helixfold.results.pdb import to_pdb
from helixfold.training.log import TrainingLog
from helixfold.training.presets import training_preset
from helixfold.training.run_files import CONFIG_FILE
from helixfold.weights.checkpoint import read_header, save_checkpoint
from helixfold.weights.untrained import untrained_model
from tests.examples.small.scripts import small_script
from tests.results.proteins import random_protein
from tests.training.test_log import record

card, split, stages = map(small_script, ("card", "split", "stages"))
SET_ASIDE = {split.TEMPLATE: ("near", "far"), split.ALIGNMENT: ("deep", "shallow"), split.SINGLE: ("lone", "long")}
SCORES = {  # CA-lDDT
    "templates": {"near": 0.8, "far": 0.5},
    "copies/evaluation": {"near": 0.7},
    "no_templates": {"near": 0.4, "far": 0.4},
    "alignments": {"deep": 0.5, "shallow": 0.4},
    "no_alignments": {"deep": 0.4, "shallow": 0.4},
    "shuffled/evaluation": {"deep": 0.3, "shallow": 0.4},
    "single": {"lone": 0.45, "long": 0.35},
}


def write_gains(path: Path) -> None:
    """What `alignment_gain.py` leaves of two targets and one run, whose name is that of the table."""
    scores = {
        "deep": {"whole": (0.5, 2.0), "alone": (0.4, 2.5), "shuffled": (0.45, 2.3)},
        "shallow": {"whole": (0.4, 2.5), "alone": (0.4, 2.6), "shuffled": (0.4, 2.5)},
    }
    lines = [
        f"{path.stem}\t1200\t{target}\t{kind}\t{lddt}\t{distogram}"
        for target, kinds in scores.items()
        for kind, (lddt, distogram) in kinds.items()
    ]
    path.write_text("\n".join(["run\texamples\ttarget\talignment\tlddt_ca\tdistogram", *lines]) + "\n")


def table() -> list[object]:
    """A split of the peptides in the training set, and of six chains that are set aside."""
    names = {name: kind for kind, some in SET_ASIDE.items() for name in some}
    return [
        split.SplitChain(
            name=name, file="", chain="A", length=70 if name == "long" else 50, family=name, protein=name,
            set=split.SET_ASIDE, target=kind, template="x", identity={"near": 0.5, "far": 0.3}.get(name),
        )
        for name, kind in names.items()
    ]  # fmt: skip


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """What `helixfold evaluate` leaves: scores, residues and, of the templates, structures."""
    rng = np.random.default_rng(0)
    for name, scores in SCORES.items():
        directory = tmp_path / "trial" / name
        directory.mkdir(parents=True)
        lines = [f"{target}\t0\t{score}\t{score - 0.1:.2f}" for target, score in scores.items()]
        (directory / "scores.tsv").write_text("\n".join(["target\trank\tlddt_ca\ttm_score", *lines]) + "\n")
        residues = [
            f"{target}\t0\t{100 * true + 5:.1f}\t{true:.3f}"
            for target, score in scores.items()
            for true in rng.uniform(score - 0.2, score + 0.2, 20)
        ]
        (directory / "residues.tsv").write_text("\n".join(["target\trank\tplddt\tlddt_ca", *residues]) + "\n")
    for name in card.Trial.GAINS:
        write_gains(tmp_path / "trial" / name)
    for target in SCORES["templates"]:
        path = tmp_path / "trial" / "templates" / "predictions" / f"{target}.pdb"
        path.parent.mkdir(exist_ok=True)
        path.write_text(to_pdb(random_protein(12), []))
    return tmp_path / "trial"


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two stages."""
    directories = []
    for number, change in enumerate(("steps=3", "optimizer.learning_rate=1e-4")):
        directory = tmp_path / f"stage_{number}"
        log = TrainingLog(directory, first_step=0, last_step=3, progress=False)
        for step in range(3):
            log.step(replace(record(step), losses={"weighted": 5.0 - step, "total": 50.0}))
        log.evaluation(2, {"lddt_ca": 0.2 + number / 10, "tm_score": 0.1}, [])
        log.close()
        about = {
            "ranks": 2 - number,
            "versions": {"helixfold": "0.1.0", "torch": "2.13.0"},
            "config": training_preset("tiny").with_settings((change,)).to_dict(),
        }
        (directory / CONFIG_FILE).write_text(json.dumps(about))
        directories.append(directory)
    return directories


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    path = tmp_path / "sources.tsv"
    lines = [
        ("alignment", "x", "one.a3m", "one/two", "MIT"),
        ("alignment", "x;y", "two.a3m", "one/two", "MIT"),
        ("structure", "1abc_A;1abc_B", "1abc.cif", "five/six", "BSD"),
        ("structure", "T1031-D1", "t1031.cif", "five/six", "BSD"),
        ("structure", "0099_A", "0099.cif", "one/two", "MIT"),
        ("template", "1abc_A", "0099.cif", "one/two", "MIT"),
    ]
    header = "kind\tchains\tfile\trepository\tlicence\n"
    path.write_text(header + "".join("\t".join(line) + "\n" for line in lines))
    return path


def write(tmp_path: Path, trial: Path, store: Path, runs: list[Path], sources: Path) -> tuple[str, dict[str, object]]:
    weights, packaged = tmp_path / "small.safetensors", tmp_path / "packaged"
    model = preset("tiny").model
    save_checkpoint(weights, untrained_model(model, 0).state_dict(), model.to_dict())
    about = card.Trial(trial, table())
    training = card.Training(
        training_set=store / "store",
        held_out=store / "held_out.txt",
        sources=sources,
        stages=stages.read_stages(runs),
    )
    card.write(weights, about, training, packaged=packaged, root=tmp_path / "root")
    known = json.loads((packaged / "small.json").read_text())
    assert known["sha256"] == read_header(weights).sha256
    return (packaged / "small.md").read_text(), known


def test_the_card_names_each_chain_once_and_tells_no_directory(
    tmp_path: Path, trial: Path, store: Path, runs: list[Path], sources: Path
) -> None:
    text, _ = write(tmp_path, trial, store, runs, sources)
    held_out = (store / "held_out.txt").read_text().split()
    names = [entry.name for entry in FeatureStore.open(store / "store").entries if entry.name not in held_out]
    assert len(names) == 7
    for name in names:
        assert len(re.findall(rf"(?<!\S){re.escape(name)}(?!\S)", text)) == 1, name
    for kind, some in SET_ASIDE.items():
        assert re.search(rf"targets with [^<]*</summary>\n\n{' '.join(sorted(some))}\n", text), kind
    assert str(tmp_path) not in text
    assert "one/two (MIT): 2." in text
    for line in ("| BSD | 3 | 0 | 0 | 0 |", "| MIT | 1 | 2 | 1 | 0 |"):
        assert line in text
    assert "lists all 5 training files" in text
    assert "2 of\n  the chains are PDB entries. 1 are CASP targets" in text
    assert "The files of 1 chains (0099_A) have" in text
    for image in (card.CURVES, card.CALIBRATION):
        assert (tmp_path / "root" / image).read_bytes().startswith(b"\x89PNG")


def test_what_the_program_says_is_what_the_trial_found(
    tmp_path: Path, trial: Path, store: Path, runs: list[Path], sources: Path
) -> None:
    text, known = write(tmp_path, trial, store, runs, sources)
    assert (known["training_chains"], known["held_out_chains"]) == (7, 2)
    assert known["held_out_lddt_ca"]["mean"] == pytest.approx(0.4)
    template, alignment = known["template"], known["alignment"]
    means = {name: template[name]["mean"] for name in ("lddt_ca", "copied", "gain", "without")}
    assert means == pytest.approx({"lddt_ca": 0.65, "copied": 0.35, "gain": 0.3, "without": 0.4})
    assert (template["targets"], alignment["targets"]) == (2, 2)
    assert alignment["gain"]["mean"] == pytest.approx(0.05)
    assert known["plddt_pearson"]["pearson"] == pytest.approx(1.0, abs=1e-3)
    assert "| 2 | 0.650 [0.500, 0.800] | 0.350 [0.000, 0.700] copying the template | 0.300 [0.100, 0.500] |" in text
    assert "| 2 targets | 0.450 [0.400, 0.500] | 0.400 [0.400, 0.400] |" in text
    assert "1 of 2 predictions have the correct fold (TM-score above 0.5), compared with 1 of the copied" in text
    gains = "0.400 [0.400, 0.400] | 0.050 [0.000, 0.100] | 0.025 [0.000, 0.050] | 0.300 [0.100, 0.500]"
    assert f"| gains | 1,200 | {gains} |\n| gains_by_alignments | 1,200 | {gains} |\n" in text
    assert "| 64 to 127 | 1 | 0.350 [0.350, 0.350] |" in text
    assert "| templates | 40 | 1.000 [1.000, 1.000] | 5.0" in text
    assert "| stage_1 | 1 | 3 | 6 |" in text


def test_a_trial_with_gaps_makes_no_card(
    tmp_path: Path, trial: Path, store: Path, runs: list[Path], sources: Path
) -> None:
    scores = trial / "single" / "scores.tsv"
    scores.write_text("\n".join(scores.read_text().split("\n")[:2]) + "\n")
    with pytest.raises(InputError, match="single: 1 of 2 targets have no score, such as long"):
        write(tmp_path, trial, store, runs, sources)
    assert not (tmp_path / "packaged").exists()


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: does not describe a training run"):
        stages.read_stages([tmp_path])
