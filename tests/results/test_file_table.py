"""Names of files are composed and parsed by one table; files whose names do not fit exactly stay alone."""

import ast
import importlib.util
import re
from pathlib import Path
from string import Formatter
from typing import get_args

import numpy as np
import pytest

from data_pipeline.features.complexes.result_directory import RESULTS_DIRECTORY
from data_pipeline.io import claims
from helixfold.folding.options import FoldingOptions
from helixfold.results import file_table
from helixfold.results.file_table import FILES, FileKind, kind_of, remove_results, slim_down
from helixfold.results.prediction import write_prediction
from helixfold.runtime.options import RepresentationFormat, RepresentationName
from tests.results.proteins import random_protein
from tests.results.test_prediction import prediction
from tests.support.sources import ROOT, files, imported_names, nodes

VALUES = {
    "rank": 7,
    "seed": 12,
    "part": 3,
    "parts": 20,
    "prediction": "model_1.x_seed_3",
    "target": "T1_pae",
    "tag": "a_1",
    "index": 4,
    "number": 5,
    "model": "tiny_multimer",
}


def fields_of(kind: FileKind) -> set[str]:
    """The names of the fields of a pattern."""
    return {field for _, field, _, _ in Formatter().parse(kind.pattern) if field is not None}


NAMES = [
    (kind, kind.name(suffix, **{field: VALUES[field] for field in fields_of(kind)}))
    for kind in FILES
    for suffix in kind.suffixes
]
each_name = pytest.mark.parametrize(("kind", "name"), NAMES, ids=[f"{kind.place}/{name}" for kind, name in NAMES])


@each_name
def test_names_of_a_kind_are_recognized_with_their_fields(kind: FileKind, name: str) -> None:
    fields = kind.match(name)
    assert fields is not None
    assert name.endswith(fields.pop("suffix"))
    assert {field: int(text) if text.isdecimal() else text for field, text in fields.items()} == {
        field: VALUES[field] for field in fields_of(kind)
    }
    assert kind_of(name, kind.place) is kind


@each_name
def test_names_that_do_not_fit_exactly_are_strangers(kind: FileKind, name: str) -> None:
    for other in (f"{name}.bak", f"{name}\n", f"{name}~", name.upper()):
        assert kind.match(other) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pae_model_1.json", file_table.PAE),
        ("pae_model_1.bcif.gz", file_table.PAE_PAIRS),
        ("pae.png", file_table.PAE_PLOT),
        ("ensemble_rmsf.tsv", file_table.FLUCTUATIONS_TABLE),
        ("T1_0_pae.tsv", file_table.PAE_TABLE),
        ("relaxed_unrelaxed_x.pdb", file_table.RELAXED),
        ("ranked_0.pdb", file_table.RANKED),
        ("ranked_x.pdb", None),
        ("ranked_٣.pdb", None),
        ("confidence_.json", None),
        ("my_settings.json", None),
        ("msas", None),
        ("msas/", file_table.SEARCHES),
    ],
)
def test_the_kind_of_a_name(name: str, kind: FileKind | None) -> None:
    assert kind_of(name) is kind


def test_the_kind_with_the_longest_text_wins() -> None:
    # A target may be named after a file.
    name = "a_relaxed_rank_001_b_unrelaxed_rank_002_c.pdb"
    assert file_table.COLABFOLD_RELAXED.match(name)
    assert kind_of(name, "output") is file_table.COLABFOLD_UNRELAXED
    name = "x_predicted_aligned_error_v1.json"
    assert kind_of(name, "output") is file_table.COLABFOLD_PAE
    assert kind_of("config.json", "output") is file_table.COLABFOLD_CONFIG
    assert kind_of("x_relaxed_rank_001_a_seed_000.pdb", "output") is file_table.COLABFOLD_RELAXED
    assert kind_of("x_unrelaxed_rank_001_a_seed_000.pdb", "output") is file_table.COLABFOLD_UNRELAXED


def test_no_two_kinds_have_one_name() -> None:
    assert len({(kind.place, name) for kind, name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("kind", FILES, ids=lambda kind: kind.pattern)
def test_facts_of_a_kind(kind: FileKind) -> None:
    assert all(importlib.util.find_spec(module) is not None for module in (kind.writer, *kind.readers))
    assert re.fullmatch(r"0\.[1234]", kind.since)
    assert kind.purpose
    assert not kind.purpose.endswith(".")
    assert not kind.option or kind.option in FoldingOptions.__dataclass_fields__
    assert (kind.is_required or bool(kind.option)) <= ("prediction" in fields_of(kind))


def test_directories_have_the_names_that_the_data_pipeline_gives_them() -> None:
    assert file_table.SEARCHES.name() == f"{RESULTS_DIRECTORY}/"
    assert file_table.CLAIMS.name() == f"{claims.DIRECTORY}/"


OWN = [name for kind, name in NAMES if kind.place == "target" and not name.endswith("/")]
FOREIGN = ("notes.txt", "ranked_x.pdb", "ranked_0.pdb.bak", "my_settings.json", "index.html", "plddt.pdb", ".hidden")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    for name in (*OWN, *FOREIGN, "msas/rows.a3m", "report.html.d/x", "elsewhere/kept.json"):
        path = tmp_path / "T1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    directory = tmp_path / "T1"
    (directory / "confidence_link.json").symlink_to(directory / "elsewhere/kept.json")
    (directory / "plddt_directory").mkdir()
    (directory / "pae_directory.json").mkdir()
    return directory


def names_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file() or path.is_symlink()}


def test_a_fresh_start_leaves_inputs_and_what_others_put_there(target: Path) -> None:
    remove_results(target)
    left = {"features.npz", "msas/rows.a3m", "report.html.d/x", "elsewhere/kept.json", *FOREIGN}
    assert names_in(target) == left
    assert (target / "pae_directory.json").is_dir()
    remove_results(target / "absent")


SLIM = (
    *("ranked_0.pdb", "ranked_12.cif", "confidence_model_1_ptm.json", "pae_model_1_ptm.json"),
    *("pae_model_1_ptm.bcif.gz", "logits_model_1_ptm.npz", "representations_model_1_ptm.npz"),
    *("representations_model_1_ptm.safetensors", "ranking_debug.json", "settings.json", "relax_metrics.json"),
)
NOT_SLIM = (
    *("unrelaxed_model_1_ptm.pdb", "relaxed_model_1_ptm.cif", "features.npz", "timings.json", "templates.json"),
    *("plddt.png", "report.html", "T1_plddt.tsv", "distances_model_1_ptm.npz", "recycles_model_1_ptm.pdb"),
    *("ranked_x.pdb", "ranked_0.pdb.bak", "my_settings.json"),
)


def test_a_slim_target_has_its_ranked_structures_confidences_and_records(tmp_path: Path) -> None:
    for name in (*SLIM, *NOT_SLIM, "msas/H/rows.a3m"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
    slim_down(tmp_path)
    files = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {name: f"content of {name}" for name in (*SLIM, "msas/H/rows.a3m")}


def test_slim_follows_no_link_and_keeps_directories(target: Path) -> None:
    slim_down(target)
    assert (target / "pae_directory.json").is_dir()
    assert (target / "elsewhere/kept.json").read_text() == "elsewhere/kept.json"
    assert "plddt.png" not in names_in(target)


def test_all_files_of_a_prediction_are_written_and_known(tmp_path: Path) -> None:
    representations: dict[RepresentationName, np.ndarray] = {"single": np.zeros((12, 4), np.float32)}
    logits = {"lddt": np.ones((12, 50), np.float32)}
    first = random_protein(12, unknown=(4,))
    one = prediction("m.1", logits=logits, representations=representations, recycling_iterations=(first, first))
    for form in get_args(RepresentationFormat):
        write_prediction(tmp_path, one, representations_format=form)
    assert {kind_of(path.name) for path in tmp_path.iterdir()} == {
        kind for kind in FILES if "prediction" in fields_of(kind) and kind.writer == "helixfold.results.prediction"
    }


def test_the_confidences_of_a_prediction_are_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InterruptedError

    whole, part = tmp_path / "whole", tmp_path / "part"
    for directory in (whole, part):
        directory.mkdir()
    write_prediction(whole, prediction())
    monkeypatch.setattr("helixfold.results.prediction.confidence_content", fail)
    with pytest.raises(InterruptedError):
        write_prediction(part, prediction())
    assert names_in(part) == names_in(whole) - {"confidence_model_1_ptm.json"}


def test_files_of_version_0_1_are_known() -> None:
    target = ROOT / "tests/earlier_versions/0.1/predictions/peptide"
    kinds = [kind_of(path.name) for path in target.iterdir()]
    assert {None if kind is None else kind.since for kind in kinds} == {"0.1"}


MODULES = [
    (name, module)
    for name, kind in vars(file_table).items()
    if isinstance(kind, FileKind)
    for module in (kind.writer, *kind.readers)
    if module.startswith("helixfold.")
]


@pytest.mark.parametrize(("name", "module"), MODULES)
def test_writers_and_readers_take_the_name_from_the_table(name: str, module: str) -> None:
    path = ROOT / f"{module.replace('.', '/')}.py"
    assert f"helixfold.results.file_table.{name}" in imported_names(path)


# Names of other files: settings of a training, and folders of a verification.
OTHERS = {
    *("training/run_files.py", "apps/verify/deepmind.py", "apps/verify/runs.py"),
}


def test_no_other_module_has_names_of_result_files() -> None:
    found = []
    for path in files("helixfold"):
        relative = path.relative_to(ROOT / "helixfold").as_posix()
        if relative in OTHERS or path.name == "file_table.py":
            continue
        calls = (node for node in nodes(path) if isinstance(node, ast.Call))
        templates = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "page"]
        for node in nodes(path):
            text = ""
            if node in templates:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            elif isinstance(node, ast.JoinedStr):
                text = "".join(str(each.value) if isinstance(each, ast.Constant) else "1" for each in node.values)
            is_name = "." in text and " " not in text and len(text) < 100
            if is_name and (kind_of(text) is not None or kind_of(text, "output") is not None):
                found.append(f"{relative}: {text}")
    assert found == []
