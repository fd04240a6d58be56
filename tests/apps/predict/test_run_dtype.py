"""Targets are predicted in the dtype that suits the device, and a run goes on elsewhere as it began."""

import json
from pathlib import Path

import pytest

from helixfold.apps.predict import run
from helixfold.ops.device_properties import DEVICE_MODELS
from tests.apps.predict.conftest import SEQUENCE, Runs

pytestmark = pytest.mark.usefixtures("quick")


def dtype_of(target: Path) -> str:
    return json.loads((target / "settings.json").read_text())["options"]["dtype"]


def test_a_run_that_began_on_a_gpu_goes_on_elsewhere_as_it_began(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one.fasta", tmp_path / "two.fasta"
    one.write_text(f">one\n{SEQUENCE}\n")
    two.write_text(f">one\n{SEQUENCE}\n>two\n{SEQUENCE}A\n")
    began = "computing in bfloat16, like earlier targets of this run"
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(run, "properties_of", lambda device: DEVICE_MODELS["h200"])
        on_gpu.setattr(run, "untested_warning", lambda properties: f"{properties.name} was never tried")
        assert runs(one) == ["tiny"]
        assert began not in runs.err
        assert "helixfold: NVIDIA H200 was never tried\n" in runs.err
    assert dtype_of(runs.target) == json.loads((runs.target / "timings.json").read_text())["dtype"] == "bfloat16"
    # On this machine's CPU: what is there stays, and the second target is predicted in the same dtype.
    assert runs(two, "--num-seeds", 2) == ["tiny_seed_1", "tiny_seed_0", "tiny_seed_1"]
    assert f"helixfold: {began}\n" in runs.err
    assert dtype_of(runs.target) == dtype_of(runs.output / "two") == "bfloat16"
    # Another dtype that is asked for, other settings and --overwrite do not go on with it.
    assert runs(one, "--dtype", "float32") == []
    assert "finished before with other settings (dtype bfloat16, now float32)" in runs.err
    assert runs(one, "--max-extra-rows", 5) == []
    assert "(dtype bfloat16, now float32; max_extra_rows not set, now 5)" in runs.err
    assert runs(one, "--overwrite") == ["tiny"]
    assert began not in runs.err
    assert dtype_of(runs.target) == "float32"
