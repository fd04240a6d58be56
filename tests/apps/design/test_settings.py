"""BindCraft's three files are read as they are, and what is not used is named."""

import json
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.design.settings import NOT_COMPUTED, applied, read_advanced, read_filters, read_target

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"


def test_a_target_is_read_as_bindcraft_writes_it(tmp_path: Path) -> None:
    (tmp_path / "PDL1.pdb").write_text("")
    content = {
        "design_path": "/root/software/pdl1/",
        "binder_name": "PDL1",
        "starting_pdb": "./PDL1.pdb",
        "chains": "A, B",
        "target_hotspot_residues": "A56,B20-25",
        "lengths": [65, 150],
        "number_of_final_designs": 100,
        "colour": "blue",
    }
    (tmp_path / "target.json").write_text(json.dumps(content))
    found = read_target(tmp_path / "target.json")
    assert found.structure == tmp_path / "PDL1.pdb"
    assert (found.output, found.name) == (Path("/root/software/pdl1/"), "PDL1")
    assert (found.chains, found.hotspots) == (("A", "B"), ("A56", "B20-25"))
    assert (found.lengths, found.accepted, found.unused) == ((65, 150), 100, ("colour",))
    (tmp_path / "target.json").write_text(json.dumps({**content, "target_hotspot_residues": "", "lengths": [90]}))
    assert (read_target(tmp_path / "target.json").hotspots, read_target(tmp_path / "target.json").lengths) == (
        (),
        (90, 90),
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"starting_pdb": ""}, "starting_pdb, the structure of the target, is missing"),
        ({"chains": 5}, "chains must be text, got 5"),
        ({"lengths": [1, 5]}, "lengths must be a list of whole numbers from 2 to 2,000"),
        ({"lengths": "65-150"}, "lengths must be a list"),
        ({"number_of_final_designs": 0}, "number_of_final_designs must be a whole number of at least 1"),
    ],
)
def test_a_target_that_cannot_be_is_one_sentence(change: dict[str, object], problem: str, tmp_path: Path) -> None:
    content = {"starting_pdb": "a.pdb", "lengths": [65, 150], "number_of_final_designs": 1, **change}
    (tmp_path / "target.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=problem):
        read_target(tmp_path / "target.json")


def test_advanced_settings_have_bindcrafts_defaults_and_presets(tmp_path: Path) -> None:
    usual, unused = read_advanced("default_4stage_multimer")
    assert unused == ()
    assert [usual[name] for name in ("soft_iterations", "temporary_iterations", "hard_iterations")] == [75, 45, 5]
    assert (usual["greedy_iterations"], usual["num_recycles_design"], usual["weights_helicity"]) == (15, 1, -0.3)
    sheet, _ = read_advanced("betasheet")
    assert (sheet["weights_helicity"], sheet["soft_iterations"]) == (-2.0, 75)
    peptide, _ = read_advanced("peptide_3stage_multimer")
    assert (peptide["design_algorithm"], peptide["use_rg_loss"], peptide["predict_initial_guess"]) == (
        "3stage",
        False,
        True,
    )
    hard, _ = read_advanced("default_4stage_multimer_mpnn_flexible_hardtarget")
    assert (hard["mpnn_fix_interface"], hard["rm_template_seq_design"], hard["predict_initial_guess"]) == (
        False,
        True,
        True,
    )
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"num_seqs": 3, "zip_plots": True, "dssp_path": "", "max_trajectories": 5}))
    own, unused = read_advanced(str(path))
    assert (own["num_seqs"], own["max_trajectories"], own["max_mpnn_sequences"]) == (3, 5, 2)
    assert unused == ("dssp_path", "zip_plots")
    for content, problem in (
        ({"design_algorithm": "mcmc"}, "design_algorithm must be one of 4stage, 3stage, got mcmc"),
        ({"soft_iterations": "many"}, "soft_iterations cannot be many"),
        ({"soft_iterations": 7.5}, "soft_iterations cannot be 7.5"),
        ({"use_rg_loss": 1}, "use_rg_loss cannot be 1"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match=problem):
            read_advanced(str(path))
    with pytest.raises(InputError, match="no such file or preset"):
        read_advanced("nothing")


def test_default_filters_are_bindcrafts() -> None:
    found = {each.name: each for each in read_filters("default")}
    limits = {
        "Average_pLDDT": (0.8, True),
        "Average_i_pTM": (0.5, True),
        "Average_i_pAE": (0.35, False),
        "2_ShapeComplementarity": (0.55, True),
        "Average_ShapeComplementarity": (0.6, True),
        "Average_n_InterfaceResidues": (7, True),
        "Average_n_InterfaceUnsatHbonds": (4, False),
        "Average_InterfaceAAs_K": (3, False),
        "5_Binder_RMSD": (3.5, False),
        "Average_dG": (0, False),
    }
    assert {name: (found[name].limit, found[name].is_minimum) for name in limits} == limits
    assert read_filters("no") == []
    used, others = applied(list(found.values()), 2)
    assert {each.metric for each in others if each.model is None} == {"Binder_Energy_Score", "dG"}
    assert {each.model for each in others if each.metric not in NOT_COMPUTED} == {3, 4, 5}
    assert not {each.metric for each in used} & set(NOT_COMPUTED)
    relaxed, peptide, both = (
        {each.name: each.limit for each in read_filters(name)} for name in ("relaxed", "peptide", "peptide_relaxed")
    )
    assert (relaxed["Average_i_pAE"], peptide["Average_i_pAE"], both["Average_Hotspot_RMSD"]) == (0.4, 0.3, 3.5)


def test_thresholds_pass_what_they_should_and_nothing_unknown() -> None:
    found = {each.name: each for each in read_filters("default")}
    least, most = found["Average_pLDDT"], found["1_i_pAE"]
    assert least.passes({"Average_pLDDT": 0.8})
    assert not least.passes({"Average_pLDDT": 0.79})
    assert most.passes({"1_i_pAE": 0.35})
    assert not most.passes({"1_i_pAE": 0.36})
    assert not least.passes({"Average_pLDDT": None})
    assert not least.passes({})
    lysine = found["Average_InterfaceAAs_K"]
    counts = dict.fromkeys(AMINO_ACIDS, 9)
    assert not lysine.passes({"Average_InterfaceAAs": counts})
    assert lysine.passes({"Average_InterfaceAAs": {**counts, "K": 3}})


def test_thresholds_are_changed_by_value_and_by_label(tmp_path: Path) -> None:
    found = {
        each.name: each.limit for each in read_filters("default", ["i_pTM=0.1", "1_pLDDT=none", "Hotspot_RMSD=none"])
    }
    assert [found[f"{model}_i_pTM"] for model in ("Average", 1, 2)] == [0.1] * 3
    assert "1_pLDDT" not in found
    assert found["2_pLDDT"] == 0.8
    assert not any("Hotspot_RMSD" in name for name in found)
    for word in ("i_pTM", "i_pTM=high", "beauty=1", "i_pTM=nan"):
        with pytest.raises(InputError, match="--threshold takes a value and a limit"):
            read_filters("default", [word])
    path = tmp_path / "filters.json"
    path.write_text(json.dumps({"Average_pLDDT": {"threshold": 0.5}}))
    with pytest.raises(InputError, match="Average_pLDDT must have a number as threshold, and higher"):
        read_filters(str(path))
