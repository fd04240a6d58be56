"""Fine-tunings that take turns over one model come, bit for bit, to what each comes to alone."""

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import config

from data_pipeline.io.errors import InputError
from helixfold.cli.main import main
from helixfold.optim.flat import FlatOptimizer
from helixfold.results.lock import locked_directory
from helixfold.training.finetune.jobs import config_of, read_tasks
from helixfold.training.finetune.options import FinetuneOptions
from helixfold.training.stopping import StopRequest
from tests.support.interruptions import Event, Kill, at_event, count_changes
from tests.training.finetune.runs import PRESET, jobs_file, result, words
from tests.training.ranks import Ranks, finetune

# Enough to take turns; each has a step after the first turn of the other.
SOME = ("low", "wide")
JOBS = (
    'name = "low"\nlearning_rate = 0.01',
    'name = "wide"\nrank = 8\ntargets = "evoformer.*"\nseed = 1',
    'name = "heads"\nadapter = "heads"',
    'name = "short"\ndecomposed = true\nsteps = 1',
)
NAMES = ("low", "wide", "heads", "short")
ALONE = {
    "low": ["--learning-rate=0.01"],
    "wide": ["--rank=8", "--targets=evoformer.*", "--seed=1"],
    "heads": ["--adapter=heads"],
    "short": ["--decomposed", "--steps=1"],
}


def several(weights: Path, jobs: Path, output: Path, *more: str) -> list[str]:
    return ["--jobs", str(jobs), "--weights", str(weights), "--output", str(output), "--device=cpu", *more]


@pytest.fixture(autouse=True, scope="module")
def shapes_are_not_checked() -> Iterator[None]:
    """Shapes are checked where single runs are tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "jaxtyping_disable", True)
        yield


@pytest.fixture(scope="module")
def jobs(store: Path, held_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jobs_file(tmp_path_factory.mktemp("jobs") / "jobs.toml", store, held_out, JOBS)


@pytest.fixture(scope="module")
def some_jobs(store: Path, held_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    some = [job for name, job in zip(NAMES, JOBS, strict=True) if name in SOME]
    return jobs_file(tmp_path_factory.mktemp("jobs") / "some.toml", store, held_out, some)


@pytest.fixture(scope="module")
def together(weights: Path, jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("together")
    assert main(["finetune", *several(weights, jobs, output)]) == 0
    return output


@pytest.fixture(scope="module")
def alone(store: Path, weights: Path, held_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of runs that are each a command of its own."""
    output = tmp_path_factory.mktemp("alone")
    for name, more in ALONE.items():
        assert main(["finetune", *words(store, weights, output / name, f"--held-out={held_out}", *more, steps=2)]) == 0
    return output


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_each_comes_to_what_it_comes_to_alone(name: str, together: Path, alone: Path) -> None:
    assert result(together / name) == result(alone / name)


@pytest.mark.long
def test_the_order_of_turns_and_the_memory_change_no_bit(
    weights: Path, jobs: Path, together: Path, tmp_path: Path
) -> None:
    assert main(["finetune", *several(weights, jobs, tmp_path, "--schedule=deadline", "--memory=1MB")]) == 0
    for name in NAMES:
        assert result(tmp_path / name) == result(together / name)


def test_a_table_and_a_page_have_all_of_them(together: Path) -> None:
    header, *rows = [line.split("\t") for line in (together / "finetuning.tsv").read_text().splitlines()]
    assert [row[0] for row in rows] == list(NAMES)
    assert {row[header.index("state")] for row in rows} == {"finished"}
    assert rows[3][header.index("steps")] == "1"
    page = (together / "finetuning.html").read_text()
    assert all(name in page for name in NAMES)
    assert "data:image/png" in page


def test_what_has_ended_is_not_made_again(weights: Path, jobs: Path, together: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in together.rglob("adapter.safetensors")}
    assert len(before) == 4
    assert main(["finetune", *several(weights, jobs, together)]) == 0
    assert {path: path.stat().st_mtime_ns for path in together.rglob("adapter.safetensors")} == before
    changed = jobs.with_name("changed.toml")
    changed.write_text(jobs.read_text().replace("rank = 8", "rank = 7"))
    assert main(["finetune", *several(weights, changed, together)]) == 2


def test_a_table_that_a_killed_run_did_not_finish_is_removed(weights: Path, jobs: Path, together: Path) -> None:
    partial = together / ".finetuning.tsv.0123abcd.partial"
    partial.touch()
    assert main(["finetune", *several(weights, jobs, together)]) == 0
    assert not partial.exists()


def test_a_directory_that_another_run_writes_into_is_refused(
    weights: Path, some_jobs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked_directory(tmp_path / "out"):
        assert main(["finetune", *several(weights, some_jobs, tmp_path / "out")]) == 2
    assert "out: another run is writing there (process" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".helixfold.lock"]


def test_one_that_diverges_stops_no_other(
    weights: Path, some_jobs: Path, together: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of one of them are not finite from its second step on."""
    step = FlatOptimizer.step

    def spoiled(optimizer: FlatOptimizer, rate: float, *, micro_batches: int) -> object:
        if rate == 0.01 and int(optimizer.tensors()["updates"]) == 1:
            optimizer.gradient_sum.fill_(float("nan"))
        return step(optimizer, rate, micro_batches=micro_batches)

    monkeypatch.setattr(FlatOptimizer, "step", spoiled)
    spoilt = some_jobs.with_name("spoilt.toml")
    spoilt.write_text(some_jobs.read_text().replace("settings = [", 'settings = ["max_skipped=1", '))
    assert main(["finetune", *several(weights, spoilt, tmp_path)]) == 1
    states = dict(line.split("\t")[0:3:2] for line in (tmp_path / "finetuning.tsv").read_text().splitlines()[1:])
    assert states == {"low": "diverged", "wide": "finished"}
    assert "1 step in a row" in (tmp_path / "finetuning.html").read_text()
    assert result(tmp_path / "wide")["tensors"] == result(together / "wide")["tensors"]


@pytest.fixture(scope="module")
def unbroken(weights: Path, jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the fine-tunings come to in a process like those that are killed, which has threads of its own."""
    output = tmp_path_factory.mktemp("unbroken")
    with Ranks(1, output.with_suffix(".txt"), finetune, several(weights, jobs, output)) as processes:
        assert processes.finish() == [0], processes.printed()
    return output


def check_kills(kills: int, weights: Path, jobs: Path, unbroken: Path, directory: Path) -> None:
    """Fine-tunings are killed at random changes of files and resumed, until all kills are spent."""
    counted = directory / "counted"
    changes = count_changes(counted, lambda: finetune(several(weights, jobs, counted)))
    random, left, number = np.random.default_rng(7), kills, 0
    while left:
        number += 1
        output, printed = directory / f"run_{number}", directory / "out.txt"
        code: int | None = None
        while code != 0:
            # An event that does not happen any more lets the run end.
            event = Event(index=int(random.integers(1, changes + 1)) if left else 0)
            words = several(weights, jobs, output)
            with Ranks(1, printed, at_event, Kill(signal.SIGKILL, event), 0, output, finetune, words) as processes:
                (code,) = processes.finish()
                assert code in (0, -signal.SIGKILL), processes.printed()
            left -= code != 0
        for name in NAMES:
            assert result(output / name) == result(unbroken / name), name


def test_stopped_ones_go_on_to_the_same_bits(
    weights: Path, some_jobs: Path, together: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter(range(1000))
    with monkeypatch.context() as stopping:
        stopping.setattr(StopRequest, "is_requested", lambda _: next(asked) > 1)
        assert main(["finetune", *several(weights, some_jobs, tmp_path)]) == 143
    states = [line.split("\t")[2] for line in (tmp_path / "finetuning.tsv").read_text().splitlines()[1:]]
    assert "stopped" in states
    assert main(["finetune", *several(weights, some_jobs, tmp_path)]) == 0
    for name in SOME:
        assert result(tmp_path / name) == result(together / name), name


@pytest.mark.long
def test_twenty_kills(weights: Path, jobs: Path, unbroken: Path, tmp_path: Path) -> None:
    check_kills(20, weights, jobs, unbroken, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no fine-tunings; write a table"),
        ("[job", "not a TOML file of fine-tunings"),
        ('[[job]]\nname = "a"', "job 'a' has no training_set"),
        ('[[job]]\ntraining_set = "s"', "job 1: must have a name"),
        ('[[job]]\nname = "a/b"\ntraining_set = "s"', "job 1: "),
        ('[[job]]\nname = "a"\ntraining_set = "s"\nrang = 3', "job 'a': unknown rang; it can hold training_set,"),
        ('[[job]]\nname = "a"\ntraining_set = "s"\nrank = "3"', "job 'a': rank cannot be '3'"),
        ('[[job]]\nname = "a"\ntraining_set = "s"\nrank = true', "job 'a': rank cannot be True"),
        ('[[job]]\nname = "a"\ntraining_set = "s"\nrank = 0', "job 'a': LowRankConfig.rank must be at least 1"),
        (
            '[[job]]\nname = "a"\ntraining_set = "s"\nadapter = "all"',
            "job 'a': adapter must be one of lora, full, heads",
        ),
        ('[[job]]\nname = "a"\ntraining_set = "s"\ndeadline = -1', "job 'a': deadline must be a number of seconds"),
        ('[[job]]\nname = "a"\ntraining_set = "s"\nsettings = [1]', "job 'a': settings cannot be"),
        ('[[job]]\nname = "a"\ntraining_set = "s"\nsettings = ["x=1"]', "job 'a': unknown setting 'x'"),
        ('[[job]]\nname = "a"\ntraining_set = "s"\n' * 2, "two jobs have the name 'a'"),
        (
            'jobs = 1\n[[job]]\nname = "a"\ntraining_set = "s"',
            "unknown jobs; it can hold defaults, job; did you mean job?",
        ),
        ('defaults = 1\n[[job]]\nname = "a"\ntraining_set = "s"', "defaults must be a table"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_tasks(path, PRESET, tmp_path / "out")
    assert message in str(error.value), str(error.value)
    assert "\n" not in str(error.value)


@given(text=st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("text") / "jobs.toml"
    path.write_text(text, encoding="utf-8")
    with suppress(InputError):
        read_tasks(path, PRESET, Path("out"))


def test_a_job_has_the_settings_of_the_same_options(tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_text('[[job]]\nname = "a"\ntraining_set = "set"\n')
    (task,) = read_tasks(tmp_path / "jobs.toml", PRESET, tmp_path / "out")
    assert task.config == config_of(PRESET, vars(FinetuneOptions()))
    assert task.training_set == tmp_path / "set"
    assert task.output == tmp_path / "out/a"
