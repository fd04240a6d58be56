"""`helixfold scan` compares mutants with their wild type, from one search, and goes on where it was killed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.pipeline import Target
from helixfold.apps.score import network, scan_run
from helixfold.apps.score.mutations import TargetChains, read_mutant
from helixfold.apps.score.scan_run import MEASURES, changes_of, map_data
from helixfold.cli.main import main
from helixfold.execution.whole import Whole
from helixfold.folding.options import FoldingOptions
from helixfold.model.presets import tiny
from helixfold.weights.untrained import untrained_model
from tests.support.folding import fold_one

SEQUENCE = "MKTAYIAKQRQI"
TINY = ["--model", "tiny", "--num-recycles", "0", "--device", "cpu"]


def rows(directory: Path) -> dict[str, dict[str, str]]:
    header, *lines = (directory / "mutations.tsv").read_text().splitlines()
    found = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    return {line["mutation"]: line for line in found}


@pytest.mark.integration
def test_mutants_are_folded_once_from_one_search_in_lots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.fasta").write_text(f">one\n{SEQUENCE}\n")
    lots: list[int] = []
    prepared: list[str] = []
    real, prepare = network.Network.fold, scan_run.prepare_in

    def counting(self: network.Network, targets: list[object]) -> object:
        lots.append(len(targets))
        if len(lots) == 4:
            raise KeyboardInterrupt
        return real(self, targets)  # type: ignore[arg-type]

    def preparing(directory: Path, target: Target, plan: object) -> object:
        prepared.append(target.name)
        return prepare(directory, target, plan)  # type: ignore[arg-type]

    monkeypatch.setattr(network.Network, "fold", counting)
    monkeypatch.setattr(scan_run, "prepare_in", preparing)
    output = tmp_path / "out"
    words = ["scan", str(tmp_path / "one.fasta"), *TINY, "--positions", "2-3", "12", "--to", "AW", "--batch-size", "4"]
    words += ["--output", str(output)]
    assert main(words) == 130
    assert lots == [1, 3, 4, 2]  # the wild type, three hidden positions, six mutants
    assert main(words) == 0
    assert lots[4:] == [1, 2]
    assert prepared == ["one", "one"]
    assert "one: 4 mutants of an earlier run" in capsys.readouterr().out
    found = rows(output / "one")
    assert list(found) == ["K2A", "K2W", "T3A", "T3W", "I12A", "I12W"]
    assert (output / "one" / "wild_type.pdb").is_file()
    assert not (output / "one" / "structures").exists()
    assert main([*words, "--save-structures"]) == 0
    assert lots[6:] == [1, 4, 2]
    assert len(list((output / "one" / "structures").iterdir())) == 6
    content = json.loads((output / "one" / "mutations.json").read_text())
    assert content["masked_log_likelihoods"].keys() == {"2", "3", "12"}
    for row in found.values():
        assert 0 < float(row["lddt"]) <= 1
        assert float(row["masked_marginal"]) != float(row["wild_type_marginal"])
    page = (output / "one" / "mutations.html").read_text()
    assert "Not a prediction: random parameters." in page
    assert "6</span>" in page
    # What was folded in lots is what each is alone, but for rounding.
    features = target_features(Target(name="one", sequence=SEQUENCE.replace("K", "W", 1)))
    preset = tiny()
    preset = replace(preset, sampling=replace(preset.sampling, masked_msa_fraction=0.0))
    model = untrained_model(preset.model, 0)
    options = FoldingOptions(num_recycles=0)
    made = fold_one(model, Whole(), features, preset, options)
    assert float(found["K2W"]["plddt"]) == pytest.approx(made.plddt.mean(), abs=1e-2)


@pytest.mark.integration
def test_incomplete_results_of_an_earlier_run_are_made_again(tmp_path: Path) -> None:
    words = ["scan", SEQUENCE, *TINY, "--positions", "2", "--to", "AW", "--output", str(tmp_path / "out")]
    assert main(words) == 0
    (journal,) = tmp_path.glob("out/*/mutants.jsonl")
    table = journal.with_name("mutations.tsv").read_text()
    settings, *lines = journal.read_text().splitlines()
    empty = [json.dumps(json.loads(line) | {"result": {}}) for line in lines]
    journal.write_text("\n".join([settings, *empty, ""]))
    assert main(words) == 0
    assert journal.with_name("mutations.tsv").read_text() == table


def test_changes_are_those_to_the_wild_type() -> None:
    target = Target(name="t", sequence=SEQUENCE)
    made = fold_one(
        untrained_model(tiny().model, 0),
        Whole(),
        target_features(target),
        tiny(),
        FoldingOptions(num_recycles=0),
    )
    mutant = read_mutant(TargetChains.of(target), "K2A")
    same = changes_of(mutant, made, made)
    expected = {"plddt_change": 0, "site_plddt_change": 0, "pae_change": 0, "ptm_change": 0, "lddt": 1, "rmsd": 0}
    for name, value in expected.items():
        assert same[name] == pytest.approx(value, abs=1e-4)
    lower = np.where(np.arange(len(SEQUENCE)) == 1, 0, made.plddt).astype(np.float32)
    changed = changes_of(mutant, replace(made, plddt=lower), made)
    assert changed["site_plddt_change"] == pytest.approx(-made.plddt[1], rel=1e-5)
    assert changed["plddt_change"] == pytest.approx(-made.plddt[1] / len(SEQUENCE), rel=1e-4)
    assert same["iptm_change"] is None


@pytest.mark.integration
def test_complexes_have_chains_in_the_names_and_a_bad_target_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.fasta").write_text(f">bad\n{SEQUENCE}:GSHM\n>two\n{SEQUENCE[:6]}:GSHM\n")
    (tmp_path / "m.tsv").write_text("id\tmutation\nbad\tA.M1A\ntwo\tB.H3W\ntwo\tA.K2A:B.G1A\n")
    prepare = scan_run.prepare_in

    def preparing(directory: Path, target: Target, plan: object) -> object:
        if target.name == "bad":
            raise RuntimeError("no search today")
        return prepare(directory, target, plan)  # type: ignore[arg-type]

    monkeypatch.setattr(scan_run, "prepare_in", preparing)
    output = tmp_path / "out"
    words = ["scan", str(tmp_path / "two.fasta"), "--table", str(tmp_path / "m.tsv"), "--output", str(output)]
    assert main([*words, "--model", "tiny_multimer", "--num-recycles", "0", "--device", "cpu"]) == 1
    assert "bad: failed: RuntimeError: no search today" in capsys.readouterr().err
    assert json.loads((output / "failures.json").read_text()) == {"bad": "RuntimeError: no search today"}
    found = rows(output / "two")
    assert [row["position"] for row in found.values()] == ["B.3", "A.2:B.1"]
    assert {"iptm_change", "masked_marginal"} <= found["B.H3W"].keys()


def test_the_heat_map_has_every_single_mutant_in_its_cell() -> None:
    target = Target(name="t", sequence="MK")
    chains = TargetChains.of(target)
    mutants = tuple(read_mutant(chains, name) for name in ("K2A", "M1W", "M1A:K2R"))
    results = {
        mutant.name: dict.fromkeys(MEASURES) | {"plddt_change": value, "lddt": 0.5}
        for mutant, value in zip(mutants, (-2.0, 1.0, 9.0), strict=True)
    }
    wild_type = fold_one(
        untrained_model(tiny().model, 0),
        Whole(),
        target_features(Target(name="t", sequence="MKMK")),
        tiny(),
        FoldingOptions(num_recycles=0),
    )
    scanned = scan_run.ScannedTarget(
        chains=chains, mutants=mutants, results=results, log_likelihoods=None, wild_type=wild_type, settings={}
    )
    found = map_data(scanned)
    assert found["positions"] == [["1", "M"], ["2", "K"]]
    change, likeness = found["measures"]
    assert (change["title"], change["range"]) == ("Change of pLDDT", [-10.0, 10.0])
    assert (likeness["title"], likeness["range"]) == ("lDDT to the wild type", [0.5, 1.0])
    cells = {
        (row, column): value
        for row, values in zip(found["rows"], change["cells"], strict=True)
        for column, value in enumerate(values)
        if value is not None
    }
    assert cells == {("A", 1): -2.0, ("W", 0): 1.0}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--positions 99", "target 'one': position 99 is outside the sequence, which has residues 1 to 12"),
        ("--positions 3 --table m.tsv", "--positions and --table cannot be combined"),
        ("--to B", "--to must be letters of amino acids"),
        ("--table m.tsv", "m.tsv, line 2, record 'W2A': target 'one': residue 2 is K, not W"),
    ],
)
def test_what_does_not_match_is_one_sentence_and_writes_nothing(
    words: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.fasta").write_text(f">one\n{SEQUENCE}\n")
    Path("m.tsv").write_text("mutation\nW2A\n")
    assert main(["scan", "one.fasta", *TINY, "--output", "out", *words.split()]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1
    assert not Path("out").exists()
