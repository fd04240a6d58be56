"""What the small model is measured against: it is as strong as it can be without having seen the truth."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.parse.structures import read_structure
from helixfold.analysis.metrics import lddt
from tests.examples.small.scripts import small_script

baselines, chains, ideal_chains = map(small_script, ("baselines", "chains", "ideal_chains"))
nearest_chains, scoring, secondary_structure = map(small_script, ("nearest_chains", "scoring", "secondary_structure"))

PEPTIDES = Path(__file__).parents[3] / "examples" / "structures"
HELIX, STRAND, COIL = range(3)


def known(path: Path, *, name: str = "", cluster: str = "") -> "chains.KnownChain":
    (chain,) = read_structure(path).chains
    return chains.KnownChain(
        name=name or path.stem,
        cluster=cluster or path.stem,
        sequence=chain.sequence,
        aatype=chain.aatype,
        positions=chain.atom_positions,
        mask=chain.atom_mask,
    )


PEPTIDE = {path.stem: known(path) for path in sorted(PEPTIDES.glob("*.pdb"))}


def test_ideal_helices_are_known_for_helices_and_strands_for_strands() -> None:
    for name, state in (("helix_long", HELIX), ("hairpin_long", STRAND)):
        found = secondary_structure.states(PEPTIDE[name])
        assert (found == state).mean() > 0.5, name
    unseen = PEPTIDE["helix_long"]
    unseen.mask[3] = 0
    assert secondary_structure.states(unseen)[3] == -1


def test_states_are_learnt_from_sequences() -> None:
    learnt = secondary_structure.SecondaryStructure.fitted([PEPTIDE["helix_short"], PEPTIDE["hairpin_short"]])
    for name, state in (("helix_long", HELIX), ("hairpin_long", STRAND)):
        assert (learnt(PEPTIDE[name].aatype) == state).mean() > 0.5, name


def test_chains_are_built_as_if_each_were_alone_and_unknown_residues_too() -> None:
    aatypes = [np.array([0, 7, 20, 14]), PEPTIDE["helix_long"].aatype]
    states = [np.array([HELIX, COIL, STRAND, HELIX]), np.full(len(aatypes[1]), HELIX)]
    together = ideal_chains.ideal_chains(aatypes, states, baselines.ANGLES)
    for aatype, state, built in zip(aatypes, states, together, strict=True):
        (alone,) = ideal_chains.ideal_chains([aatype], [state], baselines.ANGLES)
        np.testing.assert_allclose(built.positions, alone.positions, atol=1e-4)
        assert (built.mask[:, [0, 1, 2, 4]] == 1).all()
        steps = np.linalg.norm(np.diff(built.positions[:, chains.CA], axis=0), axis=-1)
        np.testing.assert_allclose(steps, 3.8, atol=0.05)
    assert together[0].mask[:, 3].tolist() == [1, 0, 0, 1], "C-beta of glycine and of what is unknown"


def test_a_helix_that_is_predicted_as_one_is_right() -> None:
    true = known(PEPTIDES / "helix_long.pdb")
    (built,) = ideal_chains.ideal_chains([true.aatype], [np.full(len(true.aatype), HELIX)], ((-63.0, -42.0),) * 3)
    found = scoring.score(ideal_chains.as_protein(true.aatype, built), true)
    assert found.lddt_ca > 0.99
    assert found.tm > 0.99
    assert found.plddt is None


def test_a_chain_that_is_in_the_set_twice_is_found_as_the_nearest_unless_their_cluster_is_the_same(store: Path) -> None:
    all_chains = chains.Chains.open(store / "store", store / "held_out.txt")
    meander = all_chains.known("meander_A")
    others = [chain for chain in all_chains.training_chains if chain.name != "meander_A"]
    found = nearest_chains.nearest(meander.sequence, others)
    assert (found.chain.name, found.identity) == ("twin_A", 1.0)
    copy = ideal_chains.as_protein(meander.aatype, nearest_chains.copied(meander.sequence, found, "local"))
    assert scoring.score(copy, meander).lddt_ca == pytest.approx(1.0)
    assert baselines.Baselines(all_chains).neighbour(meander).chain.name not in ("meander_A", "twin_A")


def test_nothing_held_out_is_learnt_from(store: Path) -> None:
    all_chains = chains.Chains.open(store / "store", store / "held_out.txt")
    names = {chain.name for chain in all_chains.training_chains}
    assert len(names) == 7
    assert not names & {"hairpin_long_A", "helix_long_A"}
    held_out = all_chains.known("helix_long_A")
    assert baselines.Baselines(all_chains).neighbour(held_out).chain.name in names


def test_residues_that_are_not_aligned_are_missing_and_count_as_wrong() -> None:
    true = known(PEPTIDES / "helix_long.pdb")
    half = len(true.sequence) // 2
    part = chains.KnownChain(
        name="half",
        cluster="half",
        sequence=true.sequence[:half],
        aatype=true.aatype[:half],
        positions=true.positions[:half],
        mask=true.mask[:half],
    )
    neighbour = nearest_chains.nearest(true.sequence, [part])
    copy = nearest_chains.copied(true.sequence, neighbour, "local")
    assert copy.mask[:half, chains.CA].all()
    assert not copy.mask[half:].any()
    found = scoring.score(ideal_chains.as_protein(true.aatype, copy), true)
    points = true.positions[:, chains.CA].copy()
    points[half:] += 1e4 * np.arange(1, len(points) - half + 1)[:, None]
    assert found.lddt_ca == pytest.approx(lddt(points, true.positions[:, chains.CA], np.arange(len(points))), abs=1e-6)
    assert found.tm < 0.6
    assert 0.2 < found.lddt_ca < 0.6
    assert scoring.score(None, true).lddt_ca == 0


def test_a_score_survives_being_written() -> None:
    true = known(PEPTIDES / "helix_short.pdb")
    copy = ideal_chains.Backbone(positions=true.positions, mask=true.mask)
    found = scoring.score(ideal_chains.as_protein(true.aatype, copy), true, np.linspace(20, 90, len(true.aatype)))
    assert found.lddt_ca == pytest.approx(1)
    assert found.plddt == pytest.approx(55)
    assert scoring.Score.from_dict(found.to_dict()) == found


def test_both_baselines_are_written_as_files_for_the_chains_that_are_named(store: Path, tmp_path: Path) -> None:
    all_chains = chains.Chains.open(store / "store", store / "held_out.txt")
    baselines.write(tmp_path, ["hairpin_long_A", "meander_A"], all_chains)
    for kind in ("nearest_chain", "secondary_structure"):
        files = sorted((tmp_path / kind).iterdir())
        assert [path.name for path in files] == ["hairpin_long_A.pdb", "meander_A.pdb"]
        for path in files:
            (chain,) = read_structure(path).chains
            assert chain.sequence == all_chains.known(path.stem).sequence


def test_what_is_open_in_the_baselines_is_chosen_on_training_chains(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baselines.choose(chains.Chains.open(store / "store", store / "held_out.txt"))
    said = capsys.readouterr().out
    assert "best angles: ((" in said
    assert "nearest chain, whole alignment: mean CA-lDDT" in said
