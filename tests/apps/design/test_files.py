"""Files of designs are read as they were written; the table has the strictest check of each."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.structure import protein_from_chains
from helixfold.apps.design import check, files, run, task
from helixfold.apps.design.check import CONTROLS, Agreement, Checked
from helixfold.apps.design.designer import Design
from helixfold.apps.design.options import DesignOptions
from helixfold.apps.design.trajectory import Trajectory
from helixfold.report.designs import DesignLine
from tests.apps.design.test_task import CHAIN

ZEROS = np.zeros((len(CHAIN.sequence), 20))
LOSSES = ({"loss": 2.0, "con": 2.0}, {"loss": 1.234567, "con": 1.0})


def design(number: int, loss: float = 1.5) -> Design:
    return Design(
        number=number,
        sequences={"A": CHAIN.sequence},
        loss=loss,
        losses={"con": loss},
        protein=protein_from_chains([CHAIN]),
        chain_ids=("A",),
        plddt=np.where(np.arange(len(CHAIN.sequence)) % 2, 50.0, 90.0)[::-1],
        ptm=0.5,
        iptm=None,
        trajectory=Trajectory(numbers=ZEROS, mean=ZEROS, square=ZEROS, step=2, losses=LOSSES),
    )


def found(model: str, plddt: float, tm_score: float) -> Checked:
    controls = dict(zip(CONTROLS, (Agreement(plddt=30, tm_score=0.2), Agreement(plddt=20, tm_score=0.3)), strict=True))
    return Checked(
        model=model,
        digest=model[:2],
        agreement=Agreement(plddt=plddt, tm_score=tm_score),
        ptm=0.4,
        iptm=None,
        rmsd=3.5,
        known_tm_score=0.6,
        controls=controls,
    )


def test_a_design_and_its_checks_are_read_as_they_were_written(tmp_path: Path) -> None:
    fixed = task.fixed_backbone(CHAIN, name="x")
    files.write_design(tmp_path, fixed, design(3), model="tiny", known_tm_score=0.75, notes=["UNTRAINED"])
    sequences, protein = files.read_design(tmp_path, 3)
    assert sequences == {"A": CHAIN.sequence}
    np.testing.assert_allclose(protein.atom_positions, CHAIN.atom_positions * CHAIN.atom_mask[..., None], atol=1e-3)
    content = json.loads((tmp_path / "design_3.json").read_text())
    assert content["loss_by_step"] == [2.0, 1.23457]
    assert (content["steps"], content["mean_plddt"], content["known_tm_score"]) == (2, 70.0, 0.75)
    assert (content["plddt"][0], content["plddt"][-1]) == (50, 90)
    for name in ("design_3.pdb", "design_3.cif"):
        assert "with tiny. The B-factor column holds" in (tmp_path / name).read_text()
    assert files.read_checks(tmp_path, 3) == []
    checks = [found("one", 80, 0.5), found("two", 60, 0.9)]
    files.write_check(tmp_path, 3, checks)
    assert files.read_checks(tmp_path, 3) == checks
    assert json.loads((tmp_path / "check_3.json").read_text())["checks"][0]["beats_controls"] is True


def test_tables_have_the_designs_that_are_finished_with_their_strictest_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[Path, list[DesignLine], dict[str, str]]] = []
    monkeypatch.setattr(files, "write_designs", lambda *arguments: written.append(arguments))
    fixed = task.fixed_backbone(CHAIN, name="x")
    for number in (0, 2, 3):
        files.write_design(tmp_path / "x", fixed, design(number), model="tiny", known_tm_score=0.75, notes=["a note"])
    files.write_check(tmp_path / "x", 2, [found("one", 80, 0.5), found("two", 60, 0.9)])
    files.write_tables(tmp_path, [fixed], {"y": "broken"}, 3)
    ((output, lines, failures),) = written
    assert (output, failures) == (tmp_path, {"y": "broken"})
    assert [line.number for line in lines] == [0, 2]  # three designs were asked for
    line = lines[0]
    assert (line.target, line.directory, line.protocol, line.check) == ("x", "x", "fixbb", None)
    assert (line.loss, line.losses, line.mean_plddt, line.ptm, line.iptm) == (1.5, {"con": 1.5}, 70.0, 0.5, None)
    assert (line.known_tm_score, line.notes, list(line.loss_by_step)) == (0.75, ("a note",), [2.0, 1.23457])
    assert lines[1].check is not None
    assert asdict(lines[1].check) == {
        "model": "one",  # 0.8 * 0.5 is less than 0.6 * 0.9
        "plddt": 80.0,
        "tm_score": 0.5,
        "rmsd": 3.5,
        "iptm": None,
        "known_tm_score": 0.6,
        "agreement": 0.4,
        "plddt_shuffled": 30,
        "tm_score_shuffled": 0.2,
        "plddt_random": 20,
        "tm_score_random": 0.3,
        "beats_controls": "yes",
    }


def test_targets_that_cannot_be_read_fail_alone() -> None:
    def broken() -> task.DesignTask:
        raise InputError("it is broken")

    (read,), failures = run._read([("bad", broken), ("good", lambda: task.hallucination(5))], {"con": 3.0})
    assert (read.losses["con"].weight, failures) == (3.0, {"bad": "it is broken"})
    with pytest.raises(InputError, match="it is broken"):
        run._read([("bad", broken)], {})
    run._check_names(["a", "b"])
    with pytest.raises(InputError, match="two targets are called a; design them with two commands"):
        run._check_names(["a", "b", "a"])


def test_a_directory_keeps_its_settings_unless_it_is_overwritten(tmp_path: Path) -> None:
    options, made = DesignOptions(), task.hallucination(5)

    def begin(made: task.DesignTask = made, options: DesignOptions = options, *, overwrite: bool = False) -> None:
        run._begin(tmp_path, made, options, [], overwrite=overwrite)

    begin()
    begin(options=DesignOptions(designs=7))  # more designs of the same kind
    left = [tmp_path / name for name in ("design_0.json", "design_0.pdb", "trajectory_1.npz", "check_0.json", "other")]
    for path in left:
        path.touch()
    changes: list[tuple[Callable[[], None], str]] = [
        (lambda: begin(options=DesignOptions(seed=1)), "options.seed 0, now 1"),
        (lambda: begin(made.weighted({"con": 2.0})), r"losses.con \S+, now 2"),
        (lambda: begin(task.hallucination(6)), "other chains"),
        (lambda: begin(task.hallucination(5, cyclic=True)), r"cyclic not set, now \[\]"),
        (lambda: begin(task.hallucination(5, name="other")), "another target"),
    ]
    for change, what in changes:
        with pytest.raises(InputError, match=rf"{tmp_path}: made before with other settings \({what}\)"):
            change()
    assert all(path.exists() for path in left)
    begin(options=DesignOptions(seed=1), overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "settings.json"]
    assert json.loads((tmp_path / "settings.json").read_text())["options"]["seed"] == 1


def test_agreement_and_known_scores_compare_alpha_atoms() -> None:
    protein = protein_from_chains([CHAIN])
    fixed = task.fixed_backbone(CHAIN, name="x")
    assert check.known_tm_score(fixed, protein) == pytest.approx(1.0, abs=1e-4)
    assert check.known_tm_score(task.partial(CHAIN, [1, 2], name="x"), protein) is None
    prediction: Any = type("Prediction", (), {"protein": protein, "plddt": np.array([40.0, 60.0])})
    agreed = check.agreement(protein, prediction)
    assert (agreed.plddt, agreed.tm_score) == (50.0, pytest.approx(1.0, abs=1e-4))
    assert agreed.product == pytest.approx(0.5, abs=1e-4)


def test_control_sequences_change_free_residues_alone() -> None:
    is_free = np.array([False] * 3 + [True] * 40)
    letters = "CCC" + "ADEF" * 10

    def made(kind: str, number: int = 0, seed: int = 0) -> str:
        designer: Any = type("Designer", (), {"options": DesignOptions(excluded="CW", seed=seed)})
        return check.control_sequence(letters, is_free, kind, designer, number)

    shuffled, random = made("shuffled"), made("random")
    assert shuffled[:3] == random[:3] == "CCC"
    assert sorted(shuffled) == sorted(letters)
    assert shuffled != letters
    assert not set(random[3:]) & set("CW")
    assert len(set(random[3:])) > 8
    assert made("random", 1) == made("random", 0, 1) != random
