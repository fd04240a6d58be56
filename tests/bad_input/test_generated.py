"""Generated inputs to the whole command: a plan, or one sentence and exit code 2; never a traceback, never a file.

    python -m pytest -m long -n 0 tests/bad_input/test_generated.py

tries ten thousand; else it is nearly two hundred. Each command is a dry run, so that a sound input costs little.
"""

import contextlib
import io
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helixfold.cli.main import main
from tests.bad_input.arrays import features, npz, parameters
from tests.bad_input.meeting import contents
from tests.data_pipeline.parse.seeds import A3M, ALN, FASTA, MMCIF, PDB, QUERY, STOCKHOLM, TABLE
from tests.data_pipeline.parse.test_anything import spoilt

TARGET = f">q\n{QUERY}\n".encode()
SETTINGS = """[[alignments]]
name = "small"
tool = "jackhmmer"
path = "x.fasta"
max_rows = 10
[templates]
tool = "hmmsearch"
path = "x.fasta"
structures = "."
latest_release = 2021-11-01
"""
# What is spoilt, and the commands that meet it.
KINDS: dict[str, tuple[str, tuple[bytes, ...], tuple[str, ...]]] = {
    "FASTA": ("s.fasta", (FASTA, TARGET), ("predict s.fasta", "predict s.fasta --num-seeds 2")),
    "CSV": ("s.csv", (TABLE,), ("predict s.csv",)),
    "alignment as input": ("s.a3m", (A3M,), ("predict s.a3m",)),
    "alignment": ("s.msa", (A3M, STOCKHOLM, ALN), ("predict x.fasta --msa s.msa",)),
    "structure": ("s.cif", (MMCIF, PDB), ("predict x.fasta --templates s.cif",)),
    "profile": ("s.toml", (SETTINGS.encode(),), ("predict x.fasta --databases s.toml",)),
    "features": ("s.npz", (), ("predict --features s.npz",)),
    "weights": ("w.npz", (), ("predict x.fasta --models tiny --weights w.npz", "weights inspect w.npz")),
}
WORDS = (
    *("--num-recycles", "--recycle-tolerance", "--num-ensemble", "--seed", "--num-seeds", "--dtype", "--device"),
    *("--models", "--weights", "--msa", "--templates", "--databases", "--database", "--max-template-date", "--memory"),
    *("--executor", "--spill-directory", "--max-extra-rows", "--threads", "--features", "--preset", "--stop-at-score"),
    *("--ranks-per-target", "--zip", "--overwrite", "--models-to-relax", "--num-models", "--use-templates=maybe"),
    *("x.fasta", "no.fasta", ".", "-1", "0", "1", "nan", "inf", "1e999", "9" * 40, "tiny", "model_1", "a\0b", "8GiB"),
    *("2021-11-01", "", " ", "--", "-", "../x", "x" * 300, "all", "best", "auto", "spilled", "\ud800", "é", "a=b"),
)


@pytest.fixture(autouse=True, scope="module")
def nowhere_to_find_weights() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("helixfold.weights.find.parameters_directory", lambda: Path("no_parameters"))
        yield


def meets(arguments: list[str], name: str = "", content: bytes = b"") -> None:
    """The command says a plan, or one sentence; and leaves the folder as it was."""
    root = Path(tempfile.mkdtemp())
    try:
        folder = root / "folder"
        folder.mkdir()
        (folder / "x.fasta").write_bytes(TARGET)
        if name:
            (folder / name).write_bytes(content)
        before, errors = contents(root), io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = main(arguments)
        said = errors.getvalue()
        assert code in (0, 1, 2), said
        assert "Traceback" not in said
        if code == 2:
            last = said.splitlines()[-1]
            assert re.match(r"helixfold( \w+)*: error: ", last), said
            assert last.isprintable()
            assert len(last) < 2500
            # What is wrong with a profile can lie in what it names.
            assert not name or name in said or name.endswith(".toml")
        assert contents(root) == before
    finally:
        shutil.rmtree(root)


def a_file(data: st.DataObject, kind: str) -> None:
    name, seeds, commands = KINDS[kind]
    if kind == "features":
        seeds = (npz(features()),)
    elif kind == "weights":
        seeds = (npz(dict([*parameters().items()][:3])),)
    content = data.draw(spoilt(seeds) | st.binary(max_size=200))
    words = data.draw(st.sampled_from(commands)).split()
    meets([*words, "--dry-run"] if words[0] == "predict" else words, name, content)


OPTIONS = st.lists(st.sampled_from(WORDS), max_size=6)
FREELY = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("kind", KINDS)
@settings(FREELY, max_examples=15)
@given(data=st.data())
def test_a_generated_file_is_a_plan_or_a_sentence(kind: str, data: st.DataObject) -> None:
    a_file(data, kind)


@settings(FREELY, max_examples=50)
@given(words=OPTIONS)
def test_generated_options_are_a_plan_or_a_sentence(words: list[str]) -> None:
    meets(["predict", "x.fasta", *words, "--dry-run"])


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@settings(FREELY, max_examples=1000)
@given(data=st.data())
def test_a_thousand_generated_files_of_each_kind(kind: str, data: st.DataObject) -> None:
    a_file(data, kind)


@pytest.mark.long
@settings(FREELY, max_examples=2000)
@given(words=OPTIONS)
def test_two_thousand_generated_lists_of_options(words: list[str]) -> None:
    meets(["predict", "x.fasta", *words, "--dry-run"])
