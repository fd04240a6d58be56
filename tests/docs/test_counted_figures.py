"""Documented figures that do not depend on the machine match the output of the commands that they name."""

import re
from pathlib import Path

import pytest
import torch

from helixfold.benchmark.launches import counted
from helixfold.benchmark.op_cases import Shape
from helixfold.benchmark.passes import parts
from helixfold.cli.main import main
from helixfold.model.alphafold import AlphaFold
from helixfold.model.presets import preset
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.planning.executors import EXECUTORS
from helixfold.planning.memory import FeatureRows
from helixfold.planning.passes import prediction_memory
from helixfold.planning.size import PassSize, floor
from tests.data_pipeline.training_sets.training_files import write_training_files

ROOT = Path(__file__).parents[2]
TEXTS = {
    page.relative_to(ROOT).as_posix(): page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
}
PERFORMANCE = TEXTS["docs/explanation/performance.md"]
DOCTOR = re.compile(r"`helixfold doctor --device (\w+) --length (\d+)`")


def rows(text: str, words: str) -> list[list[str]]:
    """Return the cells of the table rows that contain these words."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and words in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def numbers(cell: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", cell)]


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/performance.md"])
def test_every_measurement_names_its_command(page: str) -> None:
    tables = re.findall(r"^\|[^\n]*\| printed by \|\n\|[-|]+\n((?:\|[^\n]*\n)+)", TEXTS[page], re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines() if "| not measured |" not in line]
    assert len(lines) > 5
    assert [
        line for line in lines if not re.search(r"(`(helixfold|python) [^`]*`|the same( dry run)?) \|$", line)
    ] == []


def test_the_performance_page_names_only_lasting_benchmarks() -> None:
    stay = {"block", "ops", "model", "step", "memory", "loader", "kernels", "launches", "gpu", "precision", "ablation"}
    named = {*re.findall(r"(?:helixfold benchmark|scripts/benchmark\.py)\s+(\w+)", PERFORMANCE)}
    assert "block" in named
    assert named <= stay


@pytest.mark.parametrize("length", [*(pytest.param(each, marks=pytest.mark.long) for each in (1024, 1500)), 10_000])
def test_estimates_of_predictions(length: int) -> None:
    model = preset("model_1_ptm")
    size = FeatureRows.at_most(length, model.sampling).size(model, torch.bfloat16)
    peaks = [prediction_memory(model.model, size, executor, DEVICE_MODELS["h200"]).peak for executor in EXECUTORS]
    expected = [round(peak / 2**30, 1) for peak in peaks][length == 10_000 :]  # these do not fit as a whole
    command = f"`helixfold doctor --device h200 --length {length}`"
    found = {name: numbers(row[1]) for name in TEXTS for row in rows(TEXTS[name], command)}
    assert found.pop("docs/explanation/performance.md") == expected
    assert all(figures == expected[: len(figures)] for figures in found.values())


def test_every_named_estimate_is_tested() -> None:
    named = {found for text in TEXTS.values() for found in DOCTOR.findall(text)}
    assert named == {("h200", "1024"), ("h200", "1500"), ("h200", "10000")}


def test_estimates_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_training_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["features", "--structures", "structures", "--output", "set", "--workers", "1"]) == 0
    assert main(["train", "set", "--preset", "initial_training", "--dry-run", "--device", "h100"]) == 0
    printed = capsys.readouterr().out
    total = {
        name: numbers(line)[-1] for name, line in re.findall(r"^(none|inputs|block) +(.*)$", printed, re.MULTILINE)
    }
    ((measured,), (recomputed,)) = (
        rows(PERFORMANCE, f"{words}")
        for words in ("nothing recomputed (H100)", "recomputed from the inputs of updates")
    )
    assert numbers(measured[1])[-1] == total["none"]
    assert numbers(recomputed[1]) == [total["inputs"], total["block"]]


def test_parameter_files_have_the_size_that_the_pages_name() -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in AlphaFold(preset("model_1_ptm").model).parameters())
    sizes = [size for text in TEXTS.values() for size in re.findall(r"(\d+) MB\s+per\s+model", text)]
    assert len(sizes) >= 2
    assert {int(size) for size in sizes} == {round(4 * count / 1e6)}


def test_launches_of_a_training_block() -> None:
    (block,) = (
        part
        for part in parts(Shape(preset="model_1", residues=256, rows=128, extra_rows=1024, dtype=torch.bfloat16))
        if part.name == "Evoformer block"
    )
    forward, backward = (each.kernels + each.others for each in counted(block, DEVICE_MODELS["h200"]))
    assert f"launches {forward} kernels forward and {backward} backward" in " ".join(PERFORMANCE.split())


@pytest.mark.parametrize(
    ("words", "dtype"), [("predict 512 residues", torch.float32), ("the same in bfloat16 | 1,279", torch.bfloat16)]
)
def test_the_memory_of_streams(words: str, dtype: torch.dtype) -> None:
    config = preset("model_1_ptm").model
    size = PassSize(residues=512, msa_rows=128, templates=1, extra_rows=1024, dtype=dtype)
    streams = 512 * 512 * 128 * 2 + (128 + 1) * 512 * 256 + 1024 * 512 * 64
    assert floor(config, size) == streams * dtype.itemsize
    ((_, _, comparison, _),) = rows(PERFORMANCE, words)
    assert numbers(comparison)[-1] == round(streams * dtype.itemsize / 2**20)
