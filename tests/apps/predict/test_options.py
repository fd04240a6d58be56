"""Options of `helixfold predict` agree with what they configure, and go to other processes as they are."""

import inspect
import json
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import pytest

from data_pipeline.training_sets.chains import ChainFilter
from helixfold.apps import options
from helixfold.apps.options import MemoryLimits, PredictOptions
from helixfold.apps.predict.doctor import GPU_NAMES
from helixfold.cli.main import main
from helixfold.cli.relax import relax
from helixfold.execution.device import AUTO, DTYPES
from helixfold.folding.options import FoldingOptions
from helixfold.model.presets import PRESETS
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.parallel.mesh import TIMEOUT
from helixfold.planning.executors import EXECUTORS
from helixfold.planning.machines import MACHINES, RATES
from helixfold.planning.memory import MemoryOptions
from helixfold.relax.result import RelaxOptions
from helixfold.runtime.options import ComputeDtype, Dtype, DtypeOrAuto, Executor, values_of
from helixfold.training.options import PlanOptions, StoreOptions, TrainingPreset, TrainOptions
from helixfold.training.plan import Hardware
from helixfold.training.presets import TRAINING_PRESETS

ROOT = Path(__file__).parents[3]


def test_choices_are_those_that_exist() -> None:
    assert get_args(ComputeDtype) == tuple(DTYPES)
    assert set(get_args(Dtype)) < set(DTYPES)
    assert get_args(DtypeOrAuto) == (AUTO, *DTYPES)
    assert get_args(Executor) == ("auto", *EXECUTORS)
    assert get_args(options.DoctorDevice) == ("auto", "cpu", "cuda", "mps", *GPU_NAMES)
    assert set(GPU_NAMES) < set(DEVICE_MODELS)
    assert get_args(TrainingPreset) == tuple(TRAINING_PRESETS)
    assert list(MACHINES) == list(RATES) == GPU_NAMES
    assert {Hardware.parse(word).machine for word in PlanOptions().hardware} < set(MACHINES)
    named = {name for preset in options.PREDICTION_PRESETS.values() for name in preset.models}
    assert named < set(PRESETS)


def test_defaults_are_those_of_the_library() -> None:
    given, folding, memory = PredictOptions(), FoldingOptions(), MemoryOptions()
    assert (given.seed, given.dtype) == (folding.seed, folding.dtype)
    assert MemoryOptions(**values_of(given, MemoryLimits)) == memory
    relaxation = {name: parameter.default for name, parameter in inspect.signature(relax).parameters.items()}
    assert relaxation.items() >= asdict(RelaxOptions()).items()
    store, chains = StoreOptions(), ChainFilter()
    assert (store.max_resolution, store.min_length) == (chains.below_resolution, chains.min_length)
    assert TrainOptions().timeout == TIMEOUT


def test_options_go_to_other_processes() -> None:
    given = PredictOptions(inputs=(Path("a.fasta"),), ranks_per_target=2)
    assert pickle.loads(pickle.dumps(given)) == given


def test_the_example_is_the_one_that_the_docs_use(tmp_path: Path) -> None:
    assert options.EXAMPLE.read_bytes() == (ROOT / "examples/src_sh3.fasta").read_bytes()
    assert options.EXAMPLE_TEMPLATE.read_bytes() == (ROOT / "examples/templates/1shg.pdb").read_bytes()


def test_the_example_looks_like_a_protein_and_has_a_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "--example", "--device", "cpu"]) == 0
    assert json.loads((tmp_path / "predictions/src_sh3/timings.json").read_text())["templates"] == 1
    confidence = json.loads((tmp_path / "predictions/src_sh3/confidence_small.json").read_text())
    assert confidence["mean_plddt"] > 55
    assert [domain["residues"] > 30 for domain in confidence["domains"]] == [True]


def test_the_example_is_predicted_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "--example", "--device", "cpu", "--models", "tiny", "--num-recycles", "0"]) == 0
    assert (tmp_path / "predictions/src_sh3/ranked_0.pdb").is_file()
    for own in (["own.fasta"], ["--features", "features"]):
        assert main(["predict", "--example", *own, "--output", "other"]) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert "--example cannot be combined with input files" in said
    assert not (tmp_path / "other").exists()
