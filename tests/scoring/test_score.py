"""`helixfold score` ranks what it can, tells what it cannot, and goes on where it was killed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import InputError
from helixfold.cli.main import main
from helixfold.folding.options import FoldingOptions
from helixfold.presets import preset
from helixfold.scoring import network
from helixfold.scoring.score import BinderChains, binder_scores, require_templates, scores_of, target_to_fold
from helixfold.scoring.score_run import ScoredLine, ranked
from helixfold.scoring.structures import read_scored
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.untrained import untrained_model
from tests.scoring.structure_files import SEQUENCE, write
from tests.weights.written import write_tiny_without_templates

TINY = ["--model", "tiny", "--num-recycles", "0", "--device", "cpu"]


def rows(output: Path) -> list[dict[str, str]]:
    header, *lines = (output / "scores.tsv").read_text().splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


@pytest.fixture
def without_templates(tmp_path: Path) -> Path:
    """Parameters of a tiny network that reads no templates."""
    return write_tiny_without_templates(tmp_path / "without_templates.safetensors")


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    for number in range(4):
        write(tmp_path / "decoys" / f"d{number}.pdb", noise=number)
    (tmp_path / "decoys" / "bad.pdb").write_text("nothing")
    write(tmp_path / "native.pdb")
    return tmp_path / "decoys"


def test_a_bad_structure_stops_no_other_and_what_is_done_is_not_done_again(
    decoys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folded: list[int] = []
    real = network.Network.fold

    def counting(self: network.Network, targets: list[object]) -> object:
        folded.append(len(targets))
        if len(folded) == 2:
            raise KeyboardInterrupt
        return real(self, targets)  # type: ignore[arg-type]

    monkeypatch.setattr(network.Network, "fold", counting)
    output = tmp_path / "out"
    words = ["score", str(decoys), *TINY, "--reference", str(tmp_path / "native.pdb"), "--output", str(output)]
    assert main(words) == 130
    assert main(words) == 1
    assert folded == [1] * 5  # one before the interruption, the interrupted one, and the three that were missing
    said = capsys.readouterr()
    assert "1 of 5 structures: scored before" in said.out
    assert "decoys/bad: not scored: " in said.err
    assert json.loads((output / "failures.json").read_text()).keys() == {"decoys/bad"}
    found = rows(output)
    composites = [float(row["composite"]) for row in found[:4]]
    assert composites == sorted(composites, reverse=True)
    assert [row["rank"] for row in found] == ["1", "2", "3", "4", "NA"]
    by_name = {row["structure"]: row for row in found}
    assert float(by_name["d0"]["tm_to_native"]) == pytest.approx(1, abs=1e-3)
    assert float(by_name["d0"]["lddt_to_native"]) > float(by_name["d3"]["lddt_to_native"])
    assert "neither mmCIF" in by_name["bad"]["problem"]
    content = json.loads((output / "scores.json").read_text())
    (first, *_) = content["correlations"]
    assert (first["score"], first["truth"], first["structures"]) == ("composite", "tm_to_native", 4)
    assert "Not a prediction." in (output / "scores.html").read_text()
    assert main([*words, "--save-structures"]) == 1
    assert folded[5:] == [1] * 4
    assert sorted(path.name for path in (output / "structures" / "decoys").iterdir()) == [f"d{n}.pdb" for n in range(4)]
    assert main([*words, "--seed", "1"]) == 2
    assert "made with other settings (seed 0, now 1, chain_weights" in capsys.readouterr().err


def test_scores_are_those_of_what_the_network_makes_of_the_template(tmp_path: Path) -> None:
    structure = read_scored(write(tmp_path / "a.pdb"))
    made = network.Network(
        network.NetworkOptions(model="tiny", device="cpu"),
        preset("tiny"),
        FoldingOptions(num_recycles=1),
        spill=tmp_path,
    )
    (found,) = made.fold([target_to_fold(structure, "template", preset("tiny"))])
    (bare,) = made.fold([target_to_fold(structure, "initial_guess", preset("tiny"))])
    assert np.abs(found.plddt - bare.plddt).max() > 1e-3
    scores = scores_of(structure, found)
    assert isinstance(scores["composite"], float)
    assert isinstance(scores["tm_to_structure"], float)
    assert scores["composite"] == pytest.approx(found.ptm * found.plddt.mean() / 100 * scores["tm_to_structure"])


def test_binders_are_ranked_by_the_error_between_them_and_their_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        write(tmp_path / "designs" / f"d{number}.pdb", SEQUENCE[:10], SEQUENCE, seed=number)
    words = ["score", "--binders", str(tmp_path / "designs"), "--output", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*words, "--model", "tiny_multimer", "--num-recycles", "0"]) == 0
    found = rows(tmp_path / "out")
    errors = [float(row["pae_interaction"]) for row in found]
    assert errors == sorted(errors)
    assert found[0]["binder"] == SEQUENCE[:10]
    assert {"iptm", "ipsae", "pdockq2", "interface_pae", "target_aligned_rmsd"} <= found[0].keys()
    assert "protocol binder, model tiny_multimer, 0 recycles" in capsys.readouterr().out


def test_other_structures_in_a_directory_do_not_change_a_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if a complex comes first, and if single chains and complexes have different models."""
    weights = tmp_path / "weights"
    for name in ("tiny", "tiny_multimer"):
        state = untrained_model(preset(name).model, 0).state_dict()
        save_checkpoint(weights / f"{name}.safetensors", state, preset(name).model.to_dict())
    chain, pair = tmp_path / "alone" / "chain.pdb", tmp_path / "pairs" / "pair.pdb"
    for directory in (chain.parent, tmp_path / "both"):
        write(directory / chain.name)
    for directory in (pair.parent, tmp_path / "both"):
        write(directory / f"a_{pair.name}", SEQUENCE[:8], SEQUENCE)
    for options in (["--model", "tiny"], ["--weights", str(weights)]):
        options += ["--num-recycles", "1", "--device", "cpu"]
        outputs = {name: tmp_path / f"{name}_{options[0]}" for name in ("alone", "pairs", "both")}
        for name, output in outputs.items():
            assert main(["score", str(tmp_path / name), "--output", str(output), *options]) == 0
        said = capsys.readouterr().out
        (alone,), (apart,) = rows(outputs["alone"]), rows(outputs["pairs"])
        together = {row["structure"]: row for row in rows(outputs["both"])}
        unlike = {"rank", "target"}
        for one in (alone, apart):
            found = together[one["structure"]]
            assert {name: found[name] for name in one.keys() - unlike} == {
                name: one[name] for name in one.keys() - unlike
            }
        assert (alone["protocol"], apart["protocol"]) == ("template", "initial_guess")
        assert (alone["model"], apart["model"]) == ("tiny", "tiny" if "--model" in options else "tiny_multimer")
        content = json.loads((outputs["both"] / "scores.json").read_text())
        assert {each["structure"]: each["protocol"] for each in content["structures"]} == {
            "chain": "template",
            "a_pair": "initial_guess",
        }
        assert "do not compare them" in content["notes"][-1]
        for line in (
            "helixfold: single chains: protocol template, model tiny, 1 recycle",
            f"helixfold: complexes: protocol initial_guess, model {apart['model']}, 1 recycle",
        ):
            assert line in said.splitlines()
        screen = [line.split()[2:4] for line in said.splitlines() if " both " in line]
        assert sorted(screen) == [["a_pair", "initial_guess"], ["chain", "template"]]


def test_a_new_kind_of_structure_is_added_to_earlier_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in" / "chain.pdb")
    words = ["score", str(tmp_path / "in"), *TINY, "--output", str(tmp_path / "out")]
    assert main(words) == 0
    write(tmp_path / "in" / "a_pair.pdb", SEQUENCE[:8], SEQUENCE)
    assert main(words) == 0
    assert "1 of 2 structures: scored before" in capsys.readouterr().out
    # Settings of the removed kind still belong to its earlier results.
    (tmp_path / "in" / "chain.pdb").unlink()
    assert main(words) == 0
    first = json.loads((tmp_path / "out" / "results.jsonl").read_text().splitlines()[0])
    assert {"chain_protocol", "complex_protocol"} <= first["settings"].keys()


def test_lines_are_ranked_by_the_error_where_there_is_one_and_bad_ones_come_last() -> None:
    def names(key: str, *values: float | None) -> list[str]:
        lines = [
            ScoredLine(target="t", name=str(place), rank=None, problem=None, scores={"composite": place, key: value})
            for place, value in enumerate(values)
        ]
        return [line.name for line in ranked([ScoredLine(target="t", name="bad", rank=None, problem="why"), *lines])]

    assert names("pae_interaction", 3.0, 9.0, 5.0) == ["0", "2", "1", "bad"]
    assert names("plddt", 3.0, 9.0, 5.0) == ["2", "1", "0", "bad"]


def test_errors_between_binder_and_target_are_the_means_of_both_blocks(tmp_path: Path) -> None:
    structure = read_scored(write(tmp_path / "a.pdb", SEQUENCE[:4], SEQUENCE[:6]))
    made = network.Network(
        network.NetworkOptions(model="tiny_multimer", device="cpu"),
        preset("tiny_multimer"),
        FoldingOptions(num_recycles=0),
        spill=tmp_path,
    )
    (found,) = made.fold([target_to_fold(structure, "binder", preset("tiny_multimer"), BinderChains())])
    assert found.pae is not None
    scores = binder_scores(structure, found, BinderChains())
    both = (found.pae[:4, 4:].mean() + found.pae[4:, :4].mean()) / 2
    assert scores["pae_interaction"] == pytest.approx(both, rel=1e-5)
    assert scores["pae_binder"] == pytest.approx(found.pae[:4, :4].mean(), rel=1e-5)
    # With itself, nothing has moved.
    moved = binder_scores(structure, replaced(found, structure.positions), BinderChains())
    assert moved["target_aligned_rmsd"] == pytest.approx(0, abs=1e-3)
    assert moved["binder_aligned_rmsd"] == pytest.approx(0, abs=1e-3)
    for names, problem in ((("X",), "has no chain X, the binder"), (("A", "B"), "has no chain beside the binder")):
        with pytest.raises(InputError, match=problem):
            BinderChains(names=names).mask(structure)


def replaced(prediction: network.Prediction, positions: np.ndarray) -> network.Prediction:
    return replace(prediction, protein=replace(prediction.protein, atom_positions=positions))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            "--protocol template --weights NONE",
            "reads no templates; give --protocol initial_guess, or a --model",
        ),
        ("--binder-chains A", "--binder-chains is for --binders"),
        ("--binders --protocol template", "leave out --protocol"),
        ("--reference none", "none: there is no such file"),
        ("--model tinny", "there is no preset 'tinny'"),
    ],
)
@pytest.mark.usefixtures("without_templates")
def test_what_cannot_be_is_one_sentence_and_writes_nothing(
    decoys: Path, tmp_path: Path, words: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    words = words.replace("NONE", str(tmp_path / "without_templates.safetensors"))
    assert main(["score", str(decoys), "--output", str(output), *words.split()]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1
    assert not output.exists()


def test_models_that_read_templates_are_named() -> None:
    require_templates(preset("model_2_ptm"))
    with pytest.raises(InputError, match=r"model_3_ptm reads no templates;.* model_1_ptm, model_2_ptm, model_1_mult"):
        require_templates(preset("model_3_ptm"))


def test_without_templates_structures_are_scored_from_an_initial_guess(
    decoys: Path, tmp_path: Path, without_templates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    words = ["score", str(decoys / "d0.pdb"), "--output", str(output), "--num-recycles", "0", "--device", "cpu"]
    assert main([*words, "--weights", str(without_templates)]) == 0
    said = capsys.readouterr()
    assert "tiny reads no templates, so that structures are scored from an initial guess" in said.err
    assert "protocol initial_guess, model tiny, 0 recycles" in said.out
    assert rows(output)[0]["structure"] == "d0"
