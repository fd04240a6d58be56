"""Binders are designed from end to end: kills change nothing, and accepted and rejected ones are told apart."""

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from helixfold.apps.design import binders, task
from helixfold.apps.design.binders import BinderSource, Campaign, binder_losses, design_options, end_of, labels_of
from helixfold.apps.design.designer import Design
from helixfold.apps.design.options import BinderCommand, DesignOptions, length_range
from helixfold.apps.design.settings import read_advanced
from helixfold.cli.main import main
from helixfold.model.presets import tiny
from helixfold.weights.alphafold import from_state_dict
from helixfold.weights.npz import write_npz
from helixfold.weights.untrained import untrained_model
from tests.apps.design.designs import binder
from tests.support.interruptions import Event, Kill, end

HELIX = Path(__file__).parents[3] / "examples" / "structures" / "helix_short.pdb"
STEPS = ["--logits-steps", "2", "--soft-steps", "1", "--hard-steps", "1", "--greedy-steps", "1"]


def files_in(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def words(folder: Path, *more: str) -> list[str]:
    """The command for a tiny design model and another tiny one that checks, with BindCraft's file for the target."""
    other = folder / "params_tiny.npz"
    write_npz(other, from_state_dict(untrained_model(tiny().model, seed=9).state_dict(), tiny().model))
    content = {
        "design_path": str(folder / "out"),
        "binder_name": "helix",
        "starting_pdb": str(HELIX),
        "chains": "A",
        "target_hotspot_residues": "A3",
        "lengths": [8, 11],
        "number_of_final_designs": 3,
        "note": "mine",
    }
    (folder / "target.json").write_text(json.dumps(content))
    models = ["--models", "tiny", "--check-models", "tiny", "--check-weights", str(other)]
    few = [
        "--sequences",
        "3",
        "--max-trajectories",
        "2",
        "--trajectory-plddt",
        "0",
        "--num-recycles",
        "0",
    ]
    return ["binder", "--target-settings", str(folder / "target.json"), *models, *STEPS, *few, *more]


# Calls at which a run is killed, in the order of the stages of a trajectory.
KILLS = [
    ("Designer.advance", 3),
    ("Designer.finished", 1),
    ("_redraw", 1),
    ("redrawn", 1),
    ("_check", 1),
    ("_measured", 2),
    ("interface", 1),
    ("_write_tables", 1),
    ("write_binders", 1),
]


@pytest.mark.integration
def test_a_run_from_end_to_end_is_the_same_after_a_kill_in_each_stage(tmp_path: Path) -> None:
    pytest.importorskip("protein_mpnn_utils", reason="needs the extra binders")
    # Structures of random networks overlap, and cannot be relaxed; tests/relax shows that relaxation repeats itself.
    whole, output = tmp_path / "whole", tmp_path / "killed"
    command = words(tmp_path, "--filters", "default", *thresholds(), "--no-relax")
    ended = end(binder, [*command, "-o", str(whole)], whole)
    assert ended.code == 0, ended.printed
    place = "helixfold.apps.design.binders:"
    for call, index in KILLS:
        kill = Kill(signal.SIGKILL, Event(index=index, call=place + call))
        killed = end(binder, [*command, "-o", str(output)], output, kill)
        assert killed.code == -signal.SIGKILL, (call, killed.printed)
    # The last run shares the directory, in which nobody else works.
    assert end(binder, [*command, "--shared", "-o", str(output)], output).code == 0
    found, expected = files_in(output), files_in(whole)
    assert found.keys() == expected.keys()
    # The page names its directory.
    assert {name for name in found if found[name] != expected[name]} <= {"designs.html"}
    names, *lines = [line.split("\t") for line in (whole / "designs.tsv").read_text().splitlines()]
    rows = [dict(zip(names, line, strict=True)) for line in lines]
    assert names[:3] == ["Rank", "Design", "Protocol"]
    accepted = [row for row in rows if row["Rank"] != "NA"]
    assert [row["Rank"] for row in accepted] == [str(rank) for rank in range(1, len(accepted) + 1)]
    scores = [float(row["Average_i_pTM"]) for row in accepted]
    assert scores == sorted(scores, reverse=True)
    for row in rows:
        assert (row["Unmet"] == "NA") == (row["Rank"] != "NA")
        assert "C" not in row["Sequence"]
        assert row["Target_Hotspot"] == "A3"
        assert 8 <= int(row["Length"]) == len(row["Sequence"]) <= 11
    assert accepted
    assert len(accepted) < len(rows)
    letters = (whole / "designs.fasta").read_text().splitlines()
    assert letters[1::2] == [row["Sequence"] for row in accepted]
    page = (whole / "designs.html").read_text()
    assert all(row["Sequence"] in page for row in rows)
    assert "data:image/png;base64," in page
    trajectories = (whole / "trajectories.tsv").read_text().splitlines()
    assert len(trajectories) == 3


def thresholds() -> list[str]:
    """Words that lower BindCraft's thresholds until some sequences of random networks pass, all of one trajectory."""
    lowered = ["pLDDT=0.01", "pTM=0", "i_pTM=0", "i_pAE=1", "Surface_Hydrophobicity=1", "ShapeComplementarity=none"]
    lowered += ["dSASA=none", "n_InterfaceResidues=none", "n_InterfaceHbonds=none", "n_InterfaceUnsatHbonds=none"]
    lowered += ["Binder_Loop%=none", "InterfaceAAs=none", "Hotspot_RMSD=none", "Binder_pLDDT=0", "Binder_RMSD=10"]
    return ["--threshold", *lowered]


def made(plddt: float, protein: object) -> Design:
    from helixfold.apps.design.trajectory import Trajectory  # noqa: PLC0415

    nothing = np.zeros((1, 20))
    return Design(
        number=0,
        sequences={},
        loss=0.0,
        losses={},
        protein=protein,  # type: ignore[arg-type]
        chain_ids=("A", "B"),
        plddt=np.full(2, plddt),
        ptm=None,
        iptm=None,
        trajectory=Trajectory(numbers=nothing, mean=nothing, square=nothing),
    )


@pytest.mark.parametrize(
    ("clashing", "plddt", "contacts", "ended"),
    [
        (1, 90.0, 9, "Trajectory_Clashes"),
        (0, 69.9, 9, "Trajectory_final_pLDDT"),
        (0, 70.0, 2, "Trajectory_Contacts"),
        (0, 70.0, 3, ""),
    ],
)
def test_finished_trajectories_end_for_bindcrafts_reasons(
    clashing: int, plddt: float, contacts: int, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binders, "clashes", lambda protein, only_alpha: clashing)
    monkeypatch.setattr(binders, "interface_residues", lambda protein, binder: list(range(contacts)))
    assert end_of(made(plddt, None), np.array([False, True]), 0.7) == ended


def test_settings_become_steps_and_losses_unless_the_command_says_otherwise() -> None:
    advanced, _ = read_advanced("default_4stage_multimer")
    usual = design_options(BinderCommand(), advanced)
    assert (usual.logits_steps, usual.soft_steps, usual.hard_steps, usual.greedy_steps) == (75, 45, 5, 15)
    assert (usual.screen_steps, usual.num_recycles, usual.excluded, usual.sheet_recycles) == (50, 1, "C", 3)
    own = design_options(BinderCommand(logits_steps=9, excluded="CW", trajectory_plddt=0.3), advanced)
    assert (own.logits_steps, own.soft_steps, own.excluded, own.min_plddt) == (9, 45, "CW", 0.3)
    peptide, _ = read_advanced("peptide_3stage_multimer")
    short = design_options(BinderCommand(), peptide)
    assert (short.screen_steps, short.greedy_steps, short.sheet_recycles) == (0, 0, None)
    weights = {name: each.weight for name, each in binder_losses(advanced, -0.3).items()}
    expected = {"con": 1, "i_con": 1, "plddt": 0.1, "pae": 0.4, "i_pae": 0.1, "helix": -0.3, "i_ptm": 0.05, "rg": 0.3}
    assert weights == expected
    assert "rg" not in binder_losses(peptide, 0.0)


def campaign(folder: Path, **changed: object) -> Campaign:
    advanced, _ = read_advanced("default_4stage_multimer")
    (chain,) = read_structure(HELIX).chains
    source = BinderSource(
        name="helix", make=lambda length: task.binder([chain], length, name="helix"), lengths=(65, 150), accepted=2
    )
    return Campaign(
        source=source,
        directory=folder,
        command=BinderCommand(),
        advanced={**advanced, **changed},
        thresholds=[],
        models=[],
        checks=[],
        device=torch.device("cpu"),
    )


def test_lengths_and_helicity_are_drawn_by_the_seed(tmp_path: Path) -> None:
    fixed, drawn = campaign(tmp_path), campaign(tmp_path, random_helicity=True)
    lengths = [fixed.drawn(number)[0] for number in range(400)]
    assert min(lengths) < 70
    assert max(lengths) > 145
    assert all(65 <= length <= 150 for length in lengths)
    assert {fixed.drawn(number)[1] for number in range(9)} == {-0.3}
    helicity = [drawn.drawn(number)[1] for number in range(400)]
    assert -3 <= min(helicity) < -2.8
    assert 0.8 < max(helicity) <= 1
    assert [drawn.drawn(number) for number in range(5)] == [drawn.drawn(number) for number in range(5)]


def test_a_run_ends_when_enough_or_too_few_are_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watched = campaign(tmp_path, start_monitoring=4, acceptance_rate=0.3)
    for number, accepted in enumerate([1, 0, 0]):
        (tmp_path / f"trajectory_{number}.json").write_text(json.dumps({"accepted": accepted}))
        assert not binders._has_enough(watched)
    (tmp_path / "trajectory_3.json").write_text(json.dumps({"accepted": 0}))
    assert binders._has_enough(watched)
    assert "1 binder accepted in 4 trajectories, fewer than 0.3 per trajectory" in capsys.readouterr().err
    assert not binders._has_enough(campaign(tmp_path, start_monitoring=4, enable_rejection_check=False))
    (tmp_path / "trajectory_4.json").write_text(json.dumps({"accepted": 1}))
    assert binders._has_enough(campaign(tmp_path))


def test_values_have_bindcrafts_labels() -> None:
    assert labels_of({1: {"pLDDT": 0.5}, 2: {"pLDDT": 0.7}}, {"pLDDT": 0.6}) == {
        "1_pLDDT": 0.5,
        "2_pLDDT": 0.7,
        "Average_pLDDT": 0.6,
    }


def test_ranges_of_lengths() -> None:
    assert (length_range("80"), length_range("65-150")) == ((80, 80), (65, 150))
    for word in ("150-65", "1-5", "-5", "65-", "a"):
        with pytest.raises(ValueError, match="must be"):
            length_range(word)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--length", "5"], "pass the structure of a target, or --target-settings"),
        ([str(HELIX)], "pass --length, such as 80 or 65-150"),
        ([str(HELIX), "--length", "5-6"], "a range of lengths is for binders that are filtered; pass --accepted too"),
        ([str(HELIX), "--length", "5", "--filters", "no"], "--filters is for binders that are filtered"),
        ([str(HELIX), "--length", "5", "--accepted", "1", "--models", "tiny"], "pass --check-weights"),
        ([str(HELIX), "--length", "5", "--accepted", "1", "--filters", "own"], "no such file or preset"),
    ],
)
def test_what_is_missing_is_one_sentence(
    arguments: Sequence[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["design", "binder", *arguments, "-o", str(tmp_path / "out")]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_the_extra_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with patch("data_pipeline.io.extras.find_spec", lambda name: None):
        assert main(["design", *words(tmp_path)]) == 2
    assert "pip install 'helixfold[binders]'" in capsys.readouterr().err


def test_models_that_design_do_not_check(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tiny also designs"):
        binders.checking_models(
            BinderCommand(check_models=("tiny",)),
            binders.find_models(["tiny"], None, seed=0),
            seed=DesignOptions().seed,
            method="multimer",
        )
