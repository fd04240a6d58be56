"""A real worker predicts what was submitted, in one process that stays, and gives back what it cannot finish."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.search.process import run_program
from helixfold.apps.serve.client import Client
from helixfold.apps.serve.http_client import HttpClient, ServerError, ServerUnreachableError
from helixfold.apps.serve.job_options import job_options
from helixfold.apps.serve.submission import read_submissions
from helixfold.apps.serve.worker import process, tasks
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.apps.serve.worker.process import JobProcess, Progress
from helixfold.apps.serve.worker.worker import Worker
from helixfold.cli.main import main
from tests.apps.serve.running import running
from tests.training.ranks import SERVER


@pytest.fixture(autouse=True)
def begun_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that predict are forked from one that has everything imported."""
    monkeypatch.setattr(process, "_SPAWN", SERVER)


@pytest.mark.integration
def test_a_worker_predicts_with_one_process_and_releases_what_it_has_when_it_stops(tmp_path: Path) -> None:
    alignment = tmp_path / "rows.a3m"
    alignment.write_text(">q\nMKTAYIAKQRQISF\n>r\nMKTAYIAKQRQISY\n")
    with running(tmp_path / "service", offers=None) as server, Client(server.url) as client:
        worker = Worker(
            HttpClient(server.url, server.worker_token),
            JobProcess(WorkerOptions(device="cpu", models=("tiny",)), {"OMP_NUM_THREADS": "1"}),
            name="one",
            print_line=lambda _: None,
        )
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            job = client.submit("MKTAYIAKQRQISF", name="Mine <1>", recycles=0, alignments=[alignment])
            ended = client.wait(job["id"], seconds=0.2)
            assert ended["state"] == "done", ended
            assert 0 < ended["summary"]["plddt"] < 100
            assert {"features", "load parameters"} & {stage["name"] for stage in ended["progress"]["stages"]}
            files = {each.name for each in client.fetch(job["id"], tmp_path / "out")}
            assert {"ranked_0.pdb", "ranked_0.cif", "report.html", "settings.json"} <= files
            report = (tmp_path / "out" / "report.html").read_text()
            assert "Mine_1" in report
            (offers,) = server.service.workers.present().values()
            assert offers.models == ("tiny",)
            assert (offers.best_provenance, ended["summary"]["provenance"]) == ("untrained", "untrained")
            assert client.forecast("MKTAYIAKQR" * 10)["fits"]  # type: ignore[index]
            long = client.submit("MKTAYIAKQR" * 20, recycles=50)
            for state in client.watch(long["id"], seconds=0.1):
                if state["state"] == "running":
                    worker.stop.set()
                    break
            thread.join(30)
            assert client.job(long["id"])["state"] == "queued"
        finally:
            worker.stop.set()
            thread.join(30)


def test_what_a_process_prints_is_progress_or_a_line() -> None:
    progress = Progress()
    progress.read(b'{"target": "a", "stage": "features", "done": 0, "total": 1, "seconds": 1.25}\n  0%|  |\rhelix')
    progress.read(b"fold: note\n{broken\n\x1b[2J\n")
    assert progress.stages == [{"name": "features", "seconds": 1.25}]
    assert progress.lines == ["helixfold: note", "{broken", "\\x1b[2J"]


@pytest.mark.integration
def test_a_process_that_dies_is_told_from_one_that_fails(tmp_path: Path) -> None:
    own = JobProcess(WorkerOptions(device="nowhere"))
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(process, "_SECONDS_BETWEEN_CHECKS", 0.0)  # it is asked before there is an answer
            assert own.do("offers", {}, tmp_path, lambda _: False).error == "stopped"
        assert own.pid is None
        failed = own.do("offers", {}, tmp_path, lambda _: True)
        assert "unknown device 'nowhere'" in (failed.error or "")
        assert not failed.has_died
        killed = own.do("prediction", {"no": "request"}, tmp_path, lambda _: True)
        assert killed.has_died
        assert "KeyError" in (killed.error or "")
        assert own.do("offers", {}, tmp_path, lambda _: True).error == failed.error
        os.kill(own.pid or 0, signal.SIGKILL)
        assert own.do("offers", {}, tmp_path, lambda _: True).has_died  # between two jobs
    finally:
        own.stop()


def test_the_search_program_of_a_process_that_is_stopped_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    monkeypatch.setattr(process, "_serve", serve_programs)
    own = JobProcess(WorkerOptions())
    try:
        assert own.do("prediction", {}, tmp_path, lambda _: not started.exists()).error == "stopped"
        program = int(started.read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(program, 0)
    finally:
        own.stop()


def serve_programs(*arguments: Any) -> None:
    """Serve as the process of a worker does, but run a program that does not end as every job."""
    tasks.do = run_endless_program
    process._serve(*arguments)


def run_endless_program(kind: str, content: object, directory: Path, options: object) -> None:
    command = "echo $$ > started.part; mv started.part started; exec sleep 60"
    run_program(["sh", "-c", command], timeout=None, directory=directory)


def test_options_of_a_job_become_those_of_predict(tmp_path: Path) -> None:
    options = job_options({"recycles": 2, "predictions": 3, "newest_template": "2020-05-01", "relax": True})
    (submission,) = read_submissions("MKTAYIAKQR:MKTAY", "x", options)
    worker = WorkerOptions(models=("model_1_ptm", "model_1_multimer_v3"), databases=tmp_path)
    found = tasks.predict_options(submission.request(), tmp_path, worker, tmp_path / "out", tmp_path / "failures.json")
    assert found.models == ("model_1_multimer_v3",)
    assert (found.num_seeds, found.num_recycles, found.models_to_relax) == (3, 2, "best")
    assert found.databases == tmp_path
    assert str(found.max_template_date) == "2020-05-01"
    with pytest.raises(InputError, match="recycles"):
        job_options({"recycles": 51})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the sequence is empty"),
        ("MKT1", "letter|residue|line"),
        (">../b\nMKTAYIAKQR\n", "could lead to another directory"),
        ("XXXX", "no known residue"),
        ("M" * 2**20 + "KK", "characters"),
        (">a\nMK\n" * 101, "."),
    ],
)
def test_text_that_predict_would_not_take_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        read_submissions(text)
    assert "/tmp" not in str(error.value)


def test_a_refused_token_is_one_sentence_and_a_server_that_is_away_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Exception] = [
        ServerUnreachableError("nobody answers"),
        ServerError(401, "a worker token is required"),
    ]
    monkeypatch.setattr(Worker, "_offers", lambda _: {"alignments": False, "forecasts": {}})
    monkeypatch.setattr(HttpClient, "request", lambda *_, **__: raised(answers.pop(0)))
    token = tmp_path / "token"
    token.write_text("nonsense")
    assert main(["serve", "worker", "https://server:8000", "--token-file", str(token), "--name", "w"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "worker w: nobody answers; retrying until the server answers\n"
    assert printed.err == "helixfold: error: the server refused the request: a worker token is required\n"


def raised(error: Exception) -> None:
    raise error
