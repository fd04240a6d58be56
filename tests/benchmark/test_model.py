"""DeepMind's program gets our parameters and features, and its time stands beside ours."""

import stat
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from helixfold.apps.verify.runs import deepmind_features
from helixfold.benchmark import model
from helixfold.benchmark.measurement import BenchmarkDevice, Readings
from helixfold.benchmark.model import PEER, _flops, readings
from helixfold.benchmark.options import CommonOptions, ModelOptions, Way
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.presets import preset
from helixfold.ops.dispatch import forced
from tests.parity.spec import Spec
from tests.parity.synthetic_features import make_features

CPU = torch.device("cpu")
MACHINE = BenchmarkDevice(device=CPU, name="", threads=1, versions={}, load=0.0, allocator="")


def interpreter(path: Path, positions: int = 12, *, error: str = "") -> Path:
    """What stands in for an interpreter with jax: it looks at what it is given and says what was found."""
    path.write_text(
        textwrap.dedent(f"""\
        #!/usr/bin/env python3
        import json, sys, zipfile
        from pathlib import Path
        assert sys.argv[1] == "-P" and Path(sys.argv[2]).name == "deepmind.py", sys.argv
        if {error!r}:
            sys.exit({error!r})
        folder = Path(sys.argv[3])
        settings = json.loads((folder / "settings.json").read_text())
        names = zipfile.ZipFile(folder / "parameters.npz").namelist()
        assert any(name.startswith("alphafold/alphafold_iteration/evoformer") for name in names), names
        shapes = dict(
            positions=({positions}, 37, 3), pair=(12, 12, 32), msa=(4, 12, 64), single=(12, 64),
            distogram=(12, 12, 64), lddt=(12, 50),
        )
        found = dict(compile_seconds=30.0, seconds=[2.0, 1.0, 4.0], memory=5, shapes=shapes, device="here", version="7")
        (folder / "found.json").write_text(json.dumps(found | dict(settings=settings)))
        """)
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def measured(monkeypatch: pytest.MonkeyPatch, python: Path, ways: tuple[Way, ...] = ("plain", "slabs")) -> Readings:
    monkeypatch.setattr(model, "PUBLISHED", ("tiny",))
    monkeypatch.setattr(model, "_flops", lambda *_: 1)
    options = ModelOptions(
        preset="tiny", residues=12, rows=4, extra_rows=3, executors=ways, peer=("jax",), jax_python=python
    )
    (found,) = readings(options, CommonOptions(repeats=1, dtypes=("float32",)), MACHINE)
    return found


def test_the_peers_time_stands_beside_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = measured(monkeypatch, interpreter(tmp_path / "python"))
    assert list(found.costs) == ["plain", "ours (slabs)", PEER]
    assert found.costs[PEER].seconds == 2.0
    times = 2 / found.costs["ours (slabs)"].seconds
    assert found.notes == (
        "jax 7 on here, 4 rows at a time, compiled in 30.0 s",
        f"ours (slabs): {times:.2f} times as fast as {PEER}",
    )


def test_outputs_of_other_shapes_are_no_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = measured(monkeypatch, interpreter(tmp_path / "python", positions=13), ways=("plain",))
    assert "other shapes" in str(found.costs[PEER].failure)


def test_without_the_extra_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = interpreter(tmp_path / "python", error="ModuleNotFoundError: No module named 'haiku'")
    found = measured(monkeypatch, python, ways=())
    assert found.costs[PEER].failure == "ModuleNotFoundError: No module named 'haiku'"
    assert "parity" in found.notes[0]


def test_features_are_those_that_deepminds_program_reads() -> None:
    spec = Spec(model="model_1", res=12, seq=5, extra_seq=7, templ=2, real_templ=2)
    expected = make_features(spec)
    found = deepmind_features(random_batch(12, 5, 7, 2, CPU))
    assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
        name: (array.shape, array.dtype) for name, array in expected.items()
    }


def test_operations_are_those_that_pytorch_counts() -> None:
    chosen, batch = preset("tiny"), random_batch(12, 4, 3, 2, CPU)
    network = AlphaFold(chosen.model).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad(), forced("reference"):
        network(Whole(), [batch], None, torch.float32)
    assert _flops(chosen, batch) == counter.get_total_flops()


def test_labels_are_of_the_batchs_sequence() -> None:
    batch = random_batch(12, 4, 3, 2, CPU)
    labels = random_labels(batch)
    assert (labels.aatype == batch.aatype).all()
    steps = np.linalg.norm(np.diff(labels.pseudo_beta[0].numpy(), axis=0), axis=-1)
    assert 0 < steps.mean() < 10
