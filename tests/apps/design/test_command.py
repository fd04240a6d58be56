"""`helixfold design` makes designs, checks them by another model, and goes on where it was killed."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from helixfold.apps.design.designer import Designer
from helixfold.apps.design.options import DesignOptions
from helixfold.apps.design.run import loss_weights
from helixfold.apps.design.sources import binder_of, chain_of, partial_of, residues_of
from helixfold.cli.main import main
from helixfold.model.presets import tiny
from helixfold.report.designs import CheckLine, DesignLine, ranked
from helixfold.report.page import loss_curve
from helixfold.weights.alphafold import from_state_dict
from helixfold.weights.npz import write_npz
from helixfold.weights.untrained import untrained_model
from tests.apps.design.designs import design
from tests.support.interruptions import Event, Kill, end

STRUCTURES = Path(__file__).parents[3] / "examples" / "structures"
HAIRPIN, HELIX = STRUCTURES / "hairpin_short.pdb", STRUCTURES / "helix_short.pdb"
STEPS = ["--models", "tiny", "--logits-steps", "2", "--soft-steps", "1", "--hard-steps", "1"]
FILES = ["design_0.cif", "design_0.json", "design_0.pdb", "settings.json"]


def files_in(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.integration
def test_designs_have_a_table_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.pdb").write_text("ATOM\n")
    output = tmp_path / "out"
    words = [str(HAIRPIN), str(tmp_path / "broken.pdb"), "--fixed-residues", "1-2", "--exclude", "CM", "--cyclic"]
    words += ["--loss", "con=0", "plddt=1", "--designs", "2", "--no-dropout", "--learning-rate", "0.2"]
    assert main(["design", "fixbb", *words, *STEPS, "--output", str(output)]) == 1
    names, *lines = [line.split("\t") for line in (output / "designs.tsv").read_text().splitlines()]
    found = [dict(zip(names, line, strict=True)) for line in lines]
    printed = capsys.readouterr()
    assert "designs.html" in printed.out
    # No progress bar: stderr is not a terminal.
    assert "\r" not in printed.err
    assert "steps:" not in printed.err
    page = (output / "designs.html").read_text()
    assert "No designs." in page  # its parameters are untrained
    assert "broken.pdb" in page
    assert list(json.loads((output / "failures.json").read_text())) == ["broken"]
    native = chain_of(HAIRPIN, None).sequence
    assert [line["rank"] for line in found] == ["1", "2"]
    for line in found:
        assert line["sequence"] in page
        assert (line["target"], line["check_plddt"]) == ("hairpin_short", "NA")
        assert line["sequence"][:2] == native[:2]
        assert not set(line["sequence"][2:]) & set("CM")
        assert float(line["loss"]) == pytest.approx(float(line["loss_dgram"]) + float(line["loss_plddt"]), abs=2e-4)
    options = json.loads((output / "hairpin_short" / "settings.json").read_text())["options"]
    expected = DesignOptions(
        logits_steps=2, soft_steps=1, hard_steps=1, dropout=False, learning_rate=0.2, excluded="CM"
    )
    assert options == {name: value for name, value in vars(expected).items() if name != "designs"}
    (ring,) = read_structure(output / "hairpin_short" / "design_0.pdb").chains
    assert ring.is_cyclic
    known = json.loads((output / "hairpin_short" / "design_1.json").read_text())
    assert len(known["loss_by_step"]) == known["steps"] == 4
    assert known["sequences"]["A"] in {line["sequence"] for line in found}
    assert sorted(path.name for path in (output / "hairpin_short").iterdir() if "_1" not in path.name) == FILES


def test_parts_and_binders_are_read_from_words() -> None:
    part = partial_of(HAIRPIN, None, ["3-5"], length=8, start=2, fix_sequence=True)
    native = chain_of(HAIRPIN, None).sequence
    assert part.chains[0].placeholder == f"G{native[2:5]}GGGG"
    assert part.chains[0].designed.tolist() == [True, False, False, False, True, True, True, True]
    bound = binder_of(HELIX, [], 4, ["3"], cyclic=True)
    assert [chain.name for chain in bound.chains] == ["A", "B"]
    assert bound.cyclic == ("B",)
    assert bound.chains[0].hotspots.nonzero()[0].tolist() == [2]


@pytest.mark.integration
def test_designs_are_folded_again_by_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "params_tiny.npz"
    config = tiny().model
    write_npz(other, from_state_dict(untrained_model(config, seed=9).state_dict(), config))
    command = ["design", "fixbb", str(HAIRPIN), *STEPS, "--output", str(tmp_path / "out")]
    checking = ["--check-models", "tiny", "--check-weights", str(other)]
    directory = tmp_path / "out" / "hairpin_short"
    assert main(command) == 0
    designed = files_in(directory)
    with monkeypatch.context() as patch:
        # What is designed is not designed again.
        patch.delattr(Designer, "advance")
        for _ in range(2):
            assert main([*command, *checking]) == 0
    assert designed.items() <= files_in(directory).items()
    check = json.loads((directory / "check_0.json").read_text())["checks"][0]
    made = chain_of(directory / "design_0.pdb", None)
    folded = chain_of(directory / "check_0_tiny.pdb", None)
    assert folded.sequence == made.sequence
    assert check["plddt"] == pytest.approx(folded.b_factors[:, 1].mean(), abs=0.01)
    assert 0 < check["tm_score"] < 1
    assert check["known_tm_score"] is not None
    assert check["controls"].keys() == {"shuffled", "random"}
    names, line = [line.split("\t") for line in (tmp_path / "out" / "designs.tsv").read_text().splitlines()]
    row = dict(zip(names, line, strict=True))
    assert float(row["check_plddt_random"]) == pytest.approx(check["controls"]["random"]["plddt"], abs=1e-3)
    assert row["check_beats_controls"] == ("yes" if check["beats_controls"] else "no")
    assert "of 1 checked design beat" in (tmp_path / "out" / "designs.html").read_text()
    capsys.readouterr()
    # The same model would only say again what it has been made to say.
    assert main([*command, "--overwrite", "--check-models", "tiny"]) == 2
    assert "tiny also designs, so that its check would prove nothing" in capsys.readouterr().err
    assert main([*command, *checking, "--seed", "3"]) == 1
    assert "made before with other settings (other models; options.seed 0, now 3)" in capsys.readouterr().err
    # A design that is made again does not inherit the checks of the old one.
    (directory / "design_1.json").write_bytes((directory / "design_0.json").read_bytes())
    (directory / "trajectory_1.npz").touch()
    assert main([*command, "--overwrite", "--seed", "3"]) == 0
    assert sorted(files_in(directory)) == FILES
    _, line = (row.split("\t") for row in (tmp_path / "out" / "designs.tsv").read_text().splitlines())
    assert dict(zip(names, line, strict=True))["check_plddt"] == "NA"


@pytest.mark.long
def test_a_killed_run_goes_on_to_the_same_files(tmp_path: Path) -> None:
    command = ["hallucination", "--length", "6", "--designs", "2", *STEPS]
    whole, output = tmp_path / "whole" / "out", tmp_path / "killed" / "out"
    ended = end(design, [*command, "--output", str(whole)], whole)
    assert ended.code == 0, ended.printed
    states = []
    for change in (ended.events // 4, ended.events * 3 // 5):
        end(design, [*command, "--output", str(output)], output, Kill(signal.SIGKILL, Event(index=change)))
        states.append([path.name for path in output.rglob("trajectory_*.npz")])
    assert states == [["trajectory_0.npz"], ["trajectory_1.npz"]]
    assert end(design, [*command, "--output", str(output)], output).code == 0
    assert files_in(output) == files_in(whole)


def test_residues_are_named_as_in_the_file() -> None:
    chain = chain_of(HAIRPIN, None)
    first = int(chain.residue_numbers[0])
    assert residues_of([f"{first}-{first + 2},{first + 4}"], [chain]) == [("A", 0), ("A", 1), ("A", 2), ("A", 4)]
    assert residues_of([f"A{first + 1}"], [chain]) == [("A", 1)]
    for word, problem in (
        ("x-y", "residues are named as 5, 5-20 or A5-20, got 'x-y'"),
        ("B1", "'B1' names no chain of the structure; they are A"),
        ("9990", "there are no residues 9990 in chain A"),
        ("5-3", "there are no residues 5-3 in chain A"),
    ):
        with pytest.raises(InputError, match=problem):
            residues_of([word], [chain])
    with pytest.raises(InputError, match=r"hairpin_short\.pdb: there is no chain Z; its chains are A"):
        chain_of(HAIRPIN, "Z")
    assert loss_weights(["con=2", "plddt=-0.5"]) == {"con": 2.0, "plddt": -0.5}
    for word in ("con", "con=x", "con=nan"):
        with pytest.raises(InputError, match="--loss takes a name and a weight, such as con=1"):
            loss_weights([word])


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["hallucination", "--length", "1"], "--length: must be a whole number from 2 to 2,000"),
        (["hallucination"], "--length is required"),
        (["hallucination", "--length", "9", "--loss", "beauty=1"], "there is no loss beauty"),
        (["hallucination", "--length", "9", "--exclude", "B"], "excluded are one-letter codes"),
        (["hallucination", "--length", "9", "--loss", "dgram=1"], "needs atoms that the design is to have"),
        (["fixbb", "none.pdb"], "none.pdb"),
        (["partial", str(HAIRPIN)], "--motif is required"),
        (["binder", str(HELIX), "--length", "4", "--target-chains", "Q"], "there is no chain Q"),
    ],
)
def test_wrong_input_is_one_sentence(
    words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    code = main(["design", *words, *STEPS, "--output", str(output)])
    error = capsys.readouterr().err.splitlines()
    assert code in (1, 2)
    # The last line of a run with failures names failures.json.
    assert problem in error[-1 if code == 2 else -2]
    assert code == 1 or not output.exists()


def test_what_another_model_agrees_with_comes_first() -> None:
    def line(number: int, loss: float, agreement: float | None) -> DesignLine:
        check = None
        if agreement is not None:
            numbers = dict.fromkeys(("plddt", "tm_score", "rmsd", "iptm", "known_tm_score"), 0.0)
            controls = dict.fromkeys(("plddt_shuffled", "tm_score_shuffled", "plddt_random", "tm_score_random"), 0.0)
            check = CheckLine(model="x", agreement=agreement, beats_controls="no", **numbers, **controls)
        return DesignLine(
            target="x",
            directory="x",
            number=number,
            protocol="hallucination",
            sequences={"A": "AC"},
            loss=loss,
            losses={},
            mean_plddt=50.0,
            ptm=None,
            iptm=None,
            known_tm_score=None,
            loss_by_step=[3.0, 1.0, 2.0],
            check=check,
        )

    lines = [line(0, 1.0, None), line(1, 3.0, 0.72), line(2, 2.0, 0.45), line(3, 0.5, None)]
    assert [each.number for each in ranked(lines)] == [1, 2, 3, 0]
    points = np.array([point.split(",") for point in loss_curve(lines[0].loss_by_step).split()], float)
    np.testing.assert_allclose(points, [[0, 0], [50, 24], [100, 12]])
