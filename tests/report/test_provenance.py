"""The foot of a report tells what made its predictions, whoever writes the page."""

import json
import re
import shutil
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path

import pytest

from data_pipeline.search.database import SearchedDatabase
from helixfold import __version__
from helixfold.folding.provenance import Provenance, RecordedSearch, provenance_entries
from helixfold.report.target_page import write_report
from tests.report.reported import write_target, write_templates

UNIREF = SearchedDatabase(name="uniref30_2302_db", version="2302", size=1234)
SERVER = SearchedDatabase(name="MMseqs2 server, mode env", url="https://x.org")
MODELS = ("model_1_ptm", "model_2_ptm")
RECORD = Provenance(
    software={"helixfold": "9.8.7", "torch": "2.1"},
    device={"kind": "cuda", "name": "A <GPU>", "capability": "9.0"},
    threads=3,
    ranks=2,
    targets_at_once=4,
    executor="slabs",
    slab_budget=2**28,
    backends={"attention": ("triton",), "linear": ("one", "two")},
    features="f" * 64,
    searches=(
        RecordedSearch(purpose="alignment", search="mmseqs 18 in uniref", databases=(UNIREF,)),
        RecordedSearch(purpose="pairs", search="mmseqs 18 pair", databases=(UNIREF,)),
        RecordedSearch(purpose="templates", search="server x", databases=(SERVER,)),
    ),
    templates=("1abc_A",),
    command=("helixfold", "predict", "a b.fasta"),
)


@pytest.fixture(scope="module")
def plain_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plain") / "hairpin"
    write_target(directory, models=MODELS)
    return directory


def foot(plain_target: Path, tmp_path: Path, settings: object) -> str:
    target = Path(shutil.copytree(plain_target, tmp_path / "hairpin"))
    if settings is not None:
        (target / "settings.json").write_text(json.dumps(settings))
    write_report(target)
    (found,) = re.findall(r"<footer.*?</footer>", (target / "report.html").read_text(), re.DOTALL)
    assert f"Page by helixfold {__version__}." in found
    return found


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def entry(record: Provenance, *names: str) -> dict[str, object]:
    return {"predictions": names, **asdict(record)}


def test_one_sentence_and_a_table_tell_what_made_all_predictions(plain_target: Path, tmp_path: Path) -> None:
    found = foot(plain_target, tmp_path, {"helixfold": "1.0", "provenance": [entry(RECORD, *MODELS)]})
    assert "A &lt;GPU&gt;" in found
    text = words(found)
    assert text.startswith("Made by helixfold 9.8.7 with PyTorch 2.1, on A <GPU> (cuda, 9.0). Command")
    for row in (
        "command helixfold predict 'a b.fasta'",
        "threads 3 of each of 2 processes",
        "executor slabs, slabs of 256 MiB, 4 targets at once",
        "operators attention: triton, linear: one and two",
        f"features SHA-256 {'f' * 64}",
        "searches mmseqs 18 in uniref; mmseqs 18 pair; server x",
        "databases uniref30_2302_db (1,234 bytes; alignment and pairs), MMseqs2 server, mode env (https://x.org; ",
        "templates 1abc_A",
    ):
        assert row in text


def test_predictions_that_were_made_by_other_programs_are_named(plain_target: Path, tmp_path: Path) -> None:
    older = replace(RECORD, software={"helixfold": "9.0"}, ranks=1)
    entries = [entry(RECORD, MODELS[0]), entry(older, MODELS[1], "of another page")]
    text = words(foot(plain_target, tmp_path, {"provenance": entries}))
    assert "model_1_ptm made by helixfold 9.8.7 with PyTorch 2.1, on A <GPU> (cuda, 9.0)." in text
    assert "model_2_ptm made by helixfold 9.0, on A <GPU> (cuda, 9.0)." in text
    assert "threads 3 " in text
    assert "of another page" not in text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"helixfold": "0.1.0"},
            "Made by helixfold 0.1.0, which did not record programs and device.",
        ),
        ({"provenance": [7]}, "How these predictions were made is not recorded."),
        (None, "How these predictions were made is not recorded."),
    ],
)
def test_what_is_not_recorded_is_not_made_up(settings: object, said: str, plain_target: Path, tmp_path: Path) -> None:
    assert words(foot(plain_target, tmp_path, settings)).startswith(said)


def test_templates_that_no_prediction_read_are_not_shown_as_used(plain_target: Path, tmp_path: Path) -> None:
    # Earlier versions listed them, and counted them in timings.json.
    for name, read in (("read", ("1abc_A",)), ("unread", ())):
        target = Path(shutil.copytree(plain_target, tmp_path / name / "hairpin"))
        write_templates(target)
        made = provenance_entries(dict.fromkeys(MODELS, replace(RECORD, templates=read)))
        (target / "settings.json").write_text(json.dumps({"predictions": {}, "provenance": made}))
        write_report(target)
        unread = "Selected, but none of the models uses templates" in (target / "report.html").read_text()
        assert unread == (not read)
