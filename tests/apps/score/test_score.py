"""`helixfold score` ranks what it can, tells what it cannot, and goes on where it was killed."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from helixfold.apps.score import network
from helixfold.apps.score.score import (
    BinderChains,
    binder_scores,
    compared_with_native,
    require_templates,
    scores_of,
    target_to_fold,
)
from helixfold.apps.score.score_run import ScoredLine, ranked
from helixfold.apps.score.structures import ScoredStructure, read_scored
from helixfold.cli.main import main
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction, PredictionIdentity
from helixfold.model.presets import preset
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.untrained import untrained_model
from tests.apps.score.structure_files import SEQUENCE, write
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


@pytest.mark.integration
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
    assert "decoys/bad: failed: " in said.err
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
    assert "Not a prediction: random parameters." in (output / "scores.html").read_text()
    page = (output / "scores.html").read_text()
    assert 'href="../decoys/d0.pdb">d0</a>' in page
    assert "as predicted" not in page
    assert main([*words, "--save-structures"]) == 1
    assert folded[5:] == [1] * 4
    page = (output / "scores.html").read_text()
    assert sorted(re.findall('href="(./structures/[^"]*)">as predicted', page)) == [
        f"./structures/decoys/d{n}.pdb" for n in range(4)
    ]
    assert sorted(path.name for path in (output / "structures" / "decoys").iterdir()) == [f"d{n}.pdb" for n in range(4)]
    assert main([*words, "--seed", "1"]) == 2
    assert "made before with other settings (seed 0, now 1; other weights of tiny" in capsys.readouterr().err


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
def test_changed_files_are_scored_again_and_others_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run after a change has the scores of a fresh one, whether the structure or its native has changed."""
    for number in range(2):
        write(tmp_path / "in" / f"d{number}.pdb", noise=number)
    native = write(tmp_path / "native.pdb")

    def scored(output: str) -> tuple[list[dict[str, str]], str]:
        words = ["score", str(tmp_path / "in"), *TINY, "--reference", str(native), "--output", str(tmp_path / output)]
        assert main(words) == 0
        return rows(tmp_path / output), capsys.readouterr().out

    first, _ = scored("out")
    again, printed = scored("out")
    assert again == first
    assert "2 of 2 structures: scored before" in printed
    write(native, noise=0.5)
    changed, printed = scored("out")
    assert "scored before" not in printed
    assert changed == scored("after_native")[0] != first
    write(tmp_path / "in" / "d1.pdb", noise=1.5)
    last, printed = scored("out")
    assert "1 of 2 structures: scored before" in printed
    assert last == scored("after_structure")[0] != changed


def test_lines_are_ranked_by_the_error_where_there_is_one_and_bad_ones_come_last() -> None:
    def names(key: str, *values: float | None) -> list[str]:
        lines = [
            ScoredLine(target="t", name=str(place), rank=None, problem=None, scores={"composite": place, key: value})
            for place, value in enumerate(values)
        ]
        return [line.name for line in ranked([ScoredLine(target="t", name="bad", rank=None, problem="why"), *lines])]

    assert names("pae_interaction", 3.0, 9.0, 5.0) == ["0", "2", "1", "bad"]
    assert names("plddt", 3.0, 9.0, 5.0) == ["2", "1", "0", "bad"]


@pytest.mark.integration
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


@pytest.mark.parametrize(
    ("names", "problem"), [(("A", "X"), "has no chain X, the binder"), (("A", "B"), "has only the binder")]
)
def test_a_binder_is_some_of_the_chains(tmp_path: Path, names: tuple[str, ...], problem: str) -> None:
    structure = read_scored(write(tmp_path / "a.pdb", SEQUENCE[:4], SEQUENCE[:6]))
    with pytest.raises(InputError, match=problem):
        BinderChains(names=names).mask(structure)


CA = ATOM_ORDER["CA"]
# Chains of a file in the order in which they are read, because A and C are equal, and their residues.
FILE = {"A": SEQUENCE[:9], "B": SEQUENCE, "C": SEQUENCE[:9]}
RESIDUES = {"A": range(9), "C": range(9, 18), "B": range(18, 32)}


@pytest.fixture
def complex_file(tmp_path: Path) -> Path:
    return write(tmp_path / "a.pdb", *FILE.values())


def predicted(structure: ScoredStructure, positions: np.ndarray, **values: object) -> Prediction:
    """A prediction with these atoms, those at the origin left out, and errors and pLDDT that all differ."""
    random, count = np.random.default_rng(0), structure.residues
    plddt = random.uniform(20, 95, count)
    mask = positions.any(-1).astype(np.float32)
    given: dict[str, object] = {
        "name": "made",
        "identity": PredictionIdentity(model="made"),
        "structure": Protein(
            aatype=np.concatenate([chain.aatype for chain in structure.chains]),
            atom_positions=positions.astype(np.float32),
            atom_mask=mask,
            residue_index=np.concatenate([1 + np.arange(len(chain.sequence)) for chain in structure.chains]),
            chain_index=structure.chain_index,
            b_factors=plddt[:, None] * mask,
        ),
        "plddt": plddt,
        "pae": random.uniform(12, 30, (count, count)),
        "max_pae": 31.75,
        "ptm": 0.5,
        "iptm": 0.25,
        "ranking_confidence": 0.3,
        "num_recycles": 0,
        "converged": False,
        "chain_ids": tuple(chain.name for chain in structure.chains),
    }
    return Prediction(**{**given, **values})  # type: ignore[arg-type]


def without_alpha(structure: ScoredStructure, *residues: int) -> ScoredStructure:
    """The structure with the atoms of these residues unknown."""
    chains, start = [], 0
    for chain in structure.chains:
        known = np.array([start + place not in residues for place in range(len(chain.sequence))])
        start += len(chain.sequence)
        chains.append(
            replace(
                chain,
                atom_mask=chain.atom_mask * known[:, None],
                atom_positions=chain.atom_positions * known[:, None, None],
            )
        )
    return replace(structure, chains=tuple(chains))


@pytest.mark.parametrize("names", ["A", "B", "AC"])
def test_scores_of_a_binder_are_of_its_known_residues_and_the_targets(complex_file: Path, names: str) -> None:
    """The network turns the whole complex and pulls the binder apart; two residues are unknown in the structure."""
    structure = without_alpha(read_scored(complex_file), 3, 24)
    assert [chain.name for chain in structure.chains] == list(RESIDUES)
    binder = sorted(number for name in names for number in RESIDUES[name])
    target = sorted({*range(32)} - {*binder})
    moved = np.zeros((32, 3))
    moved[binder, 0] = 0.3 * np.arange(len(binder))
    moved[[3, 24]] = 40
    turn = Rotation.from_rotvec([0.3, -1.1, 0.7]).as_matrix()
    positions = (structure.positions + moved[:, None]) @ turn.T + np.array([9, -4, 2])
    prediction = predicted(structure, positions)
    scores = binder_scores(structure, prediction, BinderChains(names=tuple(names)))
    known = [number for number in binder if number not in (3, 24)]
    assert scores["target_aligned_rmsd"] == pytest.approx(np.sqrt((moved[known] ** 2).sum(1).mean()), abs=1e-3)
    centred = [each[known, CA] - each[known, CA].mean(0) for each in (positions, structure.positions)]
    distance = Rotation.align_vectors(*centred)[1]
    assert scores["binder_aligned_rmsd"] == pytest.approx(distance / len(known) ** 0.5, abs=1e-3)
    assert scores["binder"] == ":".join(FILE[name] for name in names)
    assert prediction.pae is not None
    for one, rows, columns in (("pae_binder", binder, binder), ("pae_target", target, target)):
        assert scores[one] == pytest.approx(np.mean([prediction.pae[i, j] for i in rows for j in columns]))
    across = [prediction.pae[i, j] for i in range(32) for j in range(32) if (i in binder) != (j in binder)]
    assert scores["pae_interaction"] == pytest.approx(np.mean(across))
    for one, residues in (("binder_plddt", binder), ("target_plddt", target)):
        assert scores[one] == pytest.approx(np.mean([prediction.plddt[i] for i in residues]))


def test_residues_that_the_structure_does_not_know_are_not_compared(complex_file: Path) -> None:
    structure = without_alpha(read_scored(complex_file), 3, 24)
    moved = structure.positions.copy()
    moved[[3, 24]] += 40
    prediction = predicted(structure, moved)
    scores = scores_of(structure, prediction)
    assert scores["tm_to_structure"] == pytest.approx(1, abs=1e-4)
    assert scores["rmsd_to_structure"] == pytest.approx(0, abs=1e-3)
    assert scores["composite"] == pytest.approx(0.5 * prediction.plddt.mean() / 100, abs=1e-4)


def test_the_interface_of_a_binder_is_with_its_target(complex_file: Path) -> None:
    """Though the two chains of the target are surer of each other."""
    structure = read_scored(complex_file)
    pae = np.full((32, 32), 20.0)
    for one, other, error in (("A", "C", 1.0), ("A", "B", 4.0), ("C", "B", 3.0)):
        pae[np.ix_(RESIDUES[one], RESIDUES[other])] = pae[np.ix_(RESIDUES[other], RESIDUES[one])] = error
    touching = structure.positions.copy()
    touching[[0, 9, 18]] = touching[0] + np.arange(3)[:, None, None]
    prediction = predicted(structure, touching, pae=pae)
    expected = {(): "A:C", ("B",): "C:B", ("A",): "A:C", ("A", "C"): "C:B"}
    for names, interface in expected.items():
        scores = scores_of(structure, prediction, BinderChains(names=names) if names else None)
        assert (scores["interface"], scores["iptm"]) == (interface, 0.25)
    assert scores_of(structure, prediction)["interface_pae"] == pytest.approx(1)
    assert scores_of(structure, prediction, BinderChains(names=("B",)))["interface_pae"] == pytest.approx(3)


def test_the_structure_and_what_the_network_makes_of_it_are_compared_with_the_native(tmp_path: Path) -> None:
    native = write(tmp_path / "native.pdb", *FILE.values())
    decoy = write(tmp_path / "decoy.pdb", *FILE.values(), noise=2.0)
    given, other = (read_scored(path) for path in (native, decoy))
    names = ("tm", "lddt", "dockq")
    recovered = compared_with_native(other, predicted(other, given.positions), read_structure(native))
    spoilt = compared_with_native(given, predicted(given, other.positions), read_structure(native))
    for name in names:
        suffix = "" if name == "dockq" else "_to_native"
        own, made = f"{name}{suffix}", f"output_{name}{suffix}"
        assert recovered[made] == pytest.approx(1, abs=1e-3)
        assert spoilt[own] == pytest.approx(1, abs=1e-3)
        assert recovered[own] == pytest.approx(spoilt[made], abs=1e-3)
        assert (recovered[own] or 0) < 0.99


def replaced(prediction: Prediction, positions: np.ndarray) -> Prediction:
    return replace(prediction, structure=replace(prediction.protein, atom_positions=positions))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            "--protocol template --weights NONE",
            "reads no templates; pass --protocol initial_guess, or a --model",
        ),
        ("--binder-chains A", "--binder-chains needs --binders"),
        ("--binders --protocol template", "leave out --protocol"),
        ("--reference none", "none: no such file"),
        ("--model tinny", "unknown preset 'tinny'"),
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


@pytest.mark.integration
def test_without_templates_structures_are_scored_from_an_initial_guess(
    decoys: Path, tmp_path: Path, without_templates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    words = ["score", str(decoys / "d0.pdb"), "--output", str(output), "--num-recycles", "0", "--device", "cpu"]
    assert main([*words, "--weights", str(without_templates)]) == 0
    said = capsys.readouterr()
    assert "tiny reads no templates, so structures are scored as initial guesses" in said.err
    assert "protocol initial_guess, model tiny, 0 recycles" in said.out
    assert rows(output)[0]["structure"] == "d0"
