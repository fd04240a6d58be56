"""Pages of a complex hold the numbers, structures and links of its files, for the right chain, residue and rank."""

import base64
import json
import re
import shutil
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.residues import GAP
from helixfold.folding.prediction import Distances
from helixfold.report.ensemble import write_ensemble
from helixfold.report.index import write_index
from helixfold.report.pulldown import PulldownEntry, write_entries, write_pulldown
from helixfold.report.target_page import write_report
from helixfold.results.prediction import (
    ranked,
    read_finished,
    write_prediction,
    write_ranked,
    write_ranking,
    write_timings,
)
from tests.report.reported import features_of
from tests.support import special_complex

MODELS = {"model_1_multimer_v3": 0.3, "model_2_multimer_v3": 0.8, "model_3_multimer_v3": 0.5}
ORDER = ["model_2_multimer_v3", "model_3_multimer_v3", "model_1_multimer_v3"]
RESIDUES = special_complex.residues()
SCORES = ("iptm", "ipsae", "pdockq", "pdockq2", "lis", "interface_plddt", "interface_pae")


def plddt_of(model: str) -> list[float]:
    place = list(MODELS).index(model)
    return [RESIDUES[residue - place].plddt for residue in range(26)]


def band(plddt: float) -> str:
    return "H" if plddt >= 90 else "M" if plddt >= 70 else "L" if plddt >= 50 else "D"


class Page(HTMLParser):
    """The tables of a page by their captions, its links with their words, and the scripts that hold data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.links: dict[str, str] = {}
        self.scripts: dict[str, str] = {}
        self.letters: list[tuple[str, str]] = []  # of the sequence, with their classes
        self._rows: list[list[str]] = []
        self._caption, self._open, self._attributes = "", "", dict[str, str | None]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in {"td", "th"}:
            self._rows[-1].append("")
        if tag not in {"span", "rect", "svg"}:
            self._open, self._attributes = tag, dict(attrs)

    def handle_data(self, data: str) -> None:
        identity = self._attributes.get("id")
        if self._open == "caption":
            self._caption += data
        elif self._open in {"td", "th"}:
            self._rows[-1][-1] += data
        elif self._open == "a":
            self.links[str(self._attributes.get("href"))] = data
        elif self._open == "script" and identity:
            self.scripts[identity] = data
        elif self._open == "i":
            self.letters.append((data, str(self._attributes.get("class"))))

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.tables[self._caption] = self._rows
        if tag == self._open:
            self._open, self._attributes = "", {}

    @property
    def data(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.scripts["data"])
        return content

    def blob(self, name: str) -> bytes:
        return zlib.decompress(base64.b64decode(self.scripts[name]))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three predictions of the special complex with their report."""
    directory = tmp_path_factory.mktemp("output") / "T 1"
    features = features_of(special_complex.protein(), "T 1", 9)
    directory.mkdir()
    features.save(directory / "features.npz")
    depth = alignment_depth(features.msa)
    for place, (model, confidence) in enumerate(MODELS.items()):
        one = special_complex.prediction(
            model,
            structure=special_complex.protein(moved=float(place)),
            plddt=np.array(plddt_of(model), np.float32),
            pae=np.roll(special_complex.pae(), place, axis=1),
            ptm=0.2 + place / 8,
            iptm=0.1 + place / 8,
            num_recycles=place,
            converged=place == 1,
            ranking_confidence=confidence,
        )
        assert one.distances is not None
        rolled = Distances(expected=np.roll(one.distances.expected, place, 0), contact=one.distances.contact)
        write_prediction(directory, replace(one, distances=rolled), depth)
        path = directory / f"confidence_{model}.json"
        content = json.loads(path.read_text())
        # Scores that differ in the digits that a page shows.
        for number, pair in enumerate(content["interfaces"]):
            for column, key in enumerate(SCORES):
                if pair[key] is not None:
                    pair[key] = round(0.05 + 0.11 * column + 0.013 * number, 4)
        path.write_text(json.dumps(content))
    order = ranked([each for model in MODELS if (each := read_finished(directory, model)) is not None])
    write_ranked(directory, order)
    write_timings(directory, {"stages": {"a": {"seconds": 12.0, "peak_memory_gib": 0.5}, "b": {"seconds": 3.0}}})
    write_ranking(directory, order)
    (directory / "msas").mkdir()
    write_report(directory)
    return directory


@pytest.fixture(scope="module")
def page(target: Path) -> Page:
    return Page((target / "report.html").read_text())


def test_residues_and_chains_of_the_page_are_those_of_the_complex(page: Page) -> None:
    letters = [special_complex.LETTERS[residue.name] for residue in RESIDUES]
    assert page.data["sequence"] == "".join(letters)
    assert page.data["numbers"] == [residue.number for residue in RESIDUES]
    assert page.data["chains"] == [["H", 5], ["L", 9], ["h", 5], ["2", 7]]
    assert page.letters == list(zip(letters, map(band, plddt_of(ORDER[0])), strict=True))
    assert [(each["min_plddt"], each["letter"], each["color"]) for each in page.data["bands"]] == [
        *((90, "H", "#0053D6"), (70, "M", "#65CBF3"), (50, "L", "#FFDB13"), (0, "D", "#FF7D45"))
    ]


def test_models_of_the_page_are_those_of_the_ranks_with_their_structures_and_maps(page: Page, target: Path) -> None:
    assert [model["name"] for model in page.data["models"]] == ORDER
    for model in page.data["models"]:
        place = list(MODELS).index(model["name"])
        assert model["plddt"] == plddt_of(model["name"])
        (structure,) = model["structures"].values()
        assert page.blob(structure["data"]) == (target / f"unrelaxed_{model['name']}.pdb").read_bytes()
        given = special_complex.prediction().distances
        assert given is not None
        expected = {
            "PAE": (np.roll(special_complex.pae(), place, axis=1), 0.125, 31.75),
            "Expected distance": (np.roll(given.expected, place, axis=0), 0.125, 22),
            "Contact probability": (given.contact, 0.01, 1),
        }
        assert [each["title"] for each in model["maps"]] == list(expected)
        for each in model["maps"]:
            values, step, largest = expected[each["title"]]
            cells = np.frombuffer(page.blob(each["data"]), np.uint8).reshape(26, 26)
            assert (each["cells"], each["block"], each["step"], each["largest"]) == (26, 1, step, largest)
            np.testing.assert_allclose(cells * step, values, atol=step / 2 + 0.01)


def test_the_alignment_of_the_page_is_that_of_the_features(page: Page) -> None:
    msa = features_of(special_complex.protein(), "T 1", 9).msa
    shown = page.data["alignment"]
    assert (shown["rows"], shown["depth"]) == (9, [sum(kind != GAP for kind in column) for column in msa.T])
    identities = [sum(a == b for a, b in zip(row, msa[0], strict=True)) / 26 for row in msa]
    order = sorted(range(9), key=lambda row: -identities[row])
    picture = shown["picture"]
    assert (picture["rows"], picture["columns"]) == (9, 26)
    assert picture["identities"] == [round(identities[row], 3) for row in order]
    bits = np.unpackbits(np.frombuffer(page.blob(picture["data"]), np.uint8).reshape(9, -1), axis=1)[:, :26]
    np.testing.assert_array_equal(bits, msa[order] != GAP)


def test_the_tables_of_the_page_have_the_numbers_of_the_files(page: Page, target: Path) -> None:
    files = {model: json.loads((target / f"confidence_{model}.json").read_text()) for model in MODELS}
    best = files[ORDER[0]]
    mean = np.mean(plddt_of(ORDER[0]))
    assert page.tables["Models by rank"] == [
        ["Rank", "Model", "", "Mean pLDDT", "pTM", "ipTM", "Recycles"],
        *(
            [
                *(str(rank), model, "", f"{mean:.1f}", f"{0.2 + place / 8:.2f}", f"{0.1 + place / 8:.2f}"),
                f"{place}{', settled' if place == 1 else ''}",
            ]
            for rank, model in enumerate(ORDER, start=1)
            for place in [list(MODELS).index(model)]
        ),
    ]
    sides: dict[str, list[float]] = {}
    for residue, plddt in zip(RESIDUES, plddt_of(ORDER[0]), strict=True):
        sides.setdefault(residue.chain, []).append(plddt)
    ranges = {"H": "0to5", "L": "1to9", "h": "3to7", "2": "-2to4"}
    assert page.tables["Chains of the best model"] == [
        ["Name", "", "Residues", "Number", "Mean pLDDT", "pTM"],
        *(
            [
                *(name, "", ranges[name].replace("to", "\u2013"), str(len(values)), f"{np.mean(values):.1f}"),
                f"{special_complex.TM_BY_CHAIN[number, number]:.2f}",
            ]
            for number, (name, values) in enumerate(sides.items())
        ),
    ]

    def words(score: float | None, layout: str) -> str:
        return "" if score is None else format(score, layout)

    header, *pairs = page.tables["Pairs of chains of the best model"]
    scores = ["ipTM", "ipSAE", "pDockQ2", "pDockQ", "LIS", "Interface pLDDT", "Interface PAE, Å"]
    assert header == ["Chains", "", "Contacts", *scores]
    keys = {"iptm": ".2f", "ipsae": ".2f", "pdockq2": ".2f", "pdockq": ".2f", "lis": ".2f"}
    keys |= {"interface_plddt": ".1f", "interface_pae": ".1f"}
    assert pairs == [
        [" and ".join(pair["chains"]), "", str(pair["contacts"])]
        + [words(pair[key], layout) for key, layout in keys.items()]
        for pair in best["interfaces"]
    ]
    assert [row[0] for row in pairs] == ["H and L", "H and h", "H and 2", "L and h", "L and 2", "h and 2"]
    times = [rows for caption, rows in page.tables.items() if caption.startswith("Time, 15 s in total")]
    assert [[row[0], *row[2:]] for row in times[0]] == [["a", "12 s", "0.50 GiB"], ["b", "3 s", "0.00 GiB"]]


def test_the_share_of_each_band_is_that_of_its_residues(target: Path) -> None:
    text = (target / "report.html").read_text()
    counts = [sum(band(plddt) == letter for plddt in plddt_of(ORDER[0])) for letter in "HMLD"]
    shares = re.findall(r'<rect x="([\d.]+)" width="([\d.]+)" height="1" class="fill (\w)"', text)
    starts = np.cumsum([0, *counts[:-1]])
    assert shares == [
        (f"{100 * start / 26:.3f}", f"{100 * count / 26:.3f}", letter)
        for start, count, letter in zip(starts, counts, "HMLD", strict=True)
    ]


def test_links_and_sizes_are_those_of_the_directory(page: Page, target: Path) -> None:
    there = {path.name: path for path in target.iterdir() if path.name != "report.html"}
    links = {unquote(href.removeprefix("./")): words for href, words in page.links.items() if href.startswith("./")}
    assert links == {
        f"{name}/" if path.is_dir() else name: f"{name}/" if path.is_dir() else name for name, path in there.items()
    }
    text = (target / "report.html").read_text()
    for name, path in there.items():
        if path.is_file():
            size = path.stat().st_size
            words = f"{size / 1000:.1f} kB" if size >= 1000 else f"{size} bytes"
            assert f'>{name}</a> <span class="size">{words}</span>' in text


def test_a_line_of_the_index_has_the_best_predictions_numbers_and_bands(target: Path) -> None:
    write_index(target.parent)
    text = (target.parent / "index.html").read_text()
    row = text.partition("<tbody>")[2].partition("</tr>")[0]
    values = dict(re.findall(r'data-label="([^"]+)" data-value="([^"]*)"', row))
    assert float(values["residues"]) == 26
    assert float(values["mean pLDDT"]) == pytest.approx(np.mean(plddt_of(ORDER[0])), abs=0.006)
    assert (float(values["pTM"]), float(values["ipTM"])) == (0.325, 0.225)
    assert 'href="./T%201/report.html"' in row
    steps = {
        letter: re.findall(r"M([\d.]+) 0H([\d.]+)V1H([\d.]+)z", path)
        for letter, path in re.findall(r'<path class="fill (\w)" d="([^"]+)"', row)
    }
    expected: dict[str, list[tuple[str, str, str]]] = {}
    for place, plddt in enumerate(plddt_of(ORDER[0])):
        start, stop = f"{place * 100 / 26:.1f}", f"{(place + 1) * 100 / 26:.1f}"
        expected.setdefault(band(plddt), []).append((start, stop, start))
    assert steps == expected


def lines_of(path: Path) -> list[dict[str, str]]:
    header, *lines = path.read_text().splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def test_a_line_of_a_pulldown_has_every_number_of_the_best_interface_of_bait_and_prey(target: Path) -> None:
    output = target.parent
    write_entries(output, [PulldownEntry(name="T 1", baits=("b", "b"), preys=("p", "q"), bait_chains=("H", "L"))])
    write_pulldown(output)
    (line,) = lines_of(output / "pulldown.tsv")
    confidence = json.loads((target / f"confidence_{ORDER[0]}.json").read_text())
    across = [pair for pair in confidence["interfaces"] if len({"H", "L"} & set(pair["chains"])) == 1]
    best = max(across, key=lambda pair: (pair["ipsae"], pair["pdockq"]))
    assert line == {
        **{"rank": "1", "complex": "T 1", "bait": "b*2", "prey": "p:q", "status": "finished"},
        **{"score": f"{0.8 * 0.225 + 0.2 * 0.325:.3f}".rstrip("0"), "iptm": "0.225", "ptm": "0.325"},
        **{"mean_plddt": str(confidence["mean_plddt"]), "residues": "26", "prediction": ORDER[0]},
        "interface": ":".join(best["chains"]),
        **{
            f"interface_{key.removeprefix('interface_')}": "NA" if best[key] is None else str(best[key])
            for key in SCORES
        },
        **{"interface_contacts": str(best["contacts"]), "problem": "NA"},
    }


def test_tables_of_an_ensemble_have_the_chain_and_the_number_of_each_residue(target: Path, tmp_path: Path) -> None:
    """The samples are one structure that moves along z, so that nothing fluctuates; unknown residues have no atoms."""
    target = Path(shutil.copytree(target, tmp_path / target.name))
    assert write_ensemble(target, references=[target / f"unrelaxed_{ORDER[2]}.pdb"])
    lines = lines_of(target / "ensemble_rmsf.tsv")
    assert [(line["chain"], int(line["residue"]), float(line["plddt_of_best"])) for line in lines] == [
        (residue.chain, residue.number, plddt) for residue, plddt in zip(RESIDUES, plddt_of(ORDER[0]), strict=True)
    ]
    assert [line["rmsf"] == "NA" for line in lines] == ["CA" not in residue.atoms for residue in RESIDUES]
    assert max(float(line["rmsf"]) for line in lines if line["rmsf"] != "NA") < 1e-3
    samples = lines_of(target / "ensemble.tsv")
    assert [(line["rank"], line["prediction"], line["ptm"]) for line in samples] == [
        ("0", ORDER[0], "0.325"),
        ("1", ORDER[1], "0.45"),
        ("2", ORDER[2], "0.2"),
    ]
    stem = f"unrelaxed_{ORDER[2]}"
    assert [(float(line[f"tm_to_{stem}"]), float(line["rmsd_to_best"])) for line in samples] == [
        (pytest.approx(1, abs=1e-3), pytest.approx(0, abs=1e-3))
    ] * 3
    rmsf = Page((target / "ensemble.html").read_text()).data["rmsf"]
    assert [value is None for value in rmsf] == [line["rmsf"] == "NA" for line in lines]


def test_structures_with_unknown_residues_are_superposed_in_the_page(page: Page) -> None:
    placed = []
    for model in page.data["models"]:
        (given,) = model["structures"].values()
        lines = [line for line in page.blob(given["data"]).decode().splitlines() if line[12:16] == " CA "]
        atoms = np.array([[float(line[start : start + 8]) for start in (30, 38, 46)] for line in lines])
        placed.append(atoms @ np.array(given["rotation"]).reshape(3, 3).T + given["shift"])
    assert len(placed[0]) == 23
    for other in placed[1:]:
        np.testing.assert_allclose(other, placed[0], atol=5e-3)
    spread = placed[0].std(0)
    assert spread[0] > spread[1] > spread[2]
