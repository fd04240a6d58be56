"""Every result tells what made it, and goes on telling it when runs end midway, go on elsewhere or are damaged."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from Bio.PDB.MMCIF2Dict import MMCIF2Dict

from data_pipeline.features.complexes.feature_file import features_digest
from data_pipeline.features.schema import Features
from data_pipeline.parse.gemmi_chains import parse_pdb
from helixfold import __version__
from helixfold.apps.predict import lot
from helixfold.cli.main import INTERRUPTED
from helixfold.execution import environment
from helixfold.folding.provenance import recorded_command
from tests.apps.predict.conftest import SEQUENCE, Runs
from tests.results.test_modelcif import dictionary, needs_dictionaries

pytestmark = pytest.mark.usefixtures("quick")


def entries(runs: Runs) -> list[dict[str, Any]]:
    return json.loads((runs.target / "settings.json").read_text())["provenance"]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, another machine."""
    monkeypatch.setattr(lot, "device_name", lambda _: "another processor")


def test_programs_device_operators_features_and_command_are_recorded(fasta: Path, runs: Runs) -> None:
    runs(fasta, "--num-seeds", 2)
    (entry,) = entries(runs)  # once for all predictions of which it is true
    assert entry["predictions"] == ["tiny_seed_0", "tiny_seed_1"]
    assert entry["software"]["helixfold"] == __version__
    assert entry["software"]["torch"] == torch.__version__
    assert entry["device"]["kind"] == "cpu"
    assert entry["device"]["name"]
    assert (entry["threads"], entry["ranks"], entry["targets_at_once"]) == (1, 1, 1)
    assert (entry["executor"], entry["slab_budget"]) == ("whole", None)
    assert entry["backends"]["self_attention"] == ["rows"]
    assert entry["features"] == features_digest(Features.load(runs.target / "features.npz"))
    assert entry["command"][:3] == ["helixfold", "predict", str(fasta)]
    assert entry["command"][-2:] == ["--models", "tiny"]
    runs(fasta, "--executor", "slabs", "--overwrite")
    assert entries(runs)[0]["executor"] == "slabs"


def test_the_mmcif_file_tells_what_made_the_model(fasta: Path, runs: Runs, without_templates: Path) -> None:
    structure = Path(__file__).parents[3] / "examples/structures/helix_long.pdb"
    fasta.write_text(f">one\n{parse_pdb(structure.read_bytes()).chains[0].sequence}\n")
    database = fasta.parent / "database.fasta"
    database.write_text(f">row\n{SEQUENCE * 3}\n")
    runs(fasta, "--templates", structure, "--database", database)
    assert entries(runs)[0]["templates"] == ["helix_long_A"]
    weights = json.loads((runs.target / "settings.json").read_text())["predictions"]["tiny"]["weights"]
    text = (runs.target / "unrelaxed_tiny.cif").read_text()
    for word in (torch.__version__, weights, "parameters_sha256", "helix_long", "jackhmmer of pyhmmer", "num_recycles"):
        assert word in text, word
    # A model that reads no templates names none.
    (name,) = runs(fasta, "--templates", structure, "--database", database, "--weights", without_templates)
    assert entries(runs)[0]["templates"] == []
    assert "helix_long" not in (runs.target / f"unrelaxed_{name}.cif").read_text()


@needs_dictionaries
def test_the_mmcif_files_of_a_complex_and_a_chain_name_searches_and_templates_and_are_valid(
    fasta: Path, runs: Runs
) -> None:
    structure = Path(__file__).parents[3] / "examples/structures/helix_long.pdb"
    helix = parse_pdb(structure.read_bytes()).chains[0].sequence
    fasta.write_text(f">one chain_ids=H:L\n{helix}:{SEQUENCE}\n>two\n{helix}\n")
    folder = fasta.parent
    (folder / "relatives_2022_05.fasta").write_text(f">row\n{helix}\n")
    (folder / "uniprot.fasta").write_text(f">sp|P12345|ONE_HUMAN\n{helix}\n>sp|P12346|TWO_HUMAN\n{SEQUENCE * 3}\n")
    profile = folder / "profile.toml"
    profile.write_text(
        '[[alignments]]\nname = "mine"\ntool = "jackhmmer"\npath = "relatives_2022_05.fasta"\n'
        '[uniprot]\npath = "uniprot.fasta"\n'
    )
    runs(fasta, "--templates", structure, "--databases", profile, "--models", "tiny_multimer")
    settings = json.loads((runs.target / "settings.json").read_text())
    (entry,) = settings["provenance"]
    assert [(each["purpose"], [database["name"] for database in each["databases"]]) for each in entry["searches"]] == [
        ("alignment", ["relatives_2022_05.fasta"]),
        ("pairs", ["uniprot.fasta"]),
    ]
    assert settings["inputs"]["searches"] == [each["search"] for each in entry["searches"]]
    size = (folder / "relatives_2022_05.fasta").stat().st_size
    assert entry["searches"][0]["databases"][0] == {
        **{"name": "relatives_2022_05.fasta", "version": "2022_05", "size": size, "url": None}
    }
    # The other chain is like no template.
    assert entry["templates"] == ["chain H: helix_long_A"]
    complex_file, single_file = (runs.output / name / "unrelaxed_tiny_multimer.cif" for name in ("one", "two"))
    table = MMCIF2Dict(str(complex_file))
    assert table["_ma_data_ref_db.name"] == ["relatives_2022_05.fasta", "uniprot.fasta"]
    assert table["_ma_protocol_step.step_name"][1] == "search for relatives of several chains"
    assert table["_ma_template_details.target_asym_id"] == ["H"]
    (single,) = json.loads((runs.output / "two" / "settings.json").read_text())["provenance"]
    assert [each["purpose"] for each in single["searches"]] == ["alignment"]
    assert single["templates"] == ["helix_long_A"]
    for file in (complex_file, single_file):
        dictionary().validate(io.StringIO(file.read_text()))
    # A model of single chains reads the same template at the residues of this chain.
    runs(fasta, "--templates", structure, "--databases", profile, "--overwrite")
    assert entries(runs)[0]["templates"] == ["chain H: helix_long_A"]
    dictionary().validate(io.StringIO((runs.target / "unrelaxed_tiny.cif").read_text()))


def test_targets_that_are_folded_together_say_so(runs: Runs, tmp_path: Path) -> None:
    two = tmp_path / "two.fasta"
    two.write_text(">one\nMKTAYIAKQR\n>two\nMKTAYIAKQRA\n")
    runs(two, "--targets-at-once", 2)
    (entry,) = entries(runs)
    assert entry["targets_at_once"] == 2
    assert entry["executor"] == "whole"
    assert entry["backends"]["self_attention"]


@pytest.mark.usefixtures("elsewhere")
def test_a_result_of_another_machine_is_finished_and_keeps_its_record(
    fasta: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(fasta)
    monkeypatch.undo()
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: None)
    assert runs(fasta) == []
    assert "one: finished before, skipped" in runs.out
    runs(fasta, "--num-seeds", 2)
    one, other = entries(runs)
    assert (one["predictions"], one["device"]["name"]) == (["tiny"], "another processor")
    assert other["predictions"] == ["tiny_seed_1"]
    assert other["device"]["name"] == environment.device_name(torch.device("cpu"))


def test_a_run_that_ends_before_a_predictions_files_are_there_records_what_makes_it_in_the_end(
    fasta: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    runs(fasta)
    with monkeypatch.context() as patch:
        patch.setattr(lot, "write_prediction", ended)
        runs(fasta, "--num-seeds", 3)
    assert runs.code == INTERRUPTED
    # The record is there before the files, so that no files are without one.
    assert [entry["predictions"] for entry in entries(runs)] == [["tiny"], ["tiny_seed_1"]]
    with monkeypatch.context() as patch:
        patch.setattr(lot, "device_name", lambda _: "another processor")
        assert runs(fasta, "--num-seeds", 3) == ["tiny_seed_1", "tiny_seed_2"]
    assert [entry["predictions"] for entry in entries(runs)] == [["tiny"], ["tiny_seed_1", "tiny_seed_2"]]
    assert entries(runs)[1]["device"]["name"] == "another processor"


def test_a_record_of_a_prediction_that_is_not_there_is_left_out(fasta: Path, runs: Runs) -> None:
    runs(fasta, "--num-seeds", 2)
    for name in ("confidence_tiny_seed_1.json", "ranking_debug.json"):
        (runs.target / name).unlink()
    assert runs(fasta) == []
    assert [entry["predictions"] for entry in entries(runs)] == [["tiny_seed_0"]]


@pytest.mark.parametrize("damage", [None, 7, [7], [{}], [{"predictions": ["tiny"], "software": 1}], "removed"])
def test_results_without_a_readable_record_are_finished_and_stay_without(
    damage: object, fasta: Path, runs: Runs
) -> None:
    runs(fasta)
    path = runs.target / "settings.json"
    content = json.loads(path.read_text())
    content.pop("provenance")
    path.write_text(json.dumps(content if damage == "removed" else {**content, "provenance": damage}))
    assert runs(fasta) == []
    assert "one: finished before, skipped" in runs.out
    assert runs(fasta, "--num-seeds", 2) == ["tiny_seed_1"]
    assert [entry["predictions"] for entry in entries(runs)] == [["tiny_seed_1"]]


def test_commands_are_recorded_as_given_but_for_secrets_in_urls_and_the_end_of_long_ones() -> None:
    words = ("helixfold", "predict", "a b.fasta", "--seed=3", "50%?@x")
    assert recorded_command(words) == words
    secret = ("--msa-server", "https://me:pass@host:8080/api?key=abc", "--msa-server=HTTPS://me@host/?a=b")
    assert recorded_command(secret) == (
        "--msa-server",
        "https://***@host:8080/api?***",
        "--msa-server=HTTPS://***@host/?***",
    )
    long = recorded_command(("helixfold", "predict", *(f"{number:04d}.fasta" for number in range(10_000))))
    assert sum(map(len, long)) < 5000
    assert long[-1] == f"... and {10_002 - (len(long) - 1)} more words"
