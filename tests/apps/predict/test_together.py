"""Short targets share passes and nothing else: files, resuming and failures are those of each alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.sampling.alignment_variants import VariantSettings
from helixfold.apps.options import PredictOptions
from helixfold.apps.predict import lot, run
from helixfold.apps.predict.lot import sizes_of_lots
from helixfold.apps.predict.settings import RunSettings
from helixfold.cli.main import main
from helixfold.execution.graphs import GraphCache
from helixfold.execution.iteration_runner import IterationRunner
from helixfold.folding import planned
from helixfold.folding.options import FoldingOptions
from helixfold.model.presets import tiny
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.dispatch import forced
from helixfold.parallel.mesh import Layout, Mesh
from helixfold.parallel.worker_group import WorkerGroup
from helixfold.planning.estimate import RESERVE, Device, Prediction, PredictionEstimate, fit_together
from helixfold.planning.memory import MemoryOptions
from helixfold.planning.size import PassSize
from tests.support.operator_graphs import OperatorCapturer

pytestmark = pytest.mark.usefixtures("quick")
# Two lengths that share a lot, and one that does not.
SEQUENCES = {"a": "MKTAYIAKQR", "b": "MKTAYIAKQRQISFVK", "c": "GSHMKTAYIA", "d": "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"}


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    path = tmp_path / "all.fasta"
    path.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in SEQUENCES.items()))
    return path


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the targets of each batch that is folded, filled as it is."""
    seen: list[list[str]] = []
    fold = planned.fold

    def watched(model: Any, preset: Any, targets: Any, *rest: Any, **named: Any) -> Any:
        if len(targets) > 1:
            seen.append([target.features.domain_name for target in targets])
        return fold(model, preset, targets, *rest, **named)

    monkeypatch.setattr(planned, "fold", watched)
    return seen


def predict(fasta: Path, output: Path, *options: object) -> int:
    given = ["--models", "tiny", "--num-recycles", "1", "--device", "cpu", "--output", str(output), *map(str, options)]
    return main(["predict", str(fasta), *given])


def structures(output: Path) -> dict[str, np.ndarray]:
    """The numbers in all structures and confidences."""
    found = {}
    for path in sorted(output.rglob("*")):
        if path.suffix == ".pdb":
            atoms = [line for line in path.read_text().splitlines() if line.startswith("ATOM")]
            found[str(path.relative_to(output))] = np.array(
                [[float(atom[column : column + 8]) for column in (30, 38, 46)] for atom in atoms]
            )
        elif path.name.startswith("confidence_"):
            found[str(path.relative_to(output))] = np.array(json.loads(path.read_text())["plddt"])
    return found


def test_targets_come_out_as_they_do_one_by_one(fasta: Path, tmp_path: Path, batches: list[list[str]]) -> None:
    assert predict(fasta, tmp_path / "one by one", "--num-seeds", 2) == 0
    assert batches == []
    assert predict(fasta, tmp_path / "together", "--num-seeds", 2, "--targets-at-once", 8) == 0
    # By length, with each seed in passes of its own.
    assert batches == [["a", "c", "b"], ["a", "c", "b"]]
    alone, shared = structures(tmp_path / "one by one"), structures(tmp_path / "together")
    assert shared.keys() == alone.keys()
    for name, expected in alone.items():
        # Files have three decimals, which may round either way.
        np.testing.assert_allclose(shared[name], expected, atol=2e-3, err_msg=name)
    names = [
        sorted(str(path.relative_to(output)) for path in output.rglob("*"))
        for output in (tmp_path / "one by one", tmp_path / "together")
    ]
    assert names[0] == names[1]
    timings = json.loads((tmp_path / "together/a/timings.json").read_text())
    assert timings["models"]["tiny_seed_0"]["targets_at_once"] == 3
    expected = json.loads((tmp_path / "one by one/a/timings.json").read_text())["stages"]
    assert timings["stages"].keys() == expected.keys()


@pytest.mark.parametrize("options", [["--cyclic"], ["--dtype", "float16"]], ids=["rings", "float16"])
def test_targets_that_cannot_share_passes_are_folded_one_by_one(
    options: list[str], fasta: Path, tmp_path: Path, batches: list[list[str]]
) -> None:
    output = tmp_path / "out"
    assert predict(fasta, output, "--targets-at-once", 8, *options) == 0
    assert batches == []
    assert {path.parent.name for path in output.glob("*/ranking_debug.json")} == set(SEQUENCES)


def test_what_is_there_is_not_made_again(
    fasta: Path, tmp_path: Path, batches: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert predict(fasta, output, "--targets-at-once", 8) == 0
    (output / "b/confidence_tiny.json").unlink()
    (output / "a/ranking_debug.json").unlink()
    batches.clear()
    before = {path: path.stat().st_mtime_ns for path in output.rglob("unrelaxed_*")}
    assert predict(fasta, output, "--targets-at-once", 8) == 0
    # The one that needs nothing but its ranking, and the one that is alone, share no passes.
    assert batches == []
    changed = {path.parent.name for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert changed == {"b"}
    assert predict(fasta, output, "--targets-at-once", 8, "--num-seeds", 2) == 0
    assert batches == [["a", "c", "b"]]
    assert len(json.loads((output / "c/ranking_debug.json").read_text())["order"]) == 2


def test_one_that_fails_ends_no_other(
    fasta: Path, tmp_path: Path, batches: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = lot.write_prediction

    def failing(directory: Path, *rest: Any, **named: Any) -> None:
        if directory.name == "c":
            raise OSError(28, "No space left on device")
        write(directory, *rest, **named)

    monkeypatch.setattr(lot, "write_prediction", failing)
    output = tmp_path / "out"
    assert predict(fasta, output, "--targets-at-once", 8) == 1
    assert batches == [["a", "c", "b"]]
    failures = json.loads((output / "failures.json").read_text())
    assert list(failures) == ["c"]
    assert "No space left" in failures["c"]
    assert {path.parent.name for path in output.glob("*/ranking_debug.json")} == {"a", "b", "d"}


@pytest.mark.parametrize("bad", [None, "c"])
def test_a_batch_that_fails_is_folded_one_by_one(
    bad: str | None,
    fasta: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fold = planned.fold

    def failing(model: Any, preset: Any, targets: Any, *rest: Any, **named: Any) -> Any:
        if len(targets) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if targets[0].features.domain_name == bad:
            raise RuntimeError("the chain is broken")
        return fold(model, preset, targets, *rest, **named)

    monkeypatch.setattr(planned, "fold", failing)
    output = tmp_path / "out"
    assert predict(fasta, output, "--targets-at-once", 8) == (0 if bad is None else 1)
    said = capsys.readouterr().out
    assert "3 targets together failed (OutOfMemoryError: CUDA out of memory); starting again with one at a time" in said
    assert {path.parent.name for path in output.glob("*/ranking_debug.json")} == {"a", "b", "c", "d"} - {bad}


@pytest.mark.parametrize("at_once", [pytest.param(1, marks=pytest.mark.long), 8])
def test_captured_graphs_serve_seeds_and_targets(
    at_once: int, fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capturer, asked = OperatorCapturer(), list[tuple[object, ...]]()

    def captured(*given: object) -> IterationRunner:
        asked.append(given[:3])
        return IterationRunner(GraphCache(capturer))

    with forced("reference"):
        given = ["--num-seeds", 2, "--targets-at-once", at_once, "--num-recycles", 2]
        assert predict(fasta, tmp_path / "launched", *given) == 0
        monkeypatch.setattr(run, "runner_for", captured)
        assert predict(fasta, tmp_path / "replayed", *given, "--cuda-graphs", "auto") == 0
    assert asked == [(torch.device("cpu"), "auto", 1)]
    for name, expected in structures(tmp_path / "launched").items():
        np.testing.assert_allclose(structures(tmp_path / "replayed")[name], expected, atol=2e-3, err_msg=name)
    timings = json.loads((tmp_path / "replayed/a/timings.json").read_text())["models"]
    assert [timings[f"tiny_seed_{seed}"]["replayed_passes"] for seed in range(2)] == [1, 3]
    # Alone, two have a length of their own; together, all of a lot are padded alike.
    assert capturer.captured == (2 if at_once == 8 else 3)


def settings(device: str = "cpu", *, at_once: int | None = None, groups: int = 1) -> RunSettings:
    mesh = replace(Mesh.alone(device), layout=Layout(dp=groups))
    return RunSettings(
        options=PredictOptions(targets_at_once=at_once),
        folding=FoldingOptions(),
        searches=None,  # type: ignore[arg-type]
        models=(),
        memory=MemoryOptions(),
        variants=VariantSettings(),
        to_relax="none",
        workers=WorkerGroup(mesh),
    )


def test_lots_are_short_targets_of_about_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [10, 30, 32, 33, 60, 200, 250, 256, 257, 280]
    assert sizes_of_lots(lengths, settings()) == [1] * 10
    monkeypatch.setattr(lot, "properties_of", lambda device: DEVICE_MODELS["h200"])
    assert sizes_of_lots(lengths, settings()) == [3, 2, 1, 2, 1, 1]
    assert sizes_of_lots(lengths, settings(at_once=2)) == [2, 1, 2, 1, 2, 1, 1]
    # Each of several processes gets some.
    assert sizes_of_lots([64] * 64, settings()) == [64]
    assert sizes_of_lots([64] * 64, settings(groups=8)) == [8] * 8
    assert sizes_of_lots([], settings()) == []


def test_a_batch_is_as_large_as_memory_allows() -> None:
    size = PassSize(residues=16, msa_rows=1, extra_rows=1, templates=0, dtype=torch.float32)
    plan = PredictionEstimate(
        work=Prediction(model=tiny().model, size=size),
        device=Device(properties=DEVICE_MODELS["h200"], memory=0),
        executor="whole",
    )
    room = replace(plan.device, memory=int(2.5 * RESERVE * plan.memory.peak))

    def fits(count: int, executor: str = "whole", residues: int = 16) -> bool:
        own = replace(plan, device=room, executor=executor)
        return fit_together([own] * (count - 1) + [own.of(executor, residues=residues)])

    assert fits(2)
    assert not fits(3)
    assert not fits(2, residues=64)
    assert not fits(2, "slabs")
