"""The REST interface and its client: submitted, predicted by a worker that the test is, fetched, shared, cancelled."""

import base64
import io
import json
import threading
import zipfile
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from helixfold.apps.serve.client import Client, ServerError
from helixfold.cli.main import main
from tests.apps.serve.running import Running

API = "/api/v1"
FILES = {"ranked_0.pdb": b"ATOM\nEND\n", "report.html": b"<p>report</p>", "msas/rows.a3m": b">a\nMK\n"}


def submitted(server: Running, name: str = "mine", **others: object) -> str:
    return str(server.json("POST", f"{API}/jobs", {"sequence": "MKTAYIAKQR", "name": name, **others})["id"])


def test_a_job_goes_from_its_submission_to_its_files(server: Running, tmp_path: Path) -> None:
    with Client(server.url) as client:
        job = client.submit("MKT:AYI*2", name="My <complex> & more", recycles=1, predictions=2)
        assert (job["state"], job["place"], job["residues"]) == ("queued", 1, 9)
        claimed = server.claim()
        assert claimed["id"] == job["id"]
        assert claimed["request"]["sequence"] == "MKT:AYI:AYI"
        assert claimed["request"]["name"] == "My_complex_more"
        assert claimed["request"]["options"]["predictions"] == 2
        progress = {"progress": {"stages": [{"name": "features", "seconds": 1.5}]}}
        server.as_worker("POST", "/heartbeat", claimed, content=progress)
        assert client.job(job["id"])["progress"]["stages"] == progress["progress"]["stages"]
        server.finish(claimed, FILES, plddt=91.5)
        ended = client.wait(job["id"])
        assert (ended["state"], ended["summary"]["plddt"], ended["summary"]["ptm"]) == ("done", 91.5, None)
        written = client.fetch(job["id"], tmp_path / "out")
        assert {path.relative_to(tmp_path / "out").as_posix(): path.read_bytes() for path in written} == FILES
        archive = server.asked("GET", f"{API}/jobs/{job['id']}/archive")[2]
        assert set(zipfile.ZipFile(io.BytesIO(archive)).namelist()) == {f"My_complex_more/{path}" for path in FILES}
        client.delete(job["id"])
        assert client.job(job["id"])["state"] == "expired"
        assert not server.service.storage.job(job["id"]).exists()


def test_the_error_of_an_unknown_option_has_the_names_of_all_options(server: Running) -> None:
    body = {"sequence": "MKTAYIAKQR", "options": {"num_recycles": 0}}
    status, _, answer = server.asked("POST", f"{API}/jobs", body)
    assert status == 422
    problem = json.loads(answer)["error"]
    assert problem.startswith("unknown option 'num_recycles'; options: search, ")
    names = problem.partition("options: ")[2].partition(";")[0].split(", ")
    assert {"model", "recycles", "predictions"} < set(names)


@pytest.mark.integration
def test_a_request_that_is_sent_again_makes_no_second_job(server: Running) -> None:
    body, headers = {"sequence": "MKTAYIAKQR"}, {"Idempotency-Key": "once"}
    first, second = (server.asked("POST", f"{API}/jobs", body, headers=headers) for _ in range(2))
    assert (first[0], second[0]) == (201, 200)
    assert json.loads(first[2])["id"] == json.loads(second[2])["id"]
    other = server.asked("POST", f"{API}/jobs", {"sequence": "MKTAYIAK"}, headers=headers)
    assert other[0] == 409
    rows = {"name": "rows.a3m", "content": ">query\nMKTAYIAKQR\n>other\nMKTAYIAKQQ\n"}
    assert server.asked("POST", f"{API}/jobs", body | {"alignments": [rows]}, headers=headers)[0] == 409
    uploaded, headers = body | {"alignments": [rows]}, {"Idempotency-Key": "with rows"}
    third = server.asked("POST", f"{API}/jobs", uploaded, headers=headers)
    assert third[0] == 201
    changed = rows | {"content": rows["content"].replace("QQ", "QK")}  # under the same name
    assert server.asked("POST", f"{API}/jobs", body | {"alignments": [changed]}, headers=headers)[0] == 409
    server.json("POST", f"{API}/jobs/{json.loads(third[2])['id']}/cancel")
    server.json("POST", f"{API}/jobs/{json.loads(first[2])['id']}/cancel")


@pytest.mark.integration
def test_uploads_are_read_before_they_are_queued_and_reach_the_worker(server: Running) -> None:
    rows = ">query\nMKTAYIAKQR\n>other\nMKTAYIAKQQ\n"
    bad = {"alignments": [{"name": "rows.a3m", "content": ">query\nMKTAYIAKQRWW\n"}]}
    status, _, body = server.asked("POST", f"{API}/jobs", {"sequence": "MKTAYIAKQR", **bad})
    assert status == 422
    assert b"alignment_0.a3m" in body
    assert str(server.service.storage.directory).encode() not in body
    packed = base64.b64encode(rows.encode()).decode()
    job = submitted(server, alignments=[{"name": "/etc/../rows.a3m", "content": packed, "encoding": "base64"}])
    claimed = server.claim()
    assert claimed["id"] == job
    assert claimed["request"]["alignments"] == ["alignment_0.a3m"]
    assert server.as_worker("GET", "/inputs/alignment_0.a3m", claimed).decode() == rows
    server.as_worker("POST", "/release", claimed)
    server.json("POST", f"{API}/jobs/{job}/cancel")


def test_a_worker_whose_job_was_cancelled_is_told_and_its_result_refused(server: Running) -> None:
    job = submitted(server)
    claimed = server.claim()
    assert server.json("POST", f"{API}/jobs/{job}/cancel")["state"] == "cancelled"
    with pytest.raises(ServerError, match="no longer belongs to this worker"):
        server.finish(claimed, FILES)
    assert server.json("POST", f"{API}/jobs/{job}/retry")["state"] == "queued"
    again = server.claim()
    assert (again["id"], again["attempt"]) == (job, 2)
    server.finish(again, FILES)
    assert server.json("GET", f"{API}/jobs/{job}")["state"] == "done"


def test_a_result_whose_files_did_not_all_arrive_is_no_result(server: Running) -> None:
    submitted(server)
    claimed = server.claim()
    server.as_worker("PUT", "/results/a.pdb", claimed, body=b"x")
    with pytest.raises(ServerError, match="expected 2 files of the result, got 1"):
        server.as_worker("POST", "/finish", claimed, content={"files": 2})
    failed = {"error": "out of memory", "try_again": False}
    server.as_worker("POST", "/fail", claimed, content=failed)
    assert server.json("GET", f"{API}/jobs/{claimed['id']}")["error"] == "out of memory"


def test_progress_comes_as_events_until_the_end(server: Running) -> None:
    job = submitted(server)
    received: list[bytes] = []
    watching = threading.Thread(
        target=lambda: received.append(server.asked("GET", f"{API}/jobs/{job}/events")[2]), daemon=True
    )
    watching.start()
    server.finish(server.claim(), FILES)
    watching.join(10)
    events = [json.loads(line[6:]) for line in received[0].decode().splitlines() if line.startswith("data: ")]
    assert events[-1]["state"] == "done"


def test_forecasts_come_from_the_workers(server: Running) -> None:
    found = server.json("POST", f"{API}/forecast", {"sequence": "MKTAYIAKQR" * 12, "options": {"recycles": 0}})
    assert found["model"] == "tiny"
    assert 1 < found["seconds"] < 8
    status, _, body = server.asked("POST", f"{API}/jobs", {"sequence": "MKTAYIAKQR" * 60})
    assert status == 422
    assert b"600 residues do not fit into the memory of any worker" in body


def test_a_link_shows_one_job_until_it_is_withdrawn(server: Running) -> None:
    job = submitted(server)
    server.finish(server.claim(), FILES)
    link = server.json("POST", f"{API}/jobs/{job}/share")["path"]
    assert server.asked("GET", f"{link}/files/ranked_0.pdb")[2] == FILES["ranked_0.pdb"]
    assert server.asked("GET", f"{link}x/files/ranked_0.pdb")[0] == 404
    server.json("DELETE", f"{API}/jobs/{job}/share")
    assert server.asked("GET", f"{link}/files/ranked_0.pdb")[0] == 404


@pytest.mark.integration
def test_other_programs_get_the_structure_itself(server: Running) -> None:
    answers: list[tuple[int, dict[str, str], bytes]] = []

    def asked(path: str, **others: object) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.append(server.asked("POST", path, **others)), daemon=True)
        thread.start()
        return thread

    nim = "/protein-structure/alphafold2/predict-structure-from-"
    aligned = {"sequence": "MKTAYIAKQR", "alignments": {"small_bfd": ["small_bfd", ">q\nMKTAYIAKQR\n", "a3m"]}}
    requests = [
        asked("/foldSequence/v1/pdb/", body=b"MKTAYIAKQR\n"),
        asked(f"{nim}sequence", content={"sequence": "MKTAYIAKQR", "databases": ["uniref90"]}),
        asked(f"{nim}MSA", content=aligned),
    ]
    done = 0
    while done < len(requests):
        if (claimed := server.claim()) is not None:
            server.finish(claimed, FILES)
            done += 1
    for thread in requests:
        thread.join(10)
    texts = sorted(answer[2] for answer in answers)
    assert texts == [FILES["ranked_0.pdb"], *[json.dumps(["ATOM\nEND\n"], separators=(",", ":")).encode()] * 2]
    assert server.asked("GET", "/v1/health/ready")[0] == 200


def test_commands_submit_tell_and_fetch(server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "two.fasta").write_text(">one\nMKTAYIAKQR\n>two\nMKTAYIAKQR:MKTAY\n")
    assert main(["submit", str(tmp_path / "two.fasta"), "--server", server.url, "--num-recycles", "0"]) == 0
    ids = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    for _ in ids:
        server.finish(server.claim(), FILES)
    assert main(["status", "--server", server.url, *ids]) == 0
    assert capsys.readouterr().out.count("done") == 2
    assert main(["fetch", *ids, "--server", server.url, "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / f"one_{ids[0][:8]}" / "ranked_0.pdb").read_bytes() == FILES["ranked_0.pdb"]
    assert main(["status", "--server", server.url, "0" * 32]) == 2
    assert "you have no job with this id" in capsys.readouterr().err


def test_metrics_count_jobs_and_requests(server: Running) -> None:
    server.asked("WRONG", "/api/v1/jobs/" + "0" * 32)
    text = server.asked("GET", "/metrics")[2].decode()
    samples = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float:
        return samples["helixfold_" + name, frozenset(labels.items())]

    jobs = server.service.views.counts()
    for state in ("queued", "running", "done", "failed", "cancelled", "expired"):
        assert value("jobs", kind="prediction", state=state) == jobs.get(("prediction", state), 0)
        assert value("jobs", kind="alignment", state=state) == jobs.get(("alignment", state), 0)
    assert value("workers") == len(server.service.workers.present())
    assert value("start_time_seconds") == pytest.approx(server.service.started)
    route = "/api/v1/jobs/{job_id}"
    count = sum(
        value
        for (name, labels), value in samples.items()
        if name == "helixfold_requests_total" and ("route", route) in labels
    )
    assert value("requests_total", method="OTHER", route=route, status="405") == 1
    assert value("request_seconds_count", route=route) == value("request_seconds_bucket", route=route, le="+Inf")
    assert value("request_seconds_count", route=route) == count
    below = [value("request_seconds_bucket", route=route, le=le) for le in ("0.005", "0.2", "1.0", "5.0")]
    assert below == sorted(below)
    assert value("request_seconds_sum", route=route) > 0
    assert {name for name, _ in samples if name.endswith("_created")} == set()
