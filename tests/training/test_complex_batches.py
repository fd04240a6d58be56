"""Complexes are drawn by chains, packed as single chains are, and their losses have a gradient."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from data_pipeline.io.errors import InputError
from data_pipeline.sampling.sample import SamplingConfig
from data_pipeline.sampling.training import ExampleConfig
from data_pipeline.training_sets import clustering
from data_pipeline.training_sets.build import BuildOptions, build_store
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.examples import ComplexDataset
from data_pipeline.training_sets.record_builder import RecordBuilder
from data_pipeline.training_sets.store import FeatureStore
from helixfold.cli.main import main
from helixfold.execution.whole import Whole
from helixfold.losses.chain_metrics import METRICS
from helixfold.losses.config import complexes, finetuning
from helixfold.losses.labels import ComplexLabels
from helixfold.losses.total import total_loss
from helixfold.model.batch import MultimerBatch
from helixfold.results.training_log import read_log
from helixfold.training.loader import pack
from tests.data_pipeline.training_sets.assembly_files import write_mmcif
from tests.support.networks import tiny_multimer_config, with_every_parameter_random

CONFIG = ExampleConfig(
    crop_size=24, sampling=SamplingConfig(max_msa_clusters=2, max_extra_msa=3, max_templates=4, target_as_extra=True)
)
FIRST, SECOND = "MKTAYIAKQRW", "GSHMAEQLDV"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureStore:
    """Four assemblies: the second and third share a chain, the last has a single chain."""
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)
    for name, chains, generator in (
        ("1abc", [("A", "A", FIRST), ("B", "B", FIRST)], ("1", "A,B")),
        ("2abc", [("A", "A", SECOND), ("B", "B", "WWYFADLKHG")], ("1", "A,B")),
        ("3abc", [("A", "A", SECOND), ("B", "B", "DKLMNPQRST")], ("1,2", "A,B")),
        ("4abc", [("A", "A", "AGTSVLIKPM")], ("1", "A")),
    ):
        write_mmcif(tmp_path / f"structures/{name}.cif", chains, [generator])
    builder = RecordBuilder(filter=ChainFilter(), assemblies=True)
    build_store(BuildOptions(structures=tmp_path / "structures", output=tmp_path / "store"), builder)
    return FeatureStore.open(tmp_path / "store")


def test_examples_are_a_function_of_seed_step_and_place(store: FeatureStore) -> None:
    dataset = ComplexDataset(store=store, config=CONFIG, seed=1)
    names = {dataset.draw(step).examples[0].name for step in range(60)}
    assert names == {"1abc", "2abc", "3abc", "4abc"}
    one, other = (ComplexDataset(store=store, config=CONFIG, seed=1).draw(7).examples[0] for _ in range(2))
    for field in fields(one.truth):
        np.testing.assert_array_equal(getattr(one.truth, field.name), getattr(other.truth, field.name))


def test_assemblies_with_a_chain_like_a_held_out_one_are_not_drawn(store: FeatureStore) -> None:
    dataset = ComplexDataset(store=store, config=CONFIG, held_out=("2abc",))
    assert {dataset.draw(step).examples[0].name for step in range(40)} == {"1abc", "4abc"}
    with pytest.raises(InputError, match="4 assemblies, of which 4 are held out"):
        ComplexDataset(store=store, config=CONFIG, held_out=("1abc", "2abc", "3abc", "4abc"))


def test_packed_complexes_have_chains_copies_and_a_gradient(store: FeatureStore) -> None:
    dataset = ComplexDataset(store=store, config=CONFIG, seed=2, batch_size=3)
    drawn = dataset.draw(0)
    batch = pack(drawn, CONFIG.sizes()).on(torch.device("cpu"))
    last = batch.recycling_inputs[-1]
    assert isinstance(last, MultimerBatch)
    assert isinstance(batch.labels, ComplexLabels)
    for index, example in enumerate(drawn.examples):
        r = len(example.truth.aatype)
        assert last.asym_id[index, :r].tolist() == example.samples[-1].asym_id.tolist()  # type: ignore[attr-defined]
        assert not last.asym_id[index, r:].any()
        copies = example.truth.copies_positions  # type: ignore[attr-defined]
        np.testing.assert_array_equal(batch.labels.copies_positions[index, : len(copies), :r], copies)
    model = with_every_parameter_random(tiny_multimer_config())
    losses = total_loss(model(Whole(), [last]), last, batch.labels, complexes(finetuning()))
    losses.total.mean().backward()
    assert all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None)


SETTINGS = (
    *("example.crop_size=20", "batch_size=2", "seed=3", "save_every=1", "evaluation.num_recycles=0"),
    *("model.evoformer.blocks=1", "model.structure.layers=2"),
)


def train(store: Path, output: Path, steps: int, *others: str) -> int:
    settings = [part for setting in (*SETTINGS, f"steps={steps}") for part in ("--set", setting)]
    words = [
        *(
            "train",
            str(store),
            "--preset",
            "tiny_multimer",
            "--output",
            str(output),
            "--device",
            "cpu",
            "--workers",
            "0",
        )
    ]
    return main([*words, *settings, *others])


def test_a_run_on_complexes_goes_on_as_if_it_had_never_ended(store: FeatureStore, tmp_path: Path) -> None:
    assert train(tmp_path / "store", tmp_path / "whole", 2) == 0
    for steps in (1, 2):
        assert train(tmp_path / "store", tmp_path / "parts", steps) == 0
    whole, parts = (sorted((tmp_path / name / "weights").glob("last*")) for name in ("whole", "parts"))
    assert [path.name for path in whole] == [path.name for path in parts]
    weights = [path for path in zip(whole, parts, strict=True) if path[0].suffix == ".safetensors"]
    assert weights
    for one, other in weights:
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.usefixtures("undrawn")
def test_held_out_complexes_are_evaluated_and_not_trained_on(
    store: FeatureStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "names").write_text("1abc\n")
    held_out = ("--held-out", str(tmp_path / "names"), "--set", "evaluation.every=1")
    assert train(tmp_path / "store", tmp_path / "run", 2, *held_out) == 0
    history = read_log(tmp_path / "run/log.jsonl")
    assert [record.step for record in history.evaluations] == [0, 1]
    assert all(record.chains[0]["name"] == "1abc" for record in history.evaluations)
    shown = {"interface_lddt", "chain_lddt_ca", "iptm", "loss/interface_fape", "loss/centre_of_mass"}
    assert shown <= history.evaluations[0].summary.keys()
    for record in history.steps:
        assert "1abc" not in record.names
        assert {*record.metrics} <= {*METRICS}
        assert "interface_fape" in record.losses
    assert any(record.metrics for record in history.steps)
    assert all(0 <= value <= 1 for record in history.steps for value in record.metrics.values())
    assert "held-out complexes after 2 steps" in capsys.readouterr().err
    assert (tmp_path / "run/weights/best.safetensors").exists()
    events = EventAccumulator(str(tmp_path / "run/tensorboard")).Reload().Tags()["scalars"]
    assert {"evaluation/interface_lddt", "loss/centre_of_mass"} <= {*events}
    assert any(name.startswith("complexes/") for name in events)


def test_settings_of_complexes_that_do_not_fit_are_refused(
    store: FeatureStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "names").write_text("1abc_A\n")
    assert train(tmp_path / "store", tmp_path / "run", 1, "--held-out", str(tmp_path / "names")) == 2
    assert "names, line 1: the feature store has no assembly '1abc_A'" in capsys.readouterr().err
    assert train(tmp_path / "store", tmp_path / "run", 1, "--set", "model.method=monomer") == 2
    assert "loss.interface_fape is for complexes" in capsys.readouterr().err
