"""Tables, the page and the batch of `helixfold score`, with predictions that are made up."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from helixfold.apps.score import network, score_run
from helixfold.apps.score.network import Network, _load
from helixfold.apps.score.score_run import ScoredLine, correlations, screen_lines, write_scores
from helixfold.apps.score.structures import read_scored
from helixfold.cli.main import main
from helixfold.folding.prediction import Prediction, PredictionIdentity
from helixfold.folding.recycling import FoldingTarget
from tests.apps.score.structure_files import SEQUENCE, protein, write
from tests.weights.written import write_tiny_without_templates

SETTINGS = {"num_recycles": 1, "seed": 7}
RANDOM = np.random.default_rng(0)
VALUES = {
    name: RANDOM.uniform(0.1, 0.9, 9).tolist()
    for name in ("composite", "ptm", "pae_interaction", "tm_to_native", "lddt_to_native")
}


def line(place: int, target: str = "t", problem: str | None = None, **scores: Any) -> ScoredLine:
    known = {} if problem else {name: values[place] for name, values in VALUES.items()}
    known |= {"protocol": "template", "model": "tiny"} if not problem else {}
    return ScoredLine(target=target, name=f"d{place}", rank=place, problem=problem, scores=known | scores)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helixfold.analysis.intervals.RESAMPLES", 500)


LINES = [
    *(line(place) for place in range(5)),
    *(line(place, "u") for place in range(5, 9)),
    line(9, "u", "it is torn"),
]


def test_correlations_are_means_of_those_of_targets_and_errors_count_the_other_way() -> None:
    found = {(each.score, each.truth): each for each in correlations(LINES[::-1])}
    scores, truths = ("composite", "ptm", "pae_interaction"), ("tm_to_native", "lddt_to_native")
    assert list(found) == [(score, truth) for truth in truths for score in scores]
    for (score, truth), each in found.items():
        rho = [
            spearmanr(VALUES[score][part], VALUES[truth][part]).statistic * (-1 if score == "pae_interaction" else 1)
            for part in (slice(0, 5), slice(5, 9))
        ]
        assert each.value.value == pytest.approx(np.mean(rho))
        assert (each.targets, each.structures) == (2, 9)
    # Intervals do not depend on the order of the lines.
    assert correlations(LINES[:5]) == correlations(LINES[4::-1])
    # One target has the interval of its own pairs. A structure without the native and a target of two do not count.
    (alone, *_) = correlations([*LINES[:5], line(5, tm_to_native=None), *LINES[7:9]])
    assert (alone.targets, alone.structures) == (1, 5)
    assert alone.value.low < alone.value.value < alone.value.high


def test_the_screen_has_the_best_twenty_and_how_scores_rank() -> None:
    many = [
        line(0, name, pae_interaction=float(place), iptm=None) for place, name in enumerate("abcdefghijklmnopqrstuvw")
    ]
    header, *lines = screen_lines([*many, LINES[-1]])
    assert header.split() == ["target", "structure", "protocol", "pae_interaction", "composite", "ptm", "tm_to_native"]
    expected = [VALUES[name][0] for name in ("composite", "ptm", "tm_to_native")]
    assert lines[1].split() == ["2", "b", "d0", "template", "1.00", *(f"{value:.3f}" for value in expected)]
    assert len([each for each in lines if " template " in each]) == 20
    assert lines[20:] == ["and 3 more in scores.tsv"]
    first = correlations(LINES)[0]
    (told,) = (each for each in screen_lines(LINES) if "Spearman of composite with tm_to_native" in each)
    interval = f"{first.value.value:.2f} [{first.value.low:.2f}, {first.value.high:.2f}]"
    assert told.endswith(f": {interval} (mean over 2 targets, 9 structures)")
    assert list(screen_lines(LINES[:5]))[-1].endswith("] (5 structures)")
    assert list(screen_lines([LINES[-1]])) == []


def test_tables_and_the_page_have_the_best_first_and_failures_last(tmp_path: Path) -> None:
    write_scores(tmp_path, LINES, SETTINGS, ["a note"])
    order = sorted(range(9), key=lambda place: VALUES["pae_interaction"][place])
    with (tmp_path / "scores.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for place, row in zip(order, rows, strict=False):
        values = {name: str(round(values[place], 4)) for name, values in VALUES.items()}
        assert row == {
            "rank": str(order.index(place) + 1),
            "target": "t" if place < 5 else "u",
            "structure": f"d{place}",
            "own_rank": str(place),
            **values,
            "protocol": "template",
            "model": "tiny",
            "problem": "NA",
        }
    assert (rows[9]["rank"], rows[9]["own_rank"], rows[9]["problem"]) == ("NA", "9", "it is torn")
    content = json.loads((tmp_path / "scores.json").read_text())
    assert (content["settings"], content["notes"]) == (SETTINGS, ["a note"])
    assert content["ranked_by"] == "pae_interaction"
    assert [each["structure"] for each in content["structures"]] == [f"d{place}" for place in (*order, 9)]
    assert content["structures"][0]["composite"] == round(VALUES["composite"][order[0]], 4)
    assert content["structures"][9] == {"target": "u", "structure": "d9", "own_rank": 9, "problem": "it is torn"}
    first = correlations(LINES)[0]
    assert content["correlations"][0] == {
        **{"score": "composite", "truth": "tm_to_native", "targets": 2, "structures": 9},
        **{
            "spearman": round(first.value.value, 4),
            "low": round(first.value.low, 4),
            "high": round(first.value.high, 4),
        },
    }
    page = (tmp_path / "scores.html").read_text()
    words = " ".join(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL).split())
    for each in (
        f"{tmp_path.name} · scores",
        "Note. a note",
        "9 of 10 structures scored",
        "1 could not be scored",
        "Ranked by PAE between binder and target, Å, the smallest first. 1 recycle, seed 7.",
        "The same for all: protocol template, model tiny.",
        "Rank Target Structure PAE between binder and target, Å Composite",
        "Composite TM-score to the native",
        "u d9 not scored: it is torn",
    ):
        assert each in words
    # Other values of a column are in the table.
    write_scores(
        tmp_path, [line(0, residues=9, chains=1), line(1, residues=8, chains=1, protocol="initial_guess")], SETTINGS, []
    )
    words = " ".join(re.sub(r"<[^>]*>", " ", (tmp_path / "scores.html").read_text()).split())
    assert "The same for all: target t, model tiny, chains 1." in words
    assert "Rank Structure Protocol PAE" in words
    assert "d1 initial guess" in words
    assert "Residues" in words
    assert "Chains" not in words
    # A circle for each structure: the native's TM-score to the right, the error upwards, both from end to end.
    circles = re.findall(r'<circle cx="(.*?)" cy="(.*?)" r="1.1"><title>(.*?)</title>', page)
    across, up = ([VALUES[name][place] for place in order] for name in ("tm_to_native", "pae_interaction"))
    for place, (x, y, name) in enumerate(circles):
        share = [(values[place] - min(values)) / (max(values) - min(values)) for values in (across, up)]
        assert float(x) == pytest.approx(100 * (0.05 + share[0]) / 1.1, abs=0.01)
        assert float(y) == pytest.approx(100 - 100 * (0.05 + share[1]) / 1.1, abs=0.01)
        assert name == f"{'t' if order[place] < 5 else 'u'} d{order[place]}: {across[place]:.3f}, {up[place]:.3f}"
    assert len(circles) == 9
    low = min(up) - 0.05 * (max(up) - min(up))
    assert f"<span>{low:.3g}</span><span>PAE between binder and target, Å</span>" in page


Runs = Callable[..., tuple[int, list[list[tuple[int, bool]]]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs `score` with a network that returns the given atoms of a chain, and what it was given: lots of lengths and
    whether there was an initial guess.
    """

    def of(*words: str, fails: int = 0) -> tuple[int, list[list[tuple[int, bool]]]]:
        lots: list[list[tuple[int, bool]]] = []

        def fold(self: Network, targets: Sequence[FoldingTarget]) -> list[Prediction]:
            lots.append([(len(each.features.sequence), each.initial_guess is not None) for each in targets])
            if len(targets) > 1 and fails:
                raise RuntimeError("too much at once")
            if lots[-1][0][0] == fails:
                raise RuntimeError("too long")
            return [made(each.features.sequence) for each in targets]

        monkeypatch.setattr(Network, "fold", fold)
        monkeypatch.setattr(network, "_load", cache(_load))
        return main(["score", *words, "--device", "cpu", "--output", str(tmp_path / "out")]), lots

    return of


def made(sequence: str) -> Prediction:
    folded = protein(*sequence.split(":"))
    residues = len(folded.aatype)
    return Prediction(
        name="tiny",
        identity=PredictionIdentity(model="tiny"),
        structure=folded,
        plddt=np.full(residues, 80.0, np.float32),
        pae=np.full((residues, residues), 5.0, np.float32),
        max_pae=31.75,
        ptm=0.5,
        iptm=None,
        ranking_confidence=0.8,
        num_recycles=0,
        converged=False,
        chain_ids=tuple("AB"[: sequence.count(":") + 1]),
    )


def rows(output: Path) -> dict[str, dict[str, str]]:
    header, *lines = (output / "scores.tsv").read_text().splitlines()
    found = [dict(zip(header.split("\t"), each.split("\t"), strict=True)) for each in lines]
    return {each["structure"]: each for each in found}


def test_neighbours_of_one_length_are_folded_together_and_alone_where_that_fails(
    tmp_path: Path, run: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, length in (("a", 9), ("b", 9), ("c", 9), ("d", 7), ("e", 9), ("f", 8)):
        write(tmp_path / "in" / f"{name}.pdb", SEQUENCE[:length])
    words = [str(tmp_path / "in"), "--model", "tiny", "--batch-size", "2", "--save-structures"]
    code, lots = run(*words)
    assert (code, [[length for length, _ in lot] for lot in lots]) == (0, [[9, 9], [9], [7], [9], [8]])
    assert not any(has_guess for lot in lots for _, has_guess in lot)
    assert (tmp_path / "out" / "structures" / "in" / "d.pdb").read_text().count(" CA ") == 7
    said = capsys.readouterr()
    assert "helixfold: single chains: protocol template, model tiny, 1 recycle\n" in said.out
    assert said.out.endswith(f"-> {tmp_path / 'out'}\n")
    # One that fails is tried alone, and stops no other.
    code, lots = run(*words, "--overwrite", "--protocol", "initial_guess", fails=7)
    assert (code, [[length for length, _ in lot] for lot in lots]) == (1, [[9, 9], [9], [9], [9], [7], [9], [8]])
    assert all(has_guess for lot in lots for _, has_guess in lot)
    found = rows(tmp_path / "out")
    assert found["d"]["problem"] == "RuntimeError: too long"
    assert {each["problem"] for name, each in found.items() if name != "d"} == {"NA"}
    assert json.loads((tmp_path / "out" / "failures.json").read_text()) == {"in/d": "RuntimeError: too long"}
    assert "in/d: failed: RuntimeError: too long" in capsys.readouterr().err


def test_what_has_not_changed_is_not_scored_again(
    tmp_path: Path, run: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """Natives are found by the name of the target, else by that of the structure, else by sequence."""
    known = tmp_path / "known"
    write(known / "d.pdb", SEQUENCE[:8], seed=3)
    native = write(known / "x.pdb", SEQUENCE[:9], seed=4)
    write(tmp_path / "in" / "d.pdb", SEQUENCE[:8])
    structure = write(tmp_path / "in" / "e.pdb", SEQUENCE[:9])
    words = [str(tmp_path / "in"), "--model", "tiny", "--reference", str(known)]
    assert len(run(*words)[1]) == 2
    assert {name: row["target"] for name, row in rows(tmp_path / "out").items()} == {"d": "d", "e": "x"}
    capsys.readouterr()
    assert run(*words) == (0, [])
    assert "2 of 2 structures: scored before (--overwrite scores them again)" in capsys.readouterr().out
    assert len(rows(tmp_path / "out")) == 2
    # A changed structure, a changed native, another protocol, no structure written: one after the other.
    write(structure, SEQUENCE[:9], noise=0.1)
    assert run(*words) == (0, [[(9, False)]])
    write(native, SEQUENCE[:9], seed=5)
    assert run(*words) == (0, [[(9, False)]])
    assert run(*words, "--save-structures") == (0, [[(8, False)], [(9, False)]])
    first = json.loads((tmp_path / "out" / "results.jsonl").read_text().splitlines()[0])["settings"]
    assert {name: first[name] for name in ("command", "num_recycles", "seed", "chain_protocol", "chain_model")} == {
        **{"command": "score", "num_recycles": 1, "seed": 0, "chain_protocol": "template", "chain_model": "tiny"}
    }
    assert run(*words, "--num-recycles=2")[0] == 2
    assert "num_recycles 1, now 2" in capsys.readouterr().err


def test_protocols_are_those_that_the_model_and_the_kind_allow(
    tmp_path: Path, run: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in" / "a.pdb", SEQUENCE[:9])
    weights = write_tiny_without_templates(tmp_path / "without_templates.safetensors")
    assert run(str(tmp_path / "in"), "--weights", str(weights)) == (0, [[(9, True)]])
    assert "tiny reads no templates, so structures are scored as initial guesses" in capsys.readouterr().err
    (tmp_path / "pairs").mkdir()
    write(tmp_path / "pairs" / "b.pdb", SEQUENCE[:9], SEQUENCE[:7])
    options = score_run.StructureOptions()
    pair, chain = (read_scored(path) for path in (tmp_path / "pairs" / "b.pdb", tmp_path / "in" / "a.pdb"))
    kinds = [
        score_run._kind(each, given) for each in (pair, chain) for given in (options, replace(options, binders=True))
    ]
    assert kinds == ["complex", "complex", "chain", "complex"]
    assert run(str(tmp_path / "pairs"), "--binders", "--weights", str(weights), "--overwrite") == (0, [[(17, True)]])
    said = capsys.readouterr()
    assert "complexes: protocol binder, model tiny, 3 recycles" in said.out
    assert "so the target is only in the initial guess" in said.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--binder-chains", "A"], "--binder-chains needs --binders"),
        (["--binders", "--protocol", "template"], "--binders cannot be combined with --protocol"),
        (["--output", "FILE"], "is a file; pass --output a directory"),
    ],
)
def test_options_that_exclude_each_other_write_nothing(
    words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.pdb")
    output = [] if "--output" in words else ["--output", str(tmp_path / "out")]
    assert main(["score", str(path), *output, *(str(path) if word == "FILE" else word for word in words)]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_made_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["score", str(write(tmp_path / "a.pdb")), "--output", str(tmp_path / "file" / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be used as output directory" in line
    assert line.endswith("; choose another with --output")
