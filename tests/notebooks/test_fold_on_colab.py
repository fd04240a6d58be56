"""The notebook for Colab runs on a CPU with stand-ins: Colab's modules, an MMseqs2 server, and small parameters."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.data_pipeline.search.mock_server import failing, mock_server, state
from tests.notebooks.colab import host
from tests.weights.server import Behaviour, serving

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "fold_on_colab.ipynb"
jupytext = pytest.importorskip("jupytext", reason="needs the packages of the extra 'notebooks'")
nbformat = pytest.importorskip("nbformat", reason="needs the packages of the extra 'notebooks'")
nbclient = pytest.importorskip("nbclient", reason="needs the packages of the extra 'notebooks'")

SEQUENCE, OTHER_SEQUENCE = "MKTAYIAKQRQI", "GSHMELKNIVDSWA"
CELLS = [cell for cell in jupytext.read(NOTEBOOK).cells if cell.cell_type == "code"]
TITLES = [re.search(r"# @title (\d+)\. ", cell.source) for cell in CELLS]
INSTALL, DEVICE, SEQUENCES, ALIGNMENT, MODELS, JOB, ESTIMATE, PREDICT, STRUCTURE, PLOTS, DOWNLOAD = range(11)


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of the form: its cell, its value, and its choices, if it has any."""

    name: str
    cell: int
    value: object
    choices: tuple[object, ...] = ()

    @property
    def others(self) -> tuple[object, ...]:
        """Other values than the one that these tests begin with: all other choices, if there are any."""
        value = VALUES.get(self.name, self.value)
        if self.choices:
            return tuple(choice for choice in self.choices if choice != value)
        if isinstance(value, bool):
            return (not value,)
        return (value + 1,) if isinstance(value, int) else (OTHER_TEXTS[self.name],)


def fields() -> dict[str, Field]:
    found = {}
    for index, cell in enumerate(CELLS):
        for name, value, choices in re.findall(r"(?m)^(\w+) = (.+?)  # @param (\[.*?\])?", cell.source):
            found[name] = Field(
                name=name, cell=index, value=ast.literal_eval(value), choices=tuple(ast.literal_eval(choices or "()"))
            )
    return found


FIELDS = fields()
# For every field of text, another value.
OTHER_TEXTS = {
    "job_name": "another",
    "sequence": OTHER_SEQUENCE,
    "server": "http://127.0.0.1:9",
    "max_template_date": "2020-01-01",
}
# What the forms have in these tests where nothing else is said: everything that takes no time, and a server's rows.
VALUES = {"device": "cpu", "sequence": SEQUENCE, "num_recycles": "0"}
A3M = f">query\n{SEQUENCE}\n>row\nMKSAYIAKERQI\n".encode()
UPLOADS: Mapping[str, dict[str, bytes]] = {
    "sequences_from": {"other.fasta": f">other\n{OTHER_SEQUENCE}\n".encode()},
    "alignment": {"own.a3m": A3M},
    "templates": {"1shg.pdb": (ROOT / "helixfold/apps/predict/example/1shg.pdb").read_bytes()},
}


def form(**values: object) -> list[Any]:
    """The notebook's cells with these values in the forms."""
    cells = deepcopy(CELLS)
    for name, value in {**VALUES, **values}.items():
        cell = cells[FIELDS[name].cell]
        cell.source, count = re.subn(rf"(?m)^{name} = .*?(?=  # @param)", f"{name} = {value!r}", cell.source)
        assert count == 1
    return cells


@dataclass
class Kernel:
    """A kernel of a new Colab session, in an empty directory, on a CPU, and with an empty cache."""

    directory: Path
    client: Any

    def run(self, cells: list[Any], *, uploads: Mapping[str, bytes] | None = None) -> list[Any]:
        if uploads is not None:
            self.say(f"from google.colab import files; files.to_upload[:] = [{dict(uploads)!r}]")
        self.client.nb.cells = cells
        for index, cell in enumerate(cells):
            self.client.execute_cell(cell, index)
        return cells

    def say(self, source: str) -> str:
        """What Python code prints."""
        return printed(self.run([nbformat.v4.new_code_cell(source)]))

    def fails(self, cell: Any) -> str:
        """The error of a cell, which must fail and show nothing."""
        with pytest.raises(nbclient.exceptions.CellExecutionError) as error:
            self.run([cell])
        assert not any("data" in output for output in outputs([cell]))
        return str(error.value)


@contextmanager
def new_kernel(directory: Path, archive_url: str) -> Iterator[Kernel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        patch.setenv("NO_PROXY", "*")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        paths = [str(ROOT), str(Path(host.__file__).parent), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        resources = {"metadata": {"path": str(directory)}}
        notebook = jupytext.read(NOTEBOOK)
        client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources)
        with client.setup_kernel():
            kernel = Kernel(directory, client)
            kernel.say(f"from tests.notebooks.colab import host; host.begin({archive_url!r})")
            yield kernel


@pytest.fixture(scope="module")
def archive_url() -> Iterator[str]:
    with serving(Behaviour(host.archive())) as url:
        yield f"{url}/parameters.tar"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, archive_url: str) -> Iterator[Kernel]:
    with new_kernel(tmp_path_factory.mktemp("kernel"), archive_url) as kernel:
        yield kernel


@dataclass
class Folded:
    """The cells that have folded a sequence, the values of their forms, and what they sent to a server."""

    values: dict[str, object]
    cells: list[Any]
    sent: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def folded(kernel: Kernel) -> Iterator[Folded]:
    with mock_server() as server:
        server.answers["submit"] = [state("COMPLETE")]
        values = {"server": server.url}
        cells = kernel.run(form(**values))
        yield Folded(values, cells, list(server.asked().values()))


def outputs(cells: list[Any]) -> list[Any]:
    return [output for cell in cells for output in cell.outputs]


def printed(cells: list[Any]) -> str:
    return "".join(output.get("text", "") for output in outputs(cells) if output.get("name") == "stdout")


def shown(cell: Any) -> list[tuple[str, str]]:
    """What a cell shows: text, pictures, and pages without the numbers that the parts of each page have."""
    data = [each for output in cell.outputs for each in output.get("data", {}).items() if each[0] != "text/plain"]
    texts = [*data, ("text", printed([cell]))]
    return [(kind, re.sub(r"_\d{10,}", "", value)) for kind, value in texts]


def shown_residues(cells: list[Any]) -> int:
    """The number of residues of the structure that the notebook shows."""
    (page,) = (page for kind, page in shown(cells[STRUCTURE]) if kind == "text/html")
    return len(re.findall(r"ATOM +\d+ +CA ", page))


def archive(kernel: Kernel, cells: list[Any]) -> zipfile.ZipFile:
    """The archive that was downloaded, whose path the last cell prints last."""
    path = printed(cells[DOWNLOAD:]).split()[-1]
    assert path in kernel.say("from google.colab import files; print(*files.downloaded)").split()
    return zipfile.ZipFile(path)


def test_every_cell_of_code_is_a_form_with_a_number() -> None:
    assert [title and int(title[1]) for title in TITLES] == list(range(1, len(CELLS) + 1))
    assert all(cell.metadata["cellView"] == "form" for cell in CELLS)
    lines = [line for cell in CELLS for line in cell.source.splitlines() if "@param" in line]
    assert len(lines) == len(FIELDS)


def test_all_cells_run_and_five_models_are_ranked(kernel: Kernel, folded: Folded) -> None:
    assert folded.sent == [SEQUENCE]
    kinds = [kind for output in outputs(folded.cells) for kind in output.get("data", {})]
    assert kinds.count("image/png") == 3  # pLDDT, PAE, coverage
    ranking = re.findall(r"rank (\d): <Prediction (\w+): .* pLDDT ([\d.]+)", printed(folded.cells[PREDICT:STRUCTURE]))
    assert sorted(model for _, model, _ in ranking) == [f"model_{index}_ptm" for index in range(1, 6)]
    assert [int(rank) for rank, _, _ in ranking] == [1, 2, 3, 4, 5]
    assert sorted(ranking, key=lambda each: -float(each[2])) == ranking
    bars = "".join(output.get("text", "") for output in folded.cells[PREDICT].outputs if output.get("name") == "stderr")
    assert re.findall(r"(\w+) iterations: +0%[^\r]* 0.00/1 ", bars) == [f"model_{index}_ptm" for index in range(1, 6)]
    assert not re.search(r"(targets|predictions): +\d", bars)  # several bars would mix
    names = archive(kernel, folded.cells).namelist()
    assert sum(name.endswith("/ubiquitin/report.html") for name in names) == 1
    executed = nbformat.v4.new_notebook(cells=folded.cells)
    assert len(nbformat.writes(executed)) < 2**20


def others(cells: range) -> list[Any]:
    """Every other value of every field of these cells, as parameters of a test; all but the last one are long."""
    return [
        pytest.param(
            each.name,
            value,
            id=f"{each.name}={value}"[:40],
            marks=() if value == each.others[-1] else pytest.mark.long,
        )
        for each in FIELDS.values()
        if each.cell in cells
        for value in each.others
    ]


@contextmanager
def changed(kernel: Kernel, folded: Folded, name: str, value: object) -> Iterator[list[Any]]:
    """The cells with another value in a field, the first of which are to be run; afterwards all is as before."""
    try:
        yield form(**{**folded.values, name: value})
    finally:
        kernel.run([deepcopy(folded.cells[FIELDS[name].cell])])


@pytest.mark.parametrize(("name", "value"), others(range(PREDICT)))
def test_a_changed_field_never_shows_an_old_result(name: str, value: object, kernel: Kernel, folded: Folded) -> None:
    """After the form's cell alone, each cell that shows or packs results fails."""
    with changed(kernel, folded, name, value) as cells:
        form_cell = cells[FIELDS[name].cell]
        if (name, value) == ("device", "cuda"):
            assert "device 'cuda' is not available" in kernel.fails(form_cell)
        else:
            kernel.run([form_cell], uploads=UPLOADS[name] if value == "upload" else {})
        if (name, value) == ("model_type", "ptm"):  # what "auto" means
            assert kernel.say("print(results())") == printed(folded.cells[JOB:ESTIMATE])
            return
        for cell in cells[STRUCTURE:]:
            assert "there are no results" in kernel.fails(cell)


# A text, two choices and an upload; the other fields run before each release.
CHANGED = ("sequence", "num_recycles", "model_type", "templates")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each.name, marks=() if each.name in CHANGED else pytest.mark.long)
        for each in FIELDS.values()
        if each.cell < PREDICT and each.others and each.name != "device"
    ],
)
def test_predict_accepts_another_value(name: str, kernel: Kernel, folded: Folded) -> None:
    value = FIELDS[name].others[-1]
    with changed(kernel, folded, name, value) as cells:
        kernel.run([cells[FIELDS[name].cell]], uploads=UPLOADS[name] if value == "upload" else {})
        kernel.run([cells[ESTIMATE]])
        assert "1 of 1 target to fold" in printed(cells[ESTIMATE:])


@pytest.mark.parametrize(("name", "value"), others(range(STRUCTURE, len(CELLS))))
def test_a_changed_view_is_another_view(name: str, value: object, kernel: Kernel, folded: Folded) -> None:
    """The structure that is shown changes, or the cell fails, because there is one target only."""
    with changed(kernel, folded, name, value) as cells:
        if name == "target_number":
            assert "target_number must be 1 to 1, got 2" in kernel.fails(cells[STRUCTURE])
            assert "target_number must be 1 to 1, got 2" in kernel.fails(cells[PLOTS])
        else:
            kernel.run([cells[STRUCTURE]])
            assert shown(cells[STRUCTURE]) != shown(folded.cells[STRUCTURE])
    (again,) = kernel.run([deepcopy(folded.cells[STRUCTURE])])
    assert shown(again) == shown(folded.cells[STRUCTURE])


@pytest.mark.parametrize("name", UPLOADS)
def test_an_upload_that_fails_does_not_show_an_old_result(name: str, kernel: Kernel, folded: Folded) -> None:
    with changed(kernel, folded, name, "upload") as cells:
        kernel.run([], uploads={})
        assert "were uploaded; run this cell again" in kernel.fails(cells[FIELDS[name].cell])
        for cell in cells[ESTIMATE:]:
            kernel.fails(cell)


@pytest.mark.parametrize("name", UPLOADS)
def test_other_uploads_never_show_an_old_result(name: str, kernel: Kernel, folded: Folded) -> None:
    """Files of the same name, of which one byte differs; the first ones again have their results again."""
    values = {"sequence": SEQUENCE, "num_models": 1, "alignment": "single_sequence"} | {name: "upload"}
    ((file, content),) = UPLOADS[name].items()
    cells = form(**folded.values, **values)
    this, before = FIELDS[name].cell, [FIELDS[each].cell for each in ("sequence", "num_models", "alignment")]
    try:
        kernel.run([cells[index] for index in before], uploads=UPLOADS[name])
        if this not in before:
            kernel.run([cells[this]], uploads=UPLOADS[name])
        kernel.run([cells[PREDICT], cells[STRUCTURE]])
        first = shown(cells[STRUCTURE])
        kernel.run(
            [cells[this]], uploads={file: content.replace(b"W", b"F").replace(b"E", b"D").replace(b"1.0", b"1.1")}
        )
        for cell in cells[STRUCTURE:]:
            assert "there are no results" in kernel.fails(cell)
        kernel.run([cells[this]], uploads=UPLOADS[name])
        (again,) = kernel.run([deepcopy(cells[STRUCTURE])])
        assert shown(again) == first
    finally:
        kernel.run(deepcopy([folded.cells[index] for index in (SEQUENCES, ALIGNMENT, MODELS)]))


def test_results_are_those_of_the_values_in_the_form(kernel: Kernel, folded: Folded) -> None:
    """Also when all cells run again in the same kernel with another sequence, other options, or an earlier sequence."""
    values = {"alignment": "single_sequence", "num_models": 1}
    rounds = [
        (SEQUENCE, form(**values)),
        (OTHER_SEQUENCE, form(**values, sequence=OTHER_SEQUENCE)),
        (OTHER_SEQUENCE, form(**values, sequence=OTHER_SEQUENCE, num_recycles="1")),
        (SEQUENCE, form(**values)),
    ]
    directories = []
    for sequence, cells in rounds:
        kernel.run(cells)
        assert shown_residues(cells) == len(sequence)
        content = archive(kernel, cells)
        directories.append(content.filename)
        (structure,) = (name for name in content.namelist() if name.endswith("/ranked_0.pdb"))
        assert len(re.findall(r"ATOM +\d+ +CA ", content.read(structure).decode())) == len(sequence)
    assert len(set(directories)) == 3
    assert directories[0] == directories[3]
    assert [cells for _, cells in rounds if "finished before" in printed(cells)] == [rounds[3][1]]
    kernel.run(deepcopy(folded.cells[SEQUENCES : JOB + 1]))


def test_a_batch_of_chains_and_complexes_with_own_files_on_google_drive(tmp_path: Path, archive_url: str) -> None:
    """Both targets have their own alignment or a template, all results are on Drive, and the archive has both."""
    values = {
        "sequences_from": "upload",
        "alignment": "upload",
        "save_to_google_drive": True,
        "output_format": "colabfold",
    }
    cells = form(**values, num_models=1, num_recycles="1", num_seeds=2, dropout=True, save_recycles=True, color="chain")
    batch = f">one\n{SEQUENCE}\n>two\n{SEQUENCE}:{OTHER_SEQUENCE}\n".encode()
    with new_kernel(tmp_path, archive_url) as kernel:
        alignments = {"one.a3m": A3M, "two_A.a3m": A3M, "two_B.a3m": f">B\n{OTHER_SEQUENCE}\n".encode()}
        kernel.run(cells[: SEQUENCES + 1], uploads={"batch.fasta": batch})
        kernel.run([cells[ALIGNMENT]], uploads=alignments)
        kernel.run(cells[MODELS:])
        assert "two: 26 residues in 2 chains" in printed(cells[SEQUENCES:ALIGNMENT])
        text = printed(cells[PREDICT:STRUCTURE])
        assert re.findall(r"(\w+), rank (\d): <Prediction model_1_multimer_v3_seed_\d", text) == [
            ("one", "1"),
            ("one", "2"),
            ("two", "1"),
            ("two", "2"),
        ]
        assert "one: 2 rows" in text
        names = archive(kernel, cells).namelist()
        (results,) = (tmp_path / "drive" / "MyDrive" / "helixfold").glob("ubiquitin_*/")
        assert all((results.parent / name).exists() for name in names)
        assert any(name.endswith("/two/report.html") for name in names)
        (second,) = kernel.run([form(**values, target_number=2, color="chain")[STRUCTURE]])
        assert shown(second) != shown(cells[STRUCTURE])


def test_the_settings_of_a_t4_pass(tmp_path: Path, archive_url: str) -> None:
    """Its memory, its precision (float32 or float16) and its backends, on a processor that passes for one."""
    with new_kernel(tmp_path, archive_url) as kernel:
        kernel.say("host.simulate('t4')")
        for dtype, peptide in (("auto", "float32"), ("float16", "float16")):
            cells = kernel.run(form(alignment="single_sequence", num_models=1, dtype=dtype))
            assert "NVIDIA T4: 14 GiB of memory, computes in float32 by default" in printed(cells[DEVICE:SEQUENCES])
            settings = kernel.say("print((results() / 'ubiquitin' / 'settings.json').read_text())")
            assert f'"dtype": "{peptide}"' in settings
            assert shown_residues(cells) == len(SEQUENCE)


_FAILURES: Mapping[str, tuple[dict[str, object], int, str]] = {
    "download": ({"model_type": "ptm"}, ESTIMATE, "helixfold weights failed with exit code 2"),
    "search": ({"alignment": "mmseqs2_uniref"}, PREDICT, "helixfold predict failed with exit code [13]"),
    "input": ({"sequence": "not one!"}, SEQUENCES, "InputError"),
    "upload": ({"alignment": "upload"}, ALIGNMENT, "no a3m files were uploaded"),
    "memory": ({}, ESTIMATE, "helixfold predict failed with exit code 1"),
}


@pytest.mark.parametrize("case", _FAILURES)
def test_a_failure_stops_the_notebook(case: str, kernel: Kernel, folded: Folded) -> None:
    """The cell with the mistake fails, not a later one, and nothing is shown."""
    values, place, message = _FAILURES[case]
    with mock_server() as server:
        server.answers["submit"] = [state("ERROR")]
        server.answers["download"] = [failing(404)]
        cells = form(**{"server": server.url, "alignment": "single_sequence", "model_type": "small", **values})
        if case == "download":
            kernel.say(f"host.use_small_parameters('{server.url}/none.tar'); host.use_cache('empty')")
        if case == "memory":
            kernel.say("host.limit_memory(1000)")
        try:
            kernel.run(cells[:place], uploads={})
            with pytest.raises(nbclient.exceptions.CellExecutionError, match=message):
                kernel.run([cells[place]])
        finally:
            kernel.say("host.restore()")
            kernel.run(deepcopy(folded.cells[SEQUENCES : JOB + 1]))
    assert not any("data" in output for output in outputs(cells))


def test_installing_leaves_the_hosts_pytorch_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> None:
        assert check
        commands.append(command)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(subprocess, "run", run)
    found: dict[str, Any] = {}
    exec(compile(CELLS[INSTALL].source, "install", "exec"), found)
    ((*words, source),) = commands
    assert words == [sys.executable, "-m", "pip", "install", "--quiet", "-c", "installed.txt"]
    assert source == found["SOURCE"]
    kept = (tmp_path / "installed.txt").read_text().splitlines()
    assert kept == [f"{name}=={importlib.metadata.version(name)}" for name in ("torch", "numpy")]
