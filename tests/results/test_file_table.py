"""Names of files are composed and parsed by one table; files whose names do not fit exactly stay alone."""

import importlib.util
import re
from pathlib import Path

import pytest

from data_pipeline import claims
from data_pipeline.complexes.result_directory import RESULTS_DIRECTORY
from helixfold.folding.options import FoldingOptions
from helixfold.results import file_table
from helixfold.results.file_table import FILES, FileKind, kind_of, remove_results, slim_down

VALUES = {
    "rank": 7,
    "seed": 12,
    "part": 3,
    "parts": 20,
    "prediction": "model_1.x_seed_3",
    "target": "T1_pae",
    "tag": "a_1",
}
NAMES = [
    (kind, kind.name(suffix, **{field: VALUES[field] for field in kind.fields}))
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
        field: VALUES[field] for field in kind.fields
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
    assert re.fullmatch(r"0\.[123]", kind.since)
    assert kind.purpose
    assert not kind.purpose.endswith(".")
    assert not kind.option or kind.option in FoldingOptions.__dataclass_fields__
    assert (kind.is_required or bool(kind.option)) <= ("prediction" in kind.fields)


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


def test_slim_keeps_what_the_table_says_and_directories(target: Path) -> None:
    slim_down(target)
    kept = {name for kind, name in NAMES if kind.place == "target" and kind.is_slim and not name.endswith("/")}
    links = {"confidence_link.json"}  # a name of ours, and nothing is written through it
    assert names_in(target) == {*kept, *links, "msas/rows.a3m", "report.html.d/x", "elsewhere/kept.json"}
    assert len(kept) == 11
