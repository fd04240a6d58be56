"""`helixfold predict`, as a person would use it: files in, files out, and clear words when something is wrong."""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gemmi
import pytest
import torch
from Bio.PDB import MMCIFParser, PDBParser

from data_pipeline.features.schema import Features
from helixfold.cli.main import main
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.folding import planned
from helixfold.folding.recycling import FoldingTarget
from helixfold.model.presets import preset
from helixfold.weights import demonstration
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.find import find_models
from tests.apps.predict.files import without_command

SEQUENCE = "MKTAYIAKQR"
FILES = [
    "confidence_tiny.json",
    "coverage.png",
    "distances_tiny.npz",
    "features.npz",
    "one_0_pae.tsv",
    "one_msa.tsv",
    "one_plddt.tsv",
    "pae.png",
    "pae_tiny.bcif.gz",
    "pae_tiny.json",
    "plddt.png",
    "ranked_0.cif",
    "ranked_0.pdb",
    "ranking_debug.json",
    "report.html",
    "settings.json",
    "timings.json",
    "unrelaxed_tiny.cif",
    "unrelaxed_tiny.pdb",
]
# How long it took is the one thing in which two runs differ.
TIMED = ("timings.json", "report.html")


@pytest.fixture(autouse=True)
def no_downloaded_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")


@pytest.fixture
def plots() -> None:
    """Plots of every target, which take most of the time of a small one; tests that look at them request this."""


@pytest.fixture(autouse=True)
def no_plots_unless_requested(request: pytest.FixtureRequest) -> None:
    if "plots" not in request.fixturenames:
        request.getfixturevalue("undrawn")


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    return written(tmp_path / "one.fasta", f">one\n{SEQUENCE}\n")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def run(*arguments: object, output: Path) -> int:
    return main(["predict", *map(str, arguments), "--output", str(output), "--num-recycles", "1", "--models", "tiny"])


def structure_of(path: Path) -> gemmi.Structure:
    structure = gemmi.read_structure(str(path))
    structure.setup_entities()
    return structure


@pytest.mark.usefixtures("plots")
def test_every_file_appears_and_is_read_back(fasta: Path, tmp_path: Path) -> None:
    assert run(fasta, output=tmp_path / "out") == 0
    target = tmp_path / "out" / "one"
    assert sorted(path.name for path in target.iterdir()) == FILES
    confidence = json.loads((target / "confidence_tiny.json").read_text())
    for name in ("ranked_0.pdb", "ranked_0.cif"):
        chain = structure_of(target / name)[0]["A"]
        assert gemmi.one_letter_code([residue.name for residue in chain]) == SEQUENCE
        assert [residue["CA"][0].b_iso for residue in chain] == pytest.approx(confidence["plddt"], abs=0.011)
    pdb = PDBParser(QUIET=True).get_structure("one", str(target / "ranked_0.pdb"))
    cif = MMCIFParser(QUIET=True).get_structure("one", str(target / "ranked_0.cif"))
    names = [[atom.get_id() for atom in each.get_atoms()] for each in (pdb, cif)]
    assert names[0] == names[1]
    assert {"N", "CA", "C", "O"} < set(names[0])


def test_untrained_parameters_are_named_so_in_every_file_and_on_the_screen(
    fasta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(fasta, output=tmp_path / "out")
    assert "UNTRAINED" in capsys.readouterr().err
    texts = [path for path in (tmp_path / "out" / "one").iterdir() if path.suffix in (".json", ".pdb", ".cif")]
    assert len(texts) == 9
    for path in texts:
        assert "UNTRAINED" in path.read_text(), path.name


def test_without_weights_the_demonstration_model_folds_and_every_file_says_so(
    fasta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["predict", str(fasta), "--output", str(tmp_path / "out"), "--num-recycles", "0"]
    assert main(given) == 0
    said = capsys.readouterr().err
    assert f"helixfold: {demonstration.note()}\n" in said
    target = tmp_path / "out" / "one"
    texts = [path for path in target.iterdir() if path.suffix in (".json", ".pdb", ".cif")]
    assert len(texts) == 9
    for path in texts:
        assert "DEMONSTRATION" in path.read_text(), path.name
    assert (
        "A demonstration: do not rely on this structure.</strong></summary> Made by &#39;small&#39;"
        in (target / "report.html").read_text()
    )
    assert "1 of 1 target was folded by the small model" in (tmp_path / "out" / "index.html").read_text()

    # What is better takes its place, and it takes the place of nothing better.
    assert main([*given, "--models", "tiny"]) == 2
    assert "with other settings (untrained parameters);" in capsys.readouterr().err
    weights = tmp_path / "mine.safetensors"
    save_checkpoint(
        weights, find_models(["tiny"], None, seed=1)[0].network.state_dict(), preset("tiny").model.to_dict()
    )
    better = [*given, "--weights", str(weights), "--models", "tiny", "--models-to-relax", "none"]
    assert main(better) == 0
    assert "predicted before with the demonstration model; starts again" in capsys.readouterr().out
    assert main(given) == 2
    assert "the demonstration model);" in capsys.readouterr().err


@pytest.mark.usefixtures("plots")
def test_the_same_command_gives_the_same_files(fasta: Path, tmp_path: Path) -> None:
    output, first = tmp_path / "out", tmp_path / "first"
    run(fasta, output=output)
    output.rename(first)
    run(fasta, output=output)
    run(fasta, output=tmp_path / "elsewhere")
    assert sorted(path.name for path in (first / "one").iterdir()) == FILES
    for path in (first / "one").iterdir():
        if path.name not in TIMED:
            assert path.read_bytes() == (output / "one" / path.name).read_bytes(), path.name
            # The command says where results go.
            elsewhere = tmp_path / "elsewhere" / "one" / path.name
            assert without_command(path) == without_command(elsewhere), path.name


def test_alignments_come_from_a_file_a_directory_or_are_the_input(fasta: Path, tmp_path: Path) -> None:
    rows = f">one\n{SEQUENCE}\n>two\nMKTAYIaaAKQ-\n>three\n-KTAYIAKQR\n"
    folder = tmp_path / "msas"
    folder.mkdir()
    with gzip.open(folder / "one.a3m.gz", "wt") as file:
        file.write(rows)
    a3m = written(tmp_path / "one.a3m", rows)
    for name, arguments in (("file", (fasta, "--msa", a3m)), ("folder", (fasta, "--msa", folder)), ("input", (a3m,))):
        assert run(*arguments, output=tmp_path / name) == 0
        assert len(Features.load(tmp_path / name / "one" / "features.npz").msa) == 3
    structures = [(tmp_path / name / "one" / "ranked_0.pdb").read_bytes() for name in ("file", "folder", "input")]
    assert structures[0] == structures[1] == structures[2]


def test_finished_targets_are_skipped_until_told_otherwise(
    fasta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    run(fasta, output=output)
    before = (output / "one" / "ranked_0.pdb").stat().st_mtime_ns
    capsys.readouterr()
    assert run(fasta, output=output) == 0
    assert "skipped" in capsys.readouterr().out
    assert (output / "one" / "ranked_0.pdb").stat().st_mtime_ns == before
    run(fasta, "--overwrite", output=output)
    assert (output / "one" / "ranked_0.pdb").stat().st_mtime_ns > before


def test_a_target_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fasta = written(tmp_path / "two.fasta", f">bad\n{SEQUENCE}\n>good\n{SEQUENCE}A\n")
    fold, output = planned.fold, tmp_path / "out"

    def fails_once(model: Any, preset: Any, targets: Sequence[FoldingTarget], *rest: Any, **named: Any) -> Any:
        if targets[0].features.domain_name == "bad":
            raise RuntimeError("the chain is broken")
        return fold(model, preset, targets, *rest, **named)

    monkeypatch.setattr(planned, "fold", fails_once)
    assert run(fasta, output=output) == 1
    assert json.loads((output / "failures.json").read_text()) == {"bad": "RuntimeError: the chain is broken"}
    assert (output / "good" / "ranked_0.pdb").exists()
    monkeypatch.setattr(planned, "fold", fold)
    assert run(fasta, output=output) == 0
    assert not (output / "failures.json").exists()
    assert "good: finished before" in capsys.readouterr().out


def test_out_of_memory_a_target_is_folded_anew_as_if_it_had_begun_so(
    fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fasta, "--executor", "spilled", output=tmp_path / "spilled") == 0
    assert re.search(r"one: tiny spills [0-9.]+ MiB", capsys.readouterr().out)
    call, calls = Slabs.__call__, []

    def fails_in_the_second_pass(self: Slabs, *arguments: object, **named: object) -> torch.Tensor:
        calls.append(arguments)
        if len(calls) > 40 and not isinstance(self, Spilled):
            raise torch.OutOfMemoryError("no memory left")
        return call(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Slabs, "__call__", fails_in_the_second_pass)
    assert run(fasta, "--executor", "slabs", output=tmp_path / "slabs") == 0
    assert (
        "one: tiny: out of memory with the executor 'slabs'; starting again with 'spilled'" in capsys.readouterr().out
    )
    for path in (tmp_path / "spilled" / "one").iterdir():
        if path.name not in TIMED:
            assert without_command(path) == without_command(tmp_path / "slabs" / "one" / path.name), path.name
    taken = json.loads((tmp_path / "slabs" / "one" / "timings.json").read_text())["models"]["tiny"]
    assert taken["executor"] == "spilled"
    settings = json.loads((tmp_path / "slabs" / "one" / "settings.json").read_text())
    assert settings["provenance"][0]["executor"] == "spilled"
    assert {"predicted_peak_gib", "measured_peak_gib"} < set(taken)


# The system grants 256 MiB. Target b wants more if it is folded whole, and in slabs what must have been left by that;
# target c always wants more.
IN_LITTLE_MEMORY = """
import sys
from collections.abc import Sequence
import torch
from helixfold.cli.main import main
from helixfold.folding import planned
from helixfold.planning import estimate, executors
from helixfold.execution.whole import Whole

MIB, fold = 2**20, planned.fold

def hungry(model, preset, targets, options, run, **named):
    name = targets[0].features.domain_name
    if name == "a":
        return fold(model, preset, targets, options, run, **named)
    wanted = [160, 512] if name == "c" or isinstance(run, Whole) else [200]
    held = [torch.ones(size * MIB // 4) for size in wanted]
    return fold(model, preset, targets, options, run, **named)

planned.fold = hungry
estimate.available_memory = executors.available_memory = lambda device: 256 * MIB
sys.exit(main(["predict", *sys.argv[1:], "--num-recycles", "0", "--executor", "whole", "--models", "tiny"]))
"""


@pytest.mark.long
def test_what_the_system_refuses_is_done_in_less_memory_or_fails_alone(tmp_path: Path) -> None:
    records = "".join(f">{name}\n{SEQUENCE}{'A' * more}\n" for more, name in enumerate("abc"))
    fasta, output = written(tmp_path / "three.fasta", records), tmp_path / "out"
    command = [sys.executable, "-c", IN_LITTLE_MEMORY, str(fasta), "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1, done.stderr
    taken = {name: json.loads((output / name / "timings.json").read_text())["models"]["tiny"] for name in "ab"}
    assert [each["executor"] for each in taken.values()] == ["whole", "slabs"]
    (failure,) = json.loads((output / "failures.json").read_text()).items()
    assert failure[0] == "c"
    assert failure[1].startswith("NotEnoughMemoryError: out of memory with the executor 'spilled'; 12 residues need")
    assert "what would fit: " in failure[1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("tolerance", "recycles", "converged"), [("1000", 1, True), ("0", 3, False)])
def test_recycling_stops_when_the_structure_has_settled(
    tolerance: str, recycles: int, converged: bool, fasta: Path, tmp_path: Path
) -> None:
    options = ["--models", "tiny", "--num-recycles", "3", "--recycle-tolerance", tolerance]
    assert main(["predict", str(fasta), "--output", str(tmp_path / "out"), *options]) == 0
    confidence = json.loads((tmp_path / "out" / "one" / "confidence_tiny.json").read_text())
    assert (confidence["num_recycles"], confidence["converged"]) == (recycles, converged)


def test_unknown_residues_are_kept_in_the_sequence(tmp_path: Path) -> None:
    fasta = written(tmp_path / "x.fasta", ">x\nMKXTB\n")
    assert run(fasta, output=tmp_path / "out") == 0
    confidence = json.loads((tmp_path / "out" / "x" / "confidence_tiny.json").read_text())
    assert len(confidence["plddt"]) == 5
    cif = structure_of(tmp_path / "out" / "x" / "ranked_0.cif")
    assert cif.entities[0].full_sequence == ["MET", "LYS", "UNK", "THR", "UNK"]


@pytest.mark.usefixtures("without_remedies")
def test_a_target_that_cannot_fit_fails_at_once_and_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fasta = written(tmp_path / "two.fasta", f">long\n{SEQUENCE * 200}\n>short\n{SEQUENCE}\n")
    fold, folded = planned.fold, []

    def recorded(model: Any, preset: Any, targets: Sequence[FoldingTarget], *rest: Any, **named: Any) -> Any:
        folded.append(targets[0].features.domain_name)
        if folded[-1] == "long":
            raise torch.OutOfMemoryError("no memory left")
        return fold(model, preset, targets, *rest, **named)

    monkeypatch.setattr(planned, "fold", recorded)
    room = ("--memory", "300MiB")
    assert run(fasta, "--dry-run", *room, output=tmp_path / "out") == 1
    told = capsys.readouterr().out
    assert run(fasta, *room, output=tmp_path / "out") == 1
    failures = json.loads((tmp_path / "out" / "failures.json").read_text())
    assert list(failures) == ["long"]
    problem = failures["long"].removeprefix("NotEnoughMemoryError: ")
    assert problem.startswith("tiny: 2,000 residues need ")
    assert f"long: {problem}\n" in told
    assert folded == ["short"]
    # An executor that is named is tried in the memory that is free, but not beyond --memory.
    assert run(fasta, *room, "--executor", "slabs", output=tmp_path / "out") == 1
    refused = json.loads((tmp_path / "out" / "failures.json").read_text())["long"]
    assert "of memory (a tenth of reserve included) with --executor slabs; there are 0.3 GiB; leave out" in refused
    assert folded == ["short"]
    monkeypatch.setattr("helixfold.planning.estimate.available_memory", lambda device: 300 * 2**20)
    run(fasta, "--executor", "slabs", output=tmp_path / "out")
    assert folded == ["short", "long", "long"]
    assert "tried because of --executor slabs" in capsys.readouterr().out


def test_a_dry_run_tells_real_rows_and_bounds_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a3m = written(tmp_path / "one.a3m", f">one\n{SEQUENCE}\n>two\nMKTAYIAAKQ\n")
    database = written(tmp_path / "database.fasta", f">x\n{SEQUENCE}\n")
    before = sorted(tmp_path.rglob("*"))
    assert run(a3m, "--dry-run", output=tmp_path / "out") == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("one ")]
    assert row[:7] == ["one", "tiny", "10", "2", "1", "0", "whole"]
    assert run(a3m, "--dry-run", "--database", database, "--max-extra-rows", 100, output=tmp_path / "out") == 0
    assert "<= 60     <= 100         0" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_fewer_extra_rows_are_read_when_asked(fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def recorded(*arguments: object, **named: object) -> object:
        seen.append(arguments[1])
        raise RuntimeError("seen")

    monkeypatch.setattr(planned, "fold", recorded)
    run(fasta, "--max-extra-rows", 7, output=tmp_path / "out")
    run(fasta, "--max-extra-rows", 700, output=tmp_path / "out")
    assert [preset.sampling.max_extra_msa for preset in seen] == [7, 128]  # type: ignore[attr-defined]


def test_another_protein_of_the_same_name_is_not_overwritten(
    fasta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(fasta, output=tmp_path / "out")
    other = written(tmp_path / "other.fasta", ">one\nMKV\n")
    assert run(other, "--overwrite", output=tmp_path / "out") == 2
    assert "another protein with the name 'one'" in capsys.readouterr().err


def test_an_output_that_is_a_file_is_refused(fasta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fasta, output=written(tmp_path / "out", "x")) == 2
    assert "cannot be used as output directory" in capsys.readouterr().err
