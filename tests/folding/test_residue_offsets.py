"""Chains without ends: a network that reads their offsets cannot tell where they begin."""

import json
from dataclasses import replace
from pathlib import Path

import gemmi
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from data_pipeline.pipeline import Target, prepare
from helixfold.cli.main import main
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.folding.api import predict
from helixfold.folding.model_input import batch_of, draw, model_input
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget, fold
from helixfold.folding.residue_offsets import check_offsets, offsets_with_rings, ring_offsets, rings_of
from helixfold.model.presets import Preset, tiny, tiny_multimer
from helixfold.model.update import Executor
from helixfold.weights.untrained import untrained_model
from tests.support.complex_targets import feature_set
from tests.support.folding import fold_one
from tests.support.networks import tiny_model

SEQUENCE = "MKTAYIAKQRQISFVKS"  # of odd length, so that of two ways round one is shorter
PRESET = replace(tiny(), model=tiny_model().config, sampling=replace(tiny().sampling, masked_msa_fraction=0.0))
RING = FoldingOptions(num_recycles=1, cyclic=())


def folded(
    run: Executor, sequence: str = SEQUENCE, options: FoldingOptions = RING, offsets: np.ndarray | None = None
) -> Prediction:
    features = prepare(Target(name="target", sequence=sequence)).features
    return fold_one(tiny_model(), run, features, PRESET, options, offsets=offsets)


def distances(prediction: Prediction) -> np.ndarray:
    alpha = prediction.protein.positions_of("CA")
    return np.asarray(np.linalg.norm(alpha[:, None] - alpha, axis=-1))


@settings(max_examples=50, deadline=None)
@given(length=st.integers(1, 90), turn=st.integers(0, 90))
def test_a_ring_looks_the_same_from_each_of_its_residues(length: int, turn: int) -> None:
    offsets = ring_offsets(length)
    turned = np.roll(offsets, (turn, turn), (0, 1))
    # Half way round, both ways are as long.
    np.testing.assert_array_equal(np.abs(offsets), np.abs(turned))
    np.testing.assert_array_equal(np.where(2 * np.abs(offsets) == length, 0, offsets - turned), 0)
    np.testing.assert_array_equal((offsets - np.subtract.outer(np.arange(length), np.arange(length))) % length, 0)
    assert 2 * np.abs(offsets).max() <= length


def test_a_prediction_of_a_ring_turns_with_its_sequence() -> None:
    turn = 5
    first, turned = folded(Whole()), folded(Whole(), SEQUENCE[turn:] + SEQUENCE[:turn])
    np.testing.assert_allclose(np.roll(turned.plddt, turn), first.plddt, atol=1e-3)
    np.testing.assert_allclose(np.roll(distances(turned), (turn, turn), (0, 1)), distances(first), atol=1e-3)
    open_chain = folded(Whole(), options=replace(RING, cyclic=None))
    assert np.abs(distances(open_chain) - distances(first)).max() > 0.02
    assert (first.protein.cyclic_chains, open_chain.protein.cyclic_chains) == ({0}, frozenset())


@pytest.mark.parametrize("kind", ["slabs", "spilled"])
def test_every_executor_reads_offsets(kind: str, tmp_path: Path) -> None:
    run = Slabs(rows=4) if kind == "slabs" else Spilled(tmp_path, rows=4)
    np.testing.assert_allclose(distances(folded(run)), distances(folded(Whole())), atol=1e-3)


def test_offsets_of_ones_own_take_the_place_of_residue_numbers() -> None:
    numbers = np.arange(len(SEQUENCE)) * np.array([1, 2] * 9)[: len(SEQUENCE)]
    usual = replace(RING, cyclic=None)
    offsets = np.subtract.outer(numbers, numbers)
    found = folded(Whole(), options=usual, offsets=offsets)
    features = prepare(Target(name="target", sequence=SEQUENCE)).features
    by_numbers = fold_one(tiny_model(), Whole(), replace(features, residue_index=numbers), PRESET, usual)
    np.testing.assert_allclose(distances(found), distances(by_numbers), atol=1e-3)
    ring = folded(Whole(), options=usual, offsets=ring_offsets(len(SEQUENCE)))
    np.testing.assert_allclose(distances(ring), distances(folded(Whole())), atol=1e-3)
    (prediction,) = predict(
        Target(name="target", sequence=SEQUENCE), ["tiny"], options=usual, offsets=ring_offsets(len(SEQUENCE))
    )
    assert prediction.protein.cyclic_chains == frozenset()
    for wrong in (np.zeros((3, 3), np.int64), np.zeros((len(SEQUENCE), len(SEQUENCE)))):
        with pytest.raises(InputError, match=r"offsets must be integers of shape .17, 17."):
            check_offsets(wrong, len(SEQUENCE))


@pytest.mark.parametrize("preset", [tiny(), tiny_multimer()], ids=lambda preset: preset.name)
def test_of_a_complex_only_the_named_chains_are_rings(preset: Preset) -> None:
    # Chains are read as A, C, B, eight residues each.
    given = model_input(feature_set("ABA"), preset, cyclic=("C",))
    assert given.rings == (1,)
    assert given.offsets is not None
    batch = batch_of([draw(given, preset, [0])], preset, offsets=given.offsets)
    assert batch.offsets is not None
    plain = batch.residue_index[0, :, None] - batch.residue_index[0]
    ring = slice(8, 16)
    np.testing.assert_array_equal(batch.offsets[0, ring, ring], ring_offsets(8))
    other = torch.ones(24, 24, dtype=torch.bool)
    other[ring, ring] = False
    assert torch.equal(batch.offsets[0][other].long(), plain.clamp(-128, 127)[other])
    # In a network of complexes, residues of different chains stay apart whatever their offsets are.
    model = untrained_model(preset.model, 0)
    far = replace(batch, offsets=torch.where(other, batch.offsets + 1, batch.offsets))
    edges = [model.input_embedder.relative_position.edges(each, slice(None), torch.float32)[0] for each in (batch, far)]
    between = given.chain_index[:, None] != given.chain_index
    assert torch.equal(edges[0][between], edges[1][between]) == (preset.model.method == "multimer")


def test_chains_that_there_are_not_are_named() -> None:
    assert rings_of(["A", "B"], None, "x") == ()
    assert rings_of(["A", "B"], (), "x") == (0, 1)
    with pytest.raises(InputError, match="cyclic chain C is not in x; its chains are A, B"):
        rings_of(["A", "B"], ("A", "C"), "x")


def test_targets_that_share_passes_may_be_rings() -> None:
    features = [prepare(Target(name=name, sequence=SEQUENCE[:end])).features for name, end in (("a", 17), ("b", 9))]
    targets = [FoldingTarget(features=each, name=each.domain_name) for each in features]
    found = fold(tiny_model(), PRESET, targets, RING, Whole(), stages=Stages())
    np.testing.assert_allclose(distances(found[1]), distances(folded(Whole(), SEQUENCE[:9])), atol=1e-3)


def test_numbers_that_jump_stay_where_there_is_no_ring() -> None:
    offsets = offsets_with_rings(np.array([0, 1, 2, 200, 201]), np.array([0, 0, 0, 1, 1]), [0])
    np.testing.assert_array_equal(offsets[0], [0, -1, 1, -200, -201])


def test_the_command_closes_rings_and_its_files_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.fasta").write_text(f">one\n{SEQUENCE}\n")
    command = ["predict", str(tmp_path / "one.fasta"), "--models", "tiny", "--num-recycles", "0"]
    command += ["--output", str(tmp_path / "out")]
    assert main([*command, "--cyclic"]) == 0
    directory = tmp_path / "out" / "one"
    for suffix in ("pdb", "cif"):
        (chain,) = read_structure(directory / f"unrelaxed_tiny.{suffix}").chains
        assert chain.is_cyclic
        bonds = gemmi.read_structure(str(directory / f"unrelaxed_tiny.{suffix}")).connections
        assert {(each.partner1.atom_name, each.partner2.atom_name) for each in bonds} == {("C", "N")}
    assert json.loads((directory / "settings.json").read_text())["options"]["cyclic"] == []
    capsys.readouterr()
    assert main(command) == 2
    assert "finished before with other settings" in capsys.readouterr().err
    (tmp_path / "two.fasta").write_text(f">two\n{SEQUENCE[:9]}:{SEQUENCE[9:]}\n")
    assert main([*command[:1], *map(str, tmp_path.glob("*.fasta")), *command[2:], "--cyclic", "B", "--overwrite"]) == 1
    failures = json.loads((tmp_path / "out" / "failures.json").read_text())
    assert failures == {"one": "InputError: cyclic chain B is not in one; its chains are A"}
    capsys.readouterr()
    assert main([*command, "--cyclic", "Q"]) == 2
    assert capsys.readouterr().err == "helixfold: error: --cyclic Q: no target has a chain with this name\n"
    chains = read_structure(tmp_path / "out" / "two" / "unrelaxed_tiny.pdb").chains
    assert [chain.is_cyclic for chain in chains] == [False, True]
