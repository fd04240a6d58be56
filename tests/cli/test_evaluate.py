"""`helixfold evaluate`: tables, a plot, and one sentence about every pair that cannot be compared."""

import csv
import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import protein_from_chains
from helixfold.analysis.complexes import compare_complexes
from helixfold.cli.main import main
from helixfold.results.lock import locked_directory
from helixfold.results.packed import pack_targets
from helixfold.results.pdb import to_pdb
from tests.analysis.made_complexes import made_prediction, true_complex

EXAMPLES = Path(__file__).parents[2] / "examples" / "structures"
NAMES = ("helical_hairpin", "strand_helix", "meander", "polyproline")


@pytest.fixture
def batch(tmp_path: Path) -> tuple[Path, Path]:
    """Directories of predictions, the worse the less confident, and of what they should be."""
    predictions, references = tmp_path / "predictions", tmp_path / "references"
    references.mkdir()
    for number, name in enumerate(NAMES):
        source = EXAMPLES / f"{name}.pdb"
        shutil.copy(source, references)
        for rank in range(2):
            written(predictions / name / f"ranked_{rank}.pdb", source, off=0.2 + 0.5 * number + rank, seed=number)
    return predictions, references


def written(path: Path, source: Path, *, off: float, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    protein = protein_from_chains(read_structure(source).chains[:1])
    each = off * rng.uniform(0.2, 1.8, (len(protein.aatype), 1, 1))
    positions = protein.atom_positions + each * rng.normal(size=protein.atom_positions.shape)
    plddt = np.clip(97 - 20 * each[..., 0], 0, 100) * protein.atom_mask
    protein = replace(
        protein,
        atom_positions=(positions * protein.atom_mask[..., None]).astype(np.float32),
        b_factors=plddt.astype(np.float32),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_pdb(protein))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def content(output: Path) -> Any:
    return json.loads((output / "scores.json").read_text())


def test_a_batch_becomes_tables_and_a_plot(
    batch: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions, references = batch
    output = tmp_path / "out"
    assert main(["evaluate", str(predictions), str(references), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert sorted(path.name for path in output.iterdir()) == [
        ".helixfold.lock",
        "residues.tsv",
        "scores.json",
        "scores.png",
        "scores.tsv",
    ]
    table = rows(output / "scores.tsv")
    assert [row["target"] for row in table] == sorted(NAMES)
    by_name = {row["target"]: row for row in table}
    assert [float(by_name[name]["lddt_ca"]) for name in NAMES] == sorted(
        (float(row["lddt_ca"]) for row in table), reverse=True
    )
    for name in NAMES:
        assert name in printed
        assert f"{float(by_name[name]['tm_score']):.3f}" in printed
    assert "mean of 4" in printed
    assert "Pearson's correlation of pLDDT with lDDT-CA over targets: " in printed
    found = content(output)
    assert found["failures"] == {}
    assert found["summary"]["count"] == 4
    assert found["summary"]["pearson_targets"] > 0.9
    assert found["summary"]["pearson_residues"] > 0.5
    mean = np.mean([float(row["tm_score"]) for row in table])
    assert found["summary"]["means"]["tm_score"] == pytest.approx(mean, abs=1e-3)
    residues = rows(output / "residues.tsv")
    assert len(residues) == sum(int(row["residues"]) for row in table)
    assert 0 <= float(residues[0]["lddt"]) <= 1
    assert float(residues[0]["plddt"]) > 50
    assert (output / "scores.png").read_bytes().startswith(b"\x89PNG")


def test_all_ranks_are_compared_when_asked(batch: tuple[Path, Path], tmp_path: Path) -> None:
    predictions, references = batch
    output = tmp_path / "out"
    assert main(["evaluate", str(predictions), str(references), "-o", str(output), "--all-ranks"]) == 0
    assert [(row["target"], row["rank"]) for row in rows(output / "scores.tsv")] == [
        (name, str(rank)) for name in sorted(NAMES) for rank in range(2)
    ]
    assert content(output)["summary"]["count"] == 4


def test_a_directory_that_another_run_writes_into_is_refused(
    batch: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked_directory(tmp_path / "out"):
        assert main(["evaluate", *map(str, batch), "--output", str(tmp_path / "out")]) == 2
    assert "out: another run is writing there (process" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".helixfold.lock"]


def test_one_prediction_and_one_reference_may_be_files(batch: tuple[Path, Path], tmp_path: Path) -> None:
    predictions, _ = batch
    packed = tmp_path / "meander.pdb.gz"
    packed.write_bytes(gzip.compress((EXAMPLES / "meander.pdb").read_bytes()))
    output = tmp_path / "out"
    run = ["evaluate", str(predictions / "meander" / "ranked_0.pdb"), str(packed), "--output", str(output)]
    assert main(run) == 0
    (row,) = rows(output / "scores.tsv")
    assert (row["reference"], row["matched_by"]) == ("meander", "sequence")


def test_complexes_have_tables_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    true = true_complex("unlike", tmp_path)
    for name, text in (("predicted/target.pdb", made_prediction("unlike", true)), ("known/target.pdb", true)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    output = tmp_path / "out"
    run = ["evaluate", str(tmp_path / "predicted"), str(tmp_path / "known"), "--output", str(output)]
    assert main(run) == 0
    printed = capsys.readouterr().out
    found = compare_complexes(
        *(read_structure(tmp_path / name / "target.pdb").chains for name in ("predicted", "known"))
    )
    assert found is not None
    (row,) = rows(output / "complexes.tsv")
    assert row["mapping"] == " ".join(f"{theirs}={ours}" for theirs, ours in found.chains)
    assert float(row["dockq"]) == pytest.approx(found.dockq, abs=1e-4)
    assert float(row["interface_lddt"]) == pytest.approx(found.interface_lddt, abs=1e-4)
    assert f"{found.tm_score:.3f}" in printed
    table = rows(output / "interfaces.tsv")
    assert [(each["reference_chains"], each["capri"]) for each in table] == [
        (" ".join(each.reference_chains), each.capri) for each in found.interfaces
    ]
    assert [float(each["irms"]) for each in table] == pytest.approx([each.irms for each in found.interfaces], abs=1e-4)
    (entry,) = content(output)["complexes"]
    assert entry["dockq"] == float(row["dockq"])
    assert len(entry["interface_scores"]) == len(table) == entry["interfaces"]
    # What is no complex leaves no table of an earlier run, and a name may ask for one chain.
    (tmp_path / "predicted" / "target.pdb").rename(tmp_path / "predicted" / "target_B.pdb")
    assert main(run) == 0
    assert rows(output / "scores.tsv")[0]["reference_chain"] == "B"
    assert not (output / "complexes.tsv").exists()
    assert not (output / "interfaces.tsv").exists()
    assert content(output)["complexes"] == []
    assert "DockQ" not in capsys.readouterr().out


def test_pairs_that_cannot_be_compared_stop_no_others(
    batch: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions, references = batch
    (references / "meander.pdb").write_text("hello\n")
    shutil.copy(EXAMPLES / "helix_long.pdb", references / "polyproline.pdb")
    shutil.copy(EXAMPLES / "hairpin_short.pdb", references / "without.pdb")
    (predictions / "stranger").mkdir()
    shutil.copy(EXAMPLES / "polyproline.pdb", predictions / "stranger" / "ranked_0.pdb")
    (predictions / "broken").mkdir()
    (predictions / "broken" / "ranked_0.cif").write_text("data_x\n")
    output = tmp_path / "out"
    assert main(["evaluate", str(predictions), str(references), "--output", str(output)]) == 1
    printed = capsys.readouterr()
    failures = content(output)["failures"]
    assert {row["target"] for row in rows(output / "scores.tsv")} == {"helical_hairpin", "strand_helix"}
    assert any("meander.pdb" in name and "neither mmCIF" in why for name, why in failures.items())
    assert any(("polyproline" in name and "common" in why) or "different" in why for name, why in failures.items())
    assert any("stranger" in name and "a similar sequence" in why for name, why in failures.items())
    assert any("broken" in name for name in failures)
    for why in failures.values():
        assert why in printed.err
    assert "no prediction for without" in printed.err


def test_wrong_input_is_one_sentence_and_nothing_is_written(
    batch: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions, references = batch
    empty, file = tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.touch()
    output = tmp_path / "out"
    for arguments, words in (
        ([predictions, tmp_path / "absent"], "no such file or directory"),
        ([tmp_path / "absent", references], "no such file or directory"),
        ([empty, references], "it has no predictions"),
        ([predictions, empty], "has no structures"),
    ):
        assert main(["evaluate", *map(str, arguments), "--output", str(output)]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
        assert not output.exists()
    assert main(["evaluate", str(predictions), str(references), "--output", str(file)]) == 2
    assert "is a file" in capsys.readouterr().err


def test_packed_predictions_have_the_same_scores(batch: tuple[Path, Path], tmp_path: Path) -> None:
    predictions, references = batch
    both = tmp_path / "first", tmp_path / "second"
    assert main(["evaluate", str(predictions), str(references), "--output", str(both[0]), "--all-ranks"]) == 0
    for name in NAMES[:3]:
        (predictions / name / "ranking_debug.json").write_text("{}")
    assert pack_targets(predictions, NAMES[:3], lambda _: {}) == {}
    assert main(["evaluate", str(predictions), str(references), "--output", str(both[1]), "--all-ranks"]) == 0
    tables = [[(output / name).read_bytes() for name in ("scores.tsv", "residues.tsv")] for output in both]
    assert tables[0] == tables[1]
    one = tmp_path / "one"
    assert main(["evaluate", str(predictions / NAMES[0]), str(references), "--output", str(one)]) == 0
    assert [row["target"] for row in rows(one / "scores.tsv")] == [NAMES[0]]
    assert sorted(path.name for path in predictions.iterdir()) == sorted(["packed", NAMES[3]])
