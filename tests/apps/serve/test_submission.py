"""What users submit is read, named and told to workers; forecasts and local workers follow plain rules."""

import base64
import itertools
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.serve import run
from helixfold.apps.serve.alignment_request import AlignmentRequest
from helixfold.apps.serve.forecast_curve import estimate_job, usual_model
from helixfold.apps.serve.job_options import job_options
from helixfold.apps.serve.queue.workers import WorkerOffers
from helixfold.apps.serve.settings import ServeSettings, check_encrypted, is_loopback
from helixfold.apps.serve.storage import checked_name, file_name_of
from helixfold.apps.serve.submission import Submission, UploadedFile, read_sequence_file, read_submissions
from helixfold.apps.serve.submitted_files import read_records

A3M = UploadedFile(kind="alignment", name="Rows.A3M.GZ", content=b"x")
CIF = UploadedFile(kind="template", name="a.b.cif", content=b"y")


def test_a_text_is_one_sequence_or_records() -> None:
    (alone,) = read_submissions(" MKTAY\n IAKQR ", "mine", {"seed": 3}, [A3M, CIF])
    assert (alone.name, alone.chains, alone.residues, alone.sequence) == ("mine", ("MKTAYIAKQR",), 10, "MKTAYIAKQR")
    assert read_submissions("MKTAYIAKQR")[0].name == "protein"
    first, second = read_submissions(">one\nMKTAYIAKQR\n>two\nMKTAYIAKQR:MKTAYIAK\n", "mine")
    assert [first.name, second.name] == ["mine: one", "mine: two"]
    assert (second.chains, second.residues, second.sequence) == (("MKTAYIAKQR", "MKTAYIAK"), 18, "MKTAYIAKQR:MKTAYIAK")
    assert len(second.chain_ids) == 2
    assert read_submissions(">one\nMKTAYIAKQR\n", "mine")[0].name == "mine"
    for text, files, message in (
        ("  \n", [], "the sequence is empty"),
        (">a\nMKTAYIAKQR\n>b\nMKTAYIAKQR\n", [A3M], "can only be used with a single sequence"),
        (">a\nMKTAYIAKQR\n" * 101, [], "the text has 101 records; the maximum is 100"),
        ("A" * (2**20 + 1), [], "the text has 1,048,577 characters; the maximum is 1,048,576"),
        ("MKTAYIAKQR", [A3M] * 21, "a job takes at most 20 files, got 21"),
    ):
        with pytest.raises(InputError, match=message):
            read_submissions(text, files=files)


def test_a_typed_sequence_has_ten_residues_or_is_in_a_file(tmp_path: Path) -> None:
    assert read_records([Path("MKTAYIAKQR")], has_files=False) == [("protein", "MKTAYIAKQR")]
    with pytest.raises(InputError, match="MKTAYIAKQ: no such file; write a sequence with at least 10 capital"):
        read_records([Path("MKTAYIAKQ")], has_files=False)
    short = tmp_path / "short.fasta"
    short.write_text(">short\nMKTAYIAKQ\n")
    assert read_records([short], has_files=False) == [("short", "MKTAYIAKQ")]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.fasta", b">a\nMKT\n", ">a\nMKT\n"),
        ("noending", b"MKT", "MKT"),
        ("x.csv", b"id,sequence\na,mkt\nb,MKT*2\n", ">a\nMKT\n>b chain_ids=A:B\nMKT:MKT"),
        ("my file.a3m", b">q\nMKtT-\n>h\nMKA-\n", ">my file\nMKT"),
        ("x.A3M", b"#2,1\t1,2\n>q\nMKT\n", ">x\nMK:T:T"),
    ],
)
def test_sequence_files_become_fasta(name: str, content: bytes, expected: str) -> None:
    text, files = read_sequence_file(name, content)
    assert text == expected
    is_alignment = name.lower().endswith("a3m")
    assert [(file.kind, file.content) for file in files] == [("alignment", content)] * is_alignment


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.a3m", b"", "the a3m file has no first row with the sequence"),
        ("x.a3m", b">q\n\n>h\nMK\n", "the a3m file has no first row with the sequence"),
        ("x.a3m", b"#0\t999999\n>q\nMKT\n", "your text"),
        ("x.a3m", b"#" + b",".join([b"0"] * 1000) + b"\t" + b",".join([b"999999"] * 1000) + b"\n>q\nM\n", "too many"),
        ("x.tsv", b"id,sequence\na,MKT\n", "your text, line 1: the first line must name the columns"),
        ("x" * 200 + ".a3m", b">q\nMKT\n", "a job name must have at most 120"),
    ],
)
def test_wrong_sequence_files_are_one_sentence(name: str, content: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_submissions(read_sequence_file(name, content)[0])


def test_a_worker_is_told_the_options_and_the_files_by_kind() -> None:
    made = Submission(name="My protein!", chains=("MK", "AY"), chain_ids=("A", "B"), files=(CIF, A3M))
    told = made.request()
    assert (told["name"], told["sequence"], told["chain_ids"]) == ("My_protein", "MK:AY", ["A", "B"])
    assert (told["templates"], told["alignments"]) == (["template_0.cif"], ["alignment_1.a3m.gz"])
    assert told["options"]["predictions"] == 1
    assert list(made.stored_files()) == ["template_0.cif", "alignment_1.a3m.gz"]
    with pytest.raises(
        InputError, match=r"the name of an uploaded template must end in \.cif, \.cif\.gz, \.pdb, \.pdb\.gz"
    ):
        UploadedFile(kind="template", name="rows.a3m", content=b"").stored_name(0)
    for wrong in ({"recycles": 51}, {"predictions": 21}, {"predictions": 0}, {"seed": -1}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            job_options(wrong)
    with pytest.raises(InputError, match="newest_template must be a date as year-month-day"):
        job_options({"newest_template": "11/2021"})


def test_names_of_users_make_names_of_files() -> None:
    names = {"a/b c": "a_b_c", "__x--": "x", "***": "protein", "CON": "protein_CON", "é": "protein", "x" * 70: "x" * 60}
    assert {name: file_name_of(name) for name in names} == names
    assert checked_name(" a \t b ") == "a b"
    for wrong in ("x" * 121, "a\x07"):
        with pytest.raises(InputError, match="at most 120 printable characters"):
            checked_name(wrong)


def offers(longest: int = 0, available: int = 0, **more: Any) -> WorkerOffers:
    points = [[100, 1.0, 1e9], [200, 4.0, 4e9], [400, 32.0, 16e9]]
    curve = {"points": points, "longest": longest, "available": available, "recycles": 3}
    return WorkerOffers.model_validate({"device": "cpu", "models": ["tiny"], "forecasts": {"tiny": curve}, **more})


@pytest.mark.parametrize(
    ("residues", "seconds", "peak"),
    [(100, 1.0, 1e9), (141.4214, 2.0, 2e9), (400, 32.0, 16e9), (800, 256.0, 64e9), (50, 0.25, 2.5e8)],
)
def test_forecasts_are_straight_in_logarithms(residues: Any, seconds: float, peak: float) -> None:
    found = estimate_job([offers()], residues=residues, chains=1, model=None, recycles=0, count=1)
    assert found is not None
    assert found.seconds == pytest.approx(seconds, rel=1e-4)
    assert found.peak_bytes == pytest.approx(peak, rel=1e-4)
    more = estimate_job([offers()], residues=residues, chains=1, model=None, recycles=None, count=5)
    assert more is not None
    assert more.seconds == pytest.approx(20 * seconds, rel=1e-4)  # four iterations of five predictions


def test_a_forecast_is_of_the_worker_that_fits_and_is_fastest() -> None:
    def asked(*workers: WorkerOffers, residues: int = 400) -> Any:
        return estimate_job(workers, residues=residues, chains=1, model=None, recycles=0, count=1)

    small, large = offers(longest=300), offers(longest=400, available=10**10, device="cuda")
    assert asked(small, large).device == "cuda"
    assert (asked(small, large).peak_bytes, asked(small, large).longest) == (10**10, 400)  # the rest is spilled
    assert asked(small).fits is False
    assert (asked(small).peak_bytes, asked(small).available_bytes) == (pytest.approx(16e9), None)
    assert asked(small, residues=300).fits
    assert asked() is None
    assert estimate_job([small], residues=9, chains=1, model="other", recycles=0, count=1) is None
    assert [usual_model(["m_multimer", "m"], chains) for chains in (1, 2)] == ["m", "m_multimer"]
    assert (usual_model(["m"], 2), usual_model([], 1)) == ("m", None)


def test_tokens_are_needed_where_others_reach_the_service(tmp_path: Path) -> None:
    def settings(**options: Any) -> ServeSettings:
        return ServeSettings(data=tmp_path, **options)

    assert [settings(host=host).needs_token for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1")] == [
        *([False] * 3),
        *([True] * 2),
    ]
    assert settings(require_tokens=True).needs_token
    assert settings(behind_proxy=True).needs_token
    own = ("127.0.0.1", "localhost", "[::1]")
    assert settings().accepted_hosts == own
    assert settings(host="0.0.0.0").accepted_hosts is None
    named = settings(host="0.0.0.0", host_name=("fold",), public_url="https://fold.org:444")
    assert named.accepted_hosts == (*own, "fold", "fold.org")
    for wrong in ({"webhook_host": ("a",)}, {"public_url": "fold.org"}, {"port": 65_536}, {"max_requests": 0}):
        with pytest.raises(InputError):
            settings(**wrong)
    assert not is_loopback("example.org")
    check_encrypted("http://127.0.0.1:8000")
    check_encrypted("https://example.org")
    check_encrypted("http://example.org", allow_http=True)
    with pytest.raises(InputError, match=r"would travel unencrypted to 'http://example\.org'"):
        check_encrypted("http://example.org")


def test_equal_requests_of_other_programs_are_one_job() -> None:
    one = AlignmentRequest.of_text("msa", ">101\nmkt ay\n>102\nAC\n", "env")
    assert (one.names, one.sequences, one.residues) == (("101", "102"), ("MKTAY", "AC"), 7)
    ids = {
        each.job_id(secret)
        for secret in (b"a", b"b")
        for each in (
            one,
            AlignmentRequest.of_text("msa", ">101\nMKTAY\n>102\nAC\n", "all"),
            AlignmentRequest.of_text("msa", ">101\nMKTAY\n>103\nAC\n", "env"),
            AlignmentRequest.of_text("msa", ">101\nMKTAY\n>102\nAD\n", "env"),
        )
    }
    assert len(ids) == 8
    assert one.job_id(b"a") == AlignmentRequest.of_text("msa", ">101\nMKTAY\n>102\nAC\n", "env").job_id(b"a")
    assert (
        AlignmentRequest.from_dict(
            {"kind": "msa", "mode": "env", "names": ["101", "102"], "sequences": ["MKTAY", "AC"]}
        )
        == one
    )
    assert AlignmentRequest.of_templates("1abc_A,2xyz_B,,1abc_A").names == ("1abc_A", "2xyz_B")
    for kind, text, mode, message in (
        ("msa", ">1\nMK\n", "pairgreedy", "mode must be one of env, all, env-nofilter, nofilter"),
        ("pair", ">1\nMK\n", "env", "mode must be one of pairgreedy, paircomplete,"),
        ("msa", "MK", "env", "a query has 1 to 100 records, got 0"),
        ("msa", ">1\nMK\n" * 101, "env", "a query has 1 to 100 records, got 101"),
        ("msa", ">1\nMK\n>1\nMK\n", "env", "records with different names, got 2"),
        ("msa", ">1 a\nMK\n", "env", "records are named by digits, letters and _"),
        ("msa", ">1\n\n", "env", "record 1: it has no sequence"),
        ("msa", ">1\nMK1\n", "env", "record 1: letter 3"),
    ):
        with pytest.raises(InputError, match=message):
            AlignmentRequest.of_text(kind, text, mode)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="name 1 to 50 hits such as 1abc_A"):
        AlignmentRequest.of_templates("1abc")


def test_a_local_worker_that_ends_quickly_begins_again_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now, started, stop, ended = [100.0], [], threading.Event(), threading.Event()

    def wait(seconds: float) -> None:
        now[0] += seconds

    def run_worker() -> None:
        started.append(now[0])
        if len(started) == 5:
            now[0] += 10_000
        if len(started) == 7:
            stop.set()
            ended.set()
        raise InputError("no weights")

    monkeypatch.setattr(stop, "wait", wait)
    monkeypatch.setattr(run, "create_worker", lambda *_, **__: SimpleNamespace(name="a", stop=stop, run=run_worker))
    monkeypatch.setattr(run.time, "monotonic", lambda: now[0])
    workers = run.LocalWorkers([None])  # type: ignore[list-item]
    workers.start()
    assert ended.wait(10)
    workers.stop()
    pauses = [after - before for before, after in itertools.pairwise(started)]
    assert pauses == [2, 4, 8, 16, 10_001, 2]


def test_uploads_of_a_client_are_the_bytes_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from helixfold.apps.serve.client import Client  # noqa: PLC0415

    (tmp_path / "rows.a3m").write_bytes(b">q\nMK\n")
    asked: list[tuple[Any, ...]] = []
    client = Client("http://127.0.0.1:9")
    monkeypatch.setattr(client, "_job", lambda *arguments: asked.append(arguments) or {})
    client.submit("MK", name="a", alignments=[tmp_path / "rows.a3m"], webhook="http://x", recycles=0, model=None)
    ((method, path, body, headers),) = asked
    assert (method, path, len(headers["Idempotency-Key"])) == ("POST", "/jobs", 32)
    content = base64.b64encode(b">q\nMK\n").decode()
    assert json.loads(json.dumps(body)) == {
        "sequence": "MK",
        "name": "a",
        "options": {"recycles": 0},
        "alignments": [{"name": "rows.a3m", "content": content, "encoding": "base64"}],
        "templates": [],
        "webhook": "http://x",
    }
