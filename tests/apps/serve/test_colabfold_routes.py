"""Clients of ColabFold's MSA server get from this service what a search of the same databases finds."""

import io
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlencode

import pytest

from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.search.alignment_server import AlignmentServer, ServerOptions
from data_pipeline.search.colabfold_search import ColabfoldPairing, ColabfoldSearch
from data_pipeline.search.mmseqs_program import OLDEST_FOR_CLUSTERS, find_mmseqs, mmseqs_release
from data_pipeline.search.mmseqs_server import ServerPairing, ServerSearch, ServerTemplates
from data_pipeline.search.plan import AlignmentStep, PairingStep, SearchPlan
from helixfold.apps.serve.alignment_request import MODES
from helixfold.apps.serve.worker import tasks
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.apps.serve.worker.tasks import pack, split_databases
from tests.apps.serve.msa_clients import PROGRAMS, compare, is_there
from tests.apps.serve.running import Running, running
from tests.apps.serve.searching import serve_searches
from tests.apps.serve.test_pages import Browser
from tests.data_pipeline.search.made_databases import Made
from tests.support.sources import ROOT

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class Searching:
    """A server with a worker that searches, and the databases that it searches."""

    server: Running
    made: Made

    @property
    def client(self) -> AlignmentServer:
        return AlignmentServer(ServerOptions(url=self.server.url), sleep=lambda _: time.sleep(0.3))


@pytest.fixture(scope="module")
def searching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searching]:
    """Results are kept in a cache of the test's own."""
    program = find_mmseqs()
    if program is None or (mmseqs_release(program) or OLDEST_FOR_CLUSTERS) < OLDEST_FOR_CLUSTERS:
        pytest.skip(f"needs MMseqs2, release {OLDEST_FOR_CLUSTERS} or a newer one")
    folder = tmp_path_factory.mktemp("databases")
    made = Made(program, folder)
    structures = folder / "pdb" / "divided"
    structures.mkdir(parents=True)
    shutil.copy(next((ROOT / "examples" / "complexes").glob("*.cif")), structures / "9abc.cif")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with serve_searches(tmp_path_factory.mktemp("service"), folder) as server:
            yield Searching(server, made)


@pytest.mark.long
def test_alignments_and_templates_are_those_of_the_databases(searching: Searching, tmp_path: Path) -> None:
    made = searching.made
    client = ServerSearch(searching.client, with_templates=True)
    templates = ServerTemplates(alignments=client, structures=tmp_path / "structures")
    (alignment,) = client.search_many([made.first])
    own = parse_a3m(made.search.search(made.first), made.first)
    # The target stands above the environmental rows too, which a client leaves out.
    names = [name for name in own.names if name != "101"]
    assert list(parse_a3m(alignment, made.first).names[1:]) == names
    assert len(names) > 5
    assert templates.search(f">query\n{made.first}\n".encode()).startswith(b"101\t9abc_A\t")
    templates.fetch(["9abc_A", "8xyz_B"])
    assert [path.name for path in (tmp_path / "structures").iterdir()] == ["9abc.cif"]
    content = searching.server.asked("GET", "/template/9abc_A,8xyz_B")[2]
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == ["9abc.cif", "pdb70_a3m.ffdata", "pdb70_a3m.ffindex"]


@pytest.mark.long
def test_pairs_are_those_of_the_databases(searching: Searching) -> None:
    made = searching.made
    sequences = [made.first, made.second]
    own = ColabfoldPairing(batch=made.batch, database=made.uniref).search(sequences)
    for sequence, alignment, theirs in zip(
        sequences, own, ServerPairing(searching.client).search(sequences), strict=True
    ):
        assert parse_a3m(theirs, sequence).names[1:] == parse_a3m(alignment, sequence).names[1:]


@pytest.mark.integration
def test_equal_requests_are_one_search(tmp_path: Path) -> None:
    body = urlencode({"q": ">101\nMKTAYIAKQR\n", "mode": "all"}).encode()
    with running(tmp_path, offers={"alignments": True}) as server:
        first, second = (server.json("POST", "/ticket/msa", body=body, headers=FORM) for _ in range(2))
        assert first == second
        assert first["status"] == "PENDING"
        server.finish(server.claim(("alignment",)), {"result.tar.gz": pack({"uniref.a3m": b">101\n"})})
        assert server.claim(("alignment",)) is None
        assert server.json("POST", "/ticket/msa", body=body, headers=FORM) == {**first, "status": "COMPLETE"}
        assert server.asked("GET", f"/result/download/{first['id']}")[2][:2] == b"\x1f\x8b"


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}])
def test_page_of_another_site_submits_no_search(headers: dict[str, str], tmp_path: Path) -> None:
    with running(tmp_path, offers={"alignments": True}, wait_seconds=0.1) as server:
        assert server.asked("GET", "/template/1abc_A", headers=headers)[0] == 403
        assert server.service.views.counts() == {}
        assert server.asked("GET", "/template/1abc_A")[0] == 504  # a client's own waits for a worker
        assert server.service.views.counts() == {("alignment", "queued"): 1}


@pytest.mark.integration
def test_session_alone_submits_no_search_by_a_link(tmp_path: Path) -> None:
    with running(tmp_path, offers={"alignments": True}, wait_seconds=0.1, require_tokens=True) as server:
        token = server.service.tokens.create("anna")
        browser = Browser(server)
        browser.open("/login")
        assert browser.send("/login", token=token) == 303
        assert browser.open("/template/1abc_A") == 401
        assert server.service.views.counts() == {}
        assert server.asked("GET", "/template/1abc_A", headers={"Authorization": f"Bearer {token}"})[0] == 504


def test_user_sees_and_cancels_own_searches(tmp_path: Path) -> None:
    with running(tmp_path, offers={"alignments": True}, require_tokens=True) as server:
        tokens = {name: server.service.tokens.create(name) for name in ("anna", "ben")}
        anna, ben = ({"Authorization": f"Bearer {tokens[name]}"} for name in ("anna", "ben"))
        body = urlencode({"q": ">101\nMKTAYIAKQR\n", "mode": "all"}).encode()
        ticket = server.json("POST", "/ticket/msa", body=body, headers={**FORM, **anna})["id"]
        (job,) = server.json("GET", "/api/v1/jobs?kind=alignment", headers=anna)["jobs"]
        assert (job["id"], job["kind"], job["state"]) == (ticket, "alignment", "queued")
        assert server.json("GET", "/api/v1/jobs", headers=anna)["jobs"] == []
        assert server.asked("POST", f"/api/v1/jobs/{ticket}/cancel", headers=ben)[0] == 404
        assert server.json("POST", f"/api/v1/jobs/{ticket}/cancel", headers=anna)["state"] == "cancelled"
        assert server.json("GET", f"/ticket/{ticket}", headers=anna)["status"] == "ERROR"
        assert server.claim(("alignment",)) is None
        server.json("POST", "/ticket/msa", body=body, headers={**FORM, **anna})  # queued once more
        browser = Browser(server)
        browser.open("/login")
        browser.send("/login", token=tokens["anna"])
        browser.open("/jobs")
        assert "Searches for other programs" in browser.text
        assert (browser.send(f"/jobs/{ticket}/cancel"), browser.place) == (303, "/jobs")
        assert server.claim(("alignment",)) is None
        browser.open("/jobs")
        assert "Searches for other programs" not in browser.text


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("msa", {"q": ">101\nMK1\n", "mode": "env"}),
        ("msa", {"q": ">../x\nMKTA\n", "mode": "env"}),
        ("msa", {"q": "", "mode": "env"}),
        ("msa", {"q": ">101\nMKTA\n", "mode": "--shell"}),
        ("pair", {"q": ">101\nMKTA\n>101\nMKTAY\n", "mode": "pairgreedy"}),
    ],
)
def test_what_is_no_query_is_answered_with_an_error(server: Running, path: str, fields: dict[str, str]) -> None:
    status, _, body = server.asked("POST", f"/ticket/{path}", body=urlencode(fields).encode(), headers=FORM)
    assert status == 400
    assert b'"status":"ERROR"' in body


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_clients_of_other_programs_get_what_a_search_finds(program: str, searching: Searching, tmp_path: Path) -> None:
    python = os.environ.get("HELIXFOLD_MSA_CLIENTS", sys.executable)
    if not is_there(python, program):
        pytest.skip(f"{python} has no package with the client of {program} (set HELIXFOLD_MSA_CLIENTS to one that has)")
    compare(python, program, searching.server.url, searching.made, tmp_path / program)


def test_tickets_that_there_are_not_are_unknown(server: Running) -> None:
    assert server.json("GET", f"/ticket/{'0' * 32}")["status"] == "UNKNOWN"
    assert server.asked("GET", f"/result/download/{'0' * 32}")[0] == 404
    assert server.asked("GET", "/template/..%2f..%2fx_A")[0] in (404, 422)


def test_alignments_are_divided_where_the_target_stands_again() -> None:
    both = b">101\nMKB\n>u\nMKA\n>101\nMKD\n>e\nMKC\n"
    assert split_databases(both, "MKB") == (b">101\nMKB\n>u\nMKA\n", b">101\nMKB\n>e\nMKC\n")
    assert split_databases(b">101\nMK\n", "MK") == (b">101\nMK\n", b">101\nMK\n")
    assert pack({"a": b"1"}) == pack({"a": b"1"})


class RecordedSearches:
    """MMseqs2 as the searches see it: it notes the steps that it is given, and finds the target alone."""

    def __init__(self) -> None:
        self.steps: list[list[str]] = []

    def run(self, groups: Sequence[Sequence[str]], steps: list[list[str]], _: object) -> list[list[bytes]]:
        self.steps += steps
        return [[f">101\n{sequence}\n".encode() for group in groups for sequence in group]]

    def values(self, option: str) -> set[str]:
        """The values that an option has in any of the steps."""
        return {step[step.index(option) + 1] for step in self.steps if option in step}

    def databases(self) -> list[str]:
        return [step[2] for step in self.steps if step[0] == "search"]


ALIGNMENT_MODES = {
    "env": (["uniref", "environmental"], {"1"}),
    "all": (["uniref"], {"1"}),
    "env-nofilter": (["uniref", "environmental"], {"0"}),
    "nofilter": (["uniref"], {"0"}),
}
# MMseqs2 calls greedy pairing 0, and complete pairing 1.
PAIR_MODES = {"pairgreedy": {"0"}, "pairgreedy-env": {"0"}, "paircomplete": {"1"}, "paircomplete-env": {"1"}}


@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind in ("msa", "pair") for mode in MODES[kind]])
def test_each_mode_has_a_search_of_its_own(
    kind: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = RecordedSearches()
    uniref, environmental = (
        cast(Any, SimpleNamespace(path=name, members=f"{name}_seq", alignments=f"{name}_aln"))
        for name in ("uniref", "environmental")
    )
    batch = cast(Any, recorded)
    search = ColabfoldSearch(batch=batch, uniref=uniref, environmental=environmental)
    plan = SearchPlan(
        alignments=(AlignmentStep(result_file="rows.a3m", tool=search, max_rows=None),),
        pairing=PairingStep(result_file="pairs.a3m", tool=ColabfoldPairing(batch=batch, database=uniref)),
    )
    monkeypatch.setattr(tasks, "plan_of", lambda *_, **__: plan)
    content = {"kind": kind, "mode": mode, "names": ["a", "b"], "sequences": ["MKTAY", "GSHML"]}
    folder = tasks.search(content, tmp_path, WorkerOptions())
    rows = {path.name: path.read_bytes() for path in folder.glob("*.a3m")}
    targets = b">a\nMKTAY\n\0>b\nGSHML\n\0"
    if kind == "pair":
        assert recorded.values("--pairing-mode") == PAIR_MODES[mode]
        assert rows == {"pair.a3m": targets}
    else:
        assert (recorded.databases(), recorded.values("--filter-msa")) == ALIGNMENT_MODES[mode]
        names = ["uniref.a3m", "bfd.mgnify30.metaeuk30.smag30.a3m"][: len(ALIGNMENT_MODES[mode][0])]
        assert rows == dict.fromkeys(names, targets)
