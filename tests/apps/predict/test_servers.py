"""Whatever an alignment server does, a run says so in a sentence and goes on with the other targets."""

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from data_pipeline.io.errors import ServerUnavailableError
from data_pipeline.search.alignment_server import AlignmentServer, ServerOptions
from data_pipeline.search.mmseqs_server import ServerSearch, ServerTemplates
from data_pipeline.search.plan import AlignmentStep, SearchPlan
from data_pipeline.search.server_archive import UNIREF_FILE
from helixfold.apps.options import SearchOptions
from helixfold.apps.predict import postprocess
from helixfold.apps.search import contacts_of
from helixfold.apps.search_plan import plan_of
from helixfold.cli.main import main
from helixfold.results.failures import exit_code_for
from tests.data_pipeline.search.mock_server import Answer, Handler, MockServer, archive, failing, state
from tests.support.alarm import time_limit

VICTIM, OTHER = "MKTAYIAKQR", "GSHMLEDPVA"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No downloaded weights, no pauses before a server is asked again, and nothing is drawn."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr("data_pipeline.search.plan.AlignmentServer", partial(AlignmentServer, sleep=lambda _: None))
    steps = tuple(step for step in postprocess.STEPS if step[0] in ("ranking", "timings", "mark"))
    monkeypatch.setattr(postprocess, "STEPS", steps)
    monkeypatch.setattr("helixfold.apps.predict.lot.write_alignment", lambda *_: None)
    monkeypatch.setattr("helixfold.apps.predict.lot.write_coverage", lambda *_: None)


class Batch:
    """Two targets, of which the server is bad to the first."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.fasta, self.output, self.capsys = directory / "two.fasta", directory / "out", capsys
        self.timeout = 60  # for a busy machine
        self.fasta.write_text(f">victim\n{VICTIM}\n>other\n{OTHER}\n")

    def __call__(self, command: str, url: str, *more: str) -> tuple[int, dict[str, str], str]:
        """Run a command; return its exit code, the reasons of failures and what it said."""
        limits = ("--msa-server", url, "--msa-server-timeout", str(self.timeout), "--output", str(self.output))
        code = main([command, str(self.fasta), *limits, *more])
        failures = self.output / "failures.json"
        return (
            code,
            json.loads(failures.read_text()) if failures.exists() else {},
            self.capsys.readouterr().err,
        )


@pytest.fixture
def batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Batch:
    return Batch(tmp_path, capsys)


def raw(*pieces: bytes, pause: float = 0.0) -> Answer:
    """Send what need not be HTTP; the last piece comes again and again, for as long as it is read."""

    def answer(handler: Handler) -> None:
        for piece in itertools.chain(pieces, itertools.repeat(pieces[-1])):
            handler.wfile.write(piece)
            handler.wfile.flush()
            time.sleep(pause)

    return answer


def sending(change: Callable[[bytes], bytes]) -> Answer:
    """Send the results with another content of one file."""

    def answer(handler: Handler) -> None:
        results = handler.server.results()
        handler.send(archive({**results, UNIREF_FILE: change(results[UNIREF_FILE])}))

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
MISDEEDS = {
    "status line": (raw(b"H", pause=0.02), "no complete answer within 1 s"),
    "100 Continue": (raw(b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.02), "no complete answer within 1 s"),
    "body": (raw(OK + b"Content-Length: 99999\r\n\r\n", b"x", pause=0.02), "no complete answer within 1 s"),
    "redirect": (raw(OK.replace(b"200 OK", b"302 X") + b"Location: http://[::1\r\n\r\n"), "not an http address"),
    "file": (failing(302, Location="file:///etc/passwd"), "it redirects to something that is not an http address"),
    "other status": (failing(404), "it answered 404 Not Found: 'sorry'; is this the address of an MMseqs2 server?"),
    "damage": (failing(200, b"no archive"), "8 attempts failed: the archive of results is damaged"),
    "another": (sending(lambda content: content.replace(VICTIM.encode(), OTHER.encode())), "for another sequence"),
    "NULs": (
        sending(lambda content: content + bytes(2000)),
        "uniref.a3m of the server's answer has too many NUL bytes",
    ),
    "row": (sending(lambda content: content.replace(b"-" + VICTIM[1:].encode(), b"-A")), "cannot be read and is"),
}


@pytest.mark.parametrize("name", MISDEEDS)
def test_a_misdeed_costs_one_target_a_sentence(server: MockServer, batch: Batch, name: str) -> None:
    misdeed, sentence = MISDEEDS[name]
    good = server.answers["download"][0]

    def download(handler: Handler) -> None:
        (misdeed if VICTIM in server.asked().values() else good)(handler)

    server.answers["download"] = [download]
    batch.timeout = 1 if "within 1 s" in sentence else 60
    with time_limit(300):
        code, failures, _ = batch("features", server.url)
    assert (code, list(failures)) == (1, ["victim"])
    assert sentence in failures["victim"]
    assert failures["victim"].startswith("SearchError: ")
    assert (batch.output / "other" / "features.npz").is_file()
    # Nothing of it was kept: the next run asks again.
    server.answers["download"] = [good]
    batch.timeout = 60
    assert batch("features", server.url)[:2] == (0, {})


def test_a_dead_server_ends_searches_and_not_the_run(server: MockServer, batch: Batch) -> None:
    batch.fasta.write_text(f">other\n{OTHER}\n")
    assert batch("features", server.url)[0] == 0
    batch.fasta.write_text(f">victim\n{VICTIM}\n>third\n{VICTIM}A\n>other\n{OTHER}\n")
    server.answers["submit"] = [state("RATELIMIT")]
    code, failures, said = batch(
        "predict", server.url, "--msa-server-wait", "5", "--models", "tiny", "--num-recycles", "0"
    )
    assert code == 3
    assert failures["victim"] == failures["third"]
    assert failures["victim"].startswith("ServerUnavailableError: MMseqs2 server http://127.0.0.1")
    assert failures["victim"].endswith(
        "no answer within 5 s: too many requests (RATELIMIT); without it, pass --msa FILE or --database FASTA, "
        "or fold the sequence alone with --msa-mode single_sequence"
    )
    assert (batch.output / "other" / "ranked_0.pdb").is_file()
    assert said.count("too many requests (RATELIMIT); trying again in ") == server.requests.count("submit") - 2


def test_a_server_that_is_known_to_be_given_up_is_not_asked() -> None:
    own = ServerSearch(AlignmentServer(ServerOptions(url="http://here")))
    plan = SearchPlan(alignments=(AlignmentStep(result_file="server_hits.a3m", tool=own, max_rows=None),))

    (contact,) = contacts_of(plan)
    assert contact.problem is None
    contact.problem = "it is dead"
    with pytest.raises(ServerUnavailableError, match=r"^it is dead$"):
        own.search("MKV")


@pytest.mark.parametrize(
    ("failures", "code"),
    [([], 0), (["ServerUnavailableError: x"], 3), (["ServerUnavailableError: x", "OSError: y"], 1)],
)
def test_the_exit_code_says_whether_only_a_server_was_lacking(failures: list[str], code: int) -> None:
    assert exit_code_for(dict(enumerate(failures))) == code  # type: ignore[arg-type]


def test_templates_alone_are_the_servers(tmp_path: Path) -> None:
    plan = plan_of(SearchOptions(msa_server="http://127.0.0.1:1", templates=()))
    assert plan.templates is not None
    assert isinstance(plan.templates.tool, ServerTemplates)
    assert plan_of(SearchOptions(msa_server="http://127.0.0.1:1")).templates is None


@pytest.mark.parametrize("given", [True, False])
def test_templates_of_a_server_are_kept_where_the_search_cache_is(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_pipeline.io.user_cache.user_cache", lambda: tmp_path / "home")
    options = SearchOptions(msa_server="http://127.0.0.1:1", templates=())
    plan = plan_of(replace(options, search_cache=tmp_path / "own") if given else options)
    assert plan.templates is not None
    assert isinstance(plan.templates.tool, ServerTemplates)
    assert plan.templates.tool.structures == tmp_path / ("own" if given else "home/databases") / "structures"
