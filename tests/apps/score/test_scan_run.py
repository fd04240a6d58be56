"""Scores of mutants, their tables, and the order of a scan's work, with predictions that are made up."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.pipeline import Target
from data_pipeline.residues import ATOM_ORDER, RESTYPES
from helixfold.analysis.metrics import residue_lddt
from helixfold.apps.score import network
from helixfold.apps.score.mutations import Mutant, TargetChains, read_mutant
from helixfold.apps.score.network import Network, _load
from helixfold.apps.score.scan_run import (
    MEASURES,
    ScannedTarget,
    _range,
    changes_of,
    map_data,
    screen_lines,
    write_scan,
)
from helixfold.cli.main import main
from helixfold.folding.prediction import Prediction, PredictionIdentity
from helixfold.folding.recycling import FoldingTarget
from helixfold.model.presets import tiny
from tests.apps.score.structure_files import protein

SEQUENCE = "MKTAYIAKQ"
CHANNELS = tiny().model.evoformer.c_m
CHAINS = TargetChains.of(Target(name="t", sequence=SEQUENCE))


def made(sequence: str, **values: object) -> Prediction:
    """A prediction whose numbers are those of its sequence."""
    rng, count = np.random.default_rng(list(sequence.encode())), len(sequence)
    given: dict[str, object] = {
        "name": "tiny",
        "identity": PredictionIdentity(model="tiny"),
        "structure": protein(sequence.replace("X", "A"), seed=int(rng.integers(9)), noise=0.3),
        "plddt": rng.uniform(30, 90, count).astype(np.float32),
        "pae": rng.uniform(1, 20, (count, count)).astype(np.float32),
        "max_pae": 31.75,
        "ptm": float(rng.uniform()),
        "iptm": None,
        "ranking_confidence": 0.8,
        "num_recycles": 0,
        "converged": False,
        "chain_ids": ("A",),
        "representations": {"msa_first_row": rng.normal(size=(count, CHANNELS)).astype(np.float32)},
    }
    return Prediction(**{**given, **values})  # type: ignore[arg-type]


def mutants(*names: str) -> tuple[Mutant, ...]:
    return tuple(read_mutant(CHAINS, name) for name in names)


def test_changes_are_the_mutants_values_less_the_wild_types() -> None:
    (mutant,) = mutants("K2W:I6G")
    one, wild = made("MWTAYGAKQ", iptm=0.5), made(SEQUENCE, iptm=0.25)
    found = changes_of(mutant, one, wild)
    sites = [1, 5]
    crossing = [
        np.mean([each.pae[i, j] for i in sites for j in range(9)] + [each.pae[j, i] for i in sites for j in range(9)])
        for each in (one, wild)
        if each.pae is not None
    ]
    assert one.pae is not None
    assert wild.pae is not None
    alpha = [each.protein.atom_positions[:, ATOM_ORDER["CA"]] for each in (one, wild)]
    by_residue, lddt = residue_lddt(*alpha, np.arange(9))
    expected = {
        "plddt": one.plddt.mean(),
        "plddt_change": one.plddt.mean() - wild.plddt.mean(),
        "site_plddt_change": one.plddt[sites].mean() - wild.plddt[sites].mean(),
        "pae_change": one.pae.mean() - wild.pae.mean(),
        "site_pae_change": crossing[0] - crossing[1],
        "ptm_change": (one.ptm or 0) - (wild.ptm or 0),
        "iptm_change": 0.25,
        "lddt": lddt,
        "site_lddt": by_residue[sites].mean(),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    bare = changes_of(mutant, replace(one, pae=None, max_pae=None, ptm=None, iptm=None), wild)
    assert all(bare[name] is None for name in ("pae_change", "site_pae_change", "ptm_change", "iptm_change"))


@pytest.fixture
def scanned() -> ScannedTarget:
    chosen = mutants("K2A", "T3W", "K2A:T3S", "Y5A")
    results = {
        mutant.name: {"plddt": 50.0 + place, "lddt": 0.9 - place / 10, "ptm_change": None, "pae_change": place / 3}
        for place, mutant in enumerate(chosen)
    }
    return ScannedTarget(
        chains=CHAINS,
        mutants=chosen,
        results=results,
        log_likelihoods={place: np.log(np.arange(1, 21) / 210) - place for place in (1, 2, 4)},
        wild_type=made(SEQUENCE, notes=("a note",)),
        settings={"model": "tiny", "num_recycles": 1, "seed": 7},
    )


def test_tables_have_every_mutant_with_its_numbers(scanned: ScannedTarget, tmp_path: Path) -> None:
    write_scan(tmp_path, scanned)
    with (tmp_path / "mutations.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    positions = ("2", "3", "2:3", "5")
    names = ("K2A", "T3W", "K2A:T3S", "Y5A")
    for place, row in enumerate(rows):
        assert row == {
            **{"mutation": names[place], "position": positions[place], "lddt": str(round(0.9 - place / 10, 4))},
            **{"pae_change": str(round(place / 3, 4)), "plddt": str(50.0 + place)},
        }
    content = json.loads((tmp_path / "mutations.json").read_text())
    wild = scanned.wild_type
    assert content["wild_type"] == {
        **{"plddt": round(float(wild.plddt.mean(dtype=np.float64)), 2), "ptm": round(wild.ptm or 0, 4), "iptm": None}
    }
    assert (content["target"], content["notes"], content["amino_acids"]) == ("t", ["a note"], RESTYPES)
    assert content["settings"] == scanned.settings
    assert list(content["masked_log_likelihoods"]) == ["2", "3", "5"]
    assert content["masked_log_likelihoods"]["3"] == [round(np.log(k / 210) - 2, 4) for k in range(1, 21)]
    assert content["mutations"][1] == {
        **{"mutation": "T3W", "plddt": 51.0, "lddt": 0.8, "ptm_change": None, "pae_change": 0.3333}
    }
    page = (tmp_path / "mutations.html").read_text()
    words = " ".join(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL).split())
    for each in ("4 mutants at 3 positions", "Note. a note", "Model tiny, 1 recycle, seed 7", "T3W 0.800 0.333 51.0"):
        assert each in words
    assert "more are in mutations.tsv" not in words
    header, *lines = screen_lines(scanned)
    assert header.split()[-2:] == ["pae_change", "lddt"]
    assert [line.split() for line in lines[:2]] == [["Y5A", "1.000", "0.600"], ["K2A:T3S", "0.667", "0.700"]]


def test_the_map_has_rows_of_the_amino_acids_that_occur(scanned: ScannedTarget) -> None:
    found = map_data(scanned)
    # In the order of their side chains; the substitution of two residues has no cell.
    assert found["rows"] == "AWYTK"
    assert found["positions"] == [["2", "K"], ["3", "T"], ["5", "Y"]]
    lddt, pae, plddt = found["measures"]
    assert lddt["cells"] == [[0.9, None, 0.6], [None, 0.8, None], *[[None] * 3] * 3]
    assert [each["digits"] for each in (lddt, pae, plddt)] == [3, 3, 1]
    assert [each["isLoss"] for each in (lddt, pae, plddt)] == [False, True, False]
    assert (pae["range"], plddt["range"]) == ([-2.0, 2.0], [50.0, 100.0])


def test_scales_of_differences_are_even_and_span_at_least_a_floor() -> None:
    change, rmsd, score = (MEASURES[name] for name in ("plddt_change", "rmsd", "lddt"))
    assert _range([], change) is None
    assert (_range([-18.0, 2.0], change), _range([0.3], change)) == ([-18.0, 18.0], [-10.0, 10.0])
    assert (_range([2.0, 5.0], rmsd), _range([0.1], rmsd)) == ([0.0, 5.0], [0.0, 4.0])
    assert (_range([0.5, 0.75], score), _range([0.99], score)) == ([0.5, 1.0], [0.8, 1.0])


def test_a_map_says_when_no_mutant_moves(scanned: ScannedTarget) -> None:
    changes = {"plddt": 50.0, "lddt": 0.97, "rmsd": 0.9, "pae_change": 0.0}
    still = {mutant.name: {**changes, "pae_change": 0.1 * place} for place, mutant in enumerate(scanned.mutants)}
    found = {each["title"]: each["flatBelow"] for each in map_data(replace(scanned, results=still))["measures"]}
    assert found == {
        **{"lDDT to the wild type": 0.05, "Change of PAE, Å": 0.5, "RMSD to the wild type, Å": 1.0, "pLDDT": None}
    }
    still["Y5A"] |= {"lddt": 0.949, "pae_change": -0.51}
    found = {each["title"]: each["flatBelow"] for each in map_data(replace(scanned, results=still))["measures"]}
    assert (found["lDDT to the wild type"], found["Change of PAE, Å"]) == (None, None)


def test_mutants_link_to_the_structures_that_were_written(scanned: ScannedTarget, tmp_path: Path) -> None:
    write_scan(tmp_path, scanned)
    page = (tmp_path / "mutations.html").read_text()
    assert 'href="./wild_type.pdb"' in page
    assert "pass --save-structures" in page
    (tmp_path / "structures").mkdir()
    names = ("K2A", "T3W", "K2A_T3S", "Y5A")
    for name in names:
        (tmp_path / "structures" / f"{name}.pdb").touch()
    write_scan(tmp_path, scanned)
    page = (tmp_path / "mutations.html").read_text()
    assert re.findall(r'href="./structures/(\w+).pdb"', page) == [*names]
    assert "pass --save-structures" not in page


Runs = Callable[..., tuple[int, list[list[str]]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs `scan` with made-up predictions; returns the sequences of each lot that was folded."""
    monkeypatch.setattr(network, "_load", cache(_load))
    (tmp_path / "one.fasta").write_text(f">one\n{SEQUENCE}\n")
    words = [
        str(tmp_path / "one.fasta"),
        "--model",
        "tiny",
        "--device",
        "cpu",
        "--batch-size",
        "2",
        "--output",
        str(tmp_path / "out"),
    ]

    def of(*options: str, stop: int = 99) -> tuple[int, list[list[str]]]:
        lots: list[list[str]] = []

        def fold(self: Network, targets: Sequence[FoldingTarget]) -> list[Prediction]:
            assert self.model.preset.sampling.masked_msa_fraction == 0
            assert self.folding.representations == ("msa_first_row",)
            lots.append([each.features.sequence for each in targets])
            if len(lots) == stop:
                raise KeyboardInterrupt
            return [made(each.features.sequence) for each in targets]

        monkeypatch.setattr(Network, "fold", fold)
        return main(["scan", *words, *options]), lots

    return of


def test_the_wild_type_is_folded_then_hidden_positions_then_mutants(
    run: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ("--positions", "2-4", "--to", "AW")
    hidden = [["MXTAYIAKQ", "MKXAYIAKQ"], ["MKTXYIAKQ"]]
    single = ["MATAYIAKQ", "MWTAYIAKQ", "MKAAYIAKQ", "MKWAYIAKQ", "MKTWYIAKQ"]
    assert run(*chosen, stop=5) == (130, [[SEQUENCE], *hidden, single[:2], single[2:4]])
    assert run(*chosen) == (0, [[SEQUENCE], single[2:4], single[4:]])
    directory = tmp_path / "out" / "one"
    said = capsys.readouterr().out
    assert "one: 2 mutants of an earlier run (--overwrite predicts them again)" in said
    assert f"one: 5 mutants -> {directory}" in said
    with (directory / "mutations.tsv").open(newline="") as file:
        rows = {row["mutation"]: row for row in csv.DictReader(file, delimiter="\t")}
    wild = made(SEQUENCE)
    for name, sequence in zip(rows, single, strict=True):
        assert float(rows[name]["plddt"]) == pytest.approx(made(sequence).plddt.mean(), abs=1e-4)
        assert float(rows[name]["ptm_change"]) == pytest.approx((made(sequence).ptm or 0) - (wild.ptm or 0), abs=1e-4)
        assert rows[name]["masked_marginal"] != rows[name]["wild_type_marginal"]
    # The difference of two logarithms that the file has for the hidden position.
    content = json.loads((directory / "mutations.json").read_text())
    by_letter = dict(zip(RESTYPES, content["masked_log_likelihoods"]["3"], strict=True))
    assert float(rows["T3W"]["masked_marginal"]) == pytest.approx(by_letter["W"] - by_letter["T"], abs=2e-4)
    assert content["settings"]["command"] == "scan"
    assert (directory / "wild_type.pdb").read_text().count(" CA ") == 9
    assert not (directory / "structures").exists()
    # Structures are made where they are missing, and everything again with --overwrite.
    assert run(*chosen, "--save-structures") == (0, [[SEQUENCE], single[:2], single[2:4], single[4:]])
    assert len(list((directory / "structures").iterdir())) == 5
    assert run(*chosen, "--likelihoods=false", "--overwrite") == (0, [[SEQUENCE], single[:2], single[2:4], single[4:]])
    assert "masked_marginal" not in (directory / "mutations.tsv").read_text()
    capsys.readouterr()
    assert run(*chosen, "--seed", "1") == (1, [])
    assert "made before with other settings (seed 0, now 1; other weights of tiny)" in capsys.readouterr().err


def test_an_alignment_that_seems_to_be_of_a_complex_is_reported(
    run: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half, gaps = len(SEQUENCE) // 2, "-" * len(SEQUENCE)
    rows = SEQUENCE, SEQUENCE[:half] + gaps[half:], gaps[:half] + SEQUENCE[half:]
    (tmp_path / "one.a3m").write_text("".join(f">row\n{row}\n" for row in rows))
    assert run("--positions", "2", "--to", "A", "--msa", str(tmp_path / "one.a3m"))[0] == 0
    note = f"helixfold: one: {tmp_path / 'one.a3m'} looks like an alignment of 2 chains, but is used for one; "
    assert capsys.readouterr().err.count(note) == 1


def test_a_table_of_mutants_is_scanned_with_names_of_files_that_have_no_colon(run: Runs, tmp_path: Path) -> None:
    (tmp_path / "m.tsv").write_text("mutation\nK2A:T3S\n")
    code, lots = run("--table", str(tmp_path / "m.tsv"), "--save-structures", "--likelihoods=false")
    assert (code, lots) == (0, [[SEQUENCE], ["MASAYIAKQ"]])
    assert [path.name for path in tmp_path.glob("out/*/structures/*")] == ["K2A_T3S.pdb"]
