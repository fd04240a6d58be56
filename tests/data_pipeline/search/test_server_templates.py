"""Template hits and structure files of a server, as far as they can be trusted."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import gemmi
import numpy as np
import pytest

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.pipeline import PreparedTarget, Target, prepare
from data_pipeline.search import mmseqs_server
from data_pipeline.search.alignment_server import AlignmentServer, ServerOptions
from data_pipeline.search.database import DatabaseProfile
from data_pipeline.search.mmseqs_server import hits_by_number, missing_structures
from data_pipeline.search.plan import SearchPlan, plan_searches
from data_pipeline.search.server_archive import TEMPLATE_FILE
from data_pipeline.templates.result import RejectionReason
from tests.data_pipeline.search.families import random_protein, relative
from tests.data_pipeline.search.mock_server import MockServer, archive, failing, mock_server, state
from tests.data_pipeline.search.test_plan import backbone

RNG = np.random.default_rng(3)
TARGET = random_protein(RNG, 60)
# AlphaFold uses no template that is the target itself.
TEMPLATE = relative(RNG, TARGET, 0.8)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockServer]:
    """A server that knows one chain like the target, and names another whose file it does not have."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("data_pipeline.search.plan.AlignmentServer", partial(AlignmentServer, sleep=lambda _: None))
    with mock_server() as running:
        alignments = running.results
        running.results = lambda: alignments() | {TEMPLATE_FILE: hits(running)}  # type: ignore[method-assign]
        running.answers["state"] = [state("COMPLETE")]
        running.answers["structures"] = [lambda handler: handler.send(archive({"1abc.cif": structure()}))]
        yield running


def hits(server: MockServer) -> bytes:
    lines = [hit(number, name, len(sequence)) for number, sequence in server.asked().items() for name in NAMES]
    return b"".join(lines)


NAMES = ("1abc_A", "9xyz_B", "1abc_B", "../evil_A")


def hit(number: str, name: str, length: int) -> bytes:
    counts = f"0.9\t{length}\t0\t0\t1\t{length}\t1\t{length}\t1e-20\t100\t{length}M"
    return f"{number}\t{name}\t{counts}\n".encode()


def structure() -> bytes:
    made = gemmi.read_pdb_string(backbone(TEMPLATE))
    made.name = "1ABC"
    made.setup_entities()
    return made.make_mmcif_document().as_string().encode()


def plan_for(server: MockServer, cache: Path | None) -> SearchPlan:
    options = ServerOptions(url=server.url)
    return plan_searches(DatabaseProfile(), cpus=1, cache=cache, server=options, with_server_templates=True)


def prepared(server: MockServer, directory: Path) -> PreparedTarget:
    return prepare(Target(name="t", sequence=TARGET), plan_for(server, directory / "cache"), directory / "results")


def test_a_target_gets_the_templates_that_the_server_finds(server: MockServer, tmp_path: Path) -> None:
    found = prepared(server, tmp_path).templates
    assert found is not None
    assert [used.name for used in found.used] == ["1abc_A"]
    assert found.used[0].identity == pytest.approx(0.8, abs=0.1)
    assert found.used[0].aligned == len(TARGET)
    assert {rejected.name: rejected.reason for rejected in found.rejected} == {
        "9xyz_B": RejectionReason.NO_FILE,
        "1abc_B": RejectionReason.NO_CHAIN,
        "../evil_A": RejectionReason.NAME,
    }
    assert server.paths[-1] == "/template/1abc_A,9xyz_B"
    assert [path.name for path in (tmp_path / "cache" / "structures").iterdir()] == ["1abc.cif"]


def test_what_is_there_is_not_asked_for_again(server: MockServer, tmp_path: Path) -> None:
    prepared(server, tmp_path)
    asked = len(server.paths)
    prepared(server, tmp_path)
    assert server.paths[asked:] == ["/template/9xyz_B"]
    # Alignments of an earlier run came without hits: the server is asked for the target once more.
    (tmp_path / "results" / "server_templates.m8").unlink()
    prepared(server, tmp_path)
    assert server.requests.count("submit") == 2


def test_only_files_that_were_asked_for_are_written(server: MockServer, tmp_path: Path) -> None:
    files = {"../1abc.cif": b"x", "/tmp/9xyz.cif": b"x", "2bbb.cif": b"x", "1abc.cif": structure()}
    server.answers["structures"] = [lambda handler: handler.send(archive(files))]
    prepared(server, tmp_path)
    written = sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert written == ["1abc.cif"]


def test_a_damaged_archive_is_asked_for_again(server: MockServer, tmp_path: Path) -> None:
    good = server.answers["structures"][0]
    server.answers["structures"] = [
        lambda handler: handler.send(archive({"1abc.cif": structure()})[:-20]),
        failing(503),
        good,
    ]
    found = prepared(server, tmp_path).templates
    assert found is not None
    assert len(found.used) == 1
    assert server.requests.count("structures") == 3


def test_a_server_without_templates_says_so(server: MockServer, tmp_path: Path) -> None:
    server.results = partial(MockServer.results, server)  # type: ignore[method-assign]
    with pytest.raises(SearchError, match=r"the server's answer lacks pdb70\.m8"):
        prepared(server, tmp_path)


def test_structures_beyond_the_limit_are_refused(
    server: MockServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmseqs_server, "MAX_STRUCTURE_BYTES", 2**12)
    with pytest.raises(SearchError, match="unpacks to more than 4,096 bytes"):
        prepared(server, tmp_path)
    assert not (tmp_path / "cache" / "structures" / "1abc.cif").exists()


def test_the_best_hits_of_each_sequence_are_kept() -> None:
    lines = [hit(str(number), f"{index:04d}_A", 5) for index in range(30) for number in (101, 102)]
    found = hits_by_number(b"\0".join(lines) + b"\n")
    assert {number: table.count(b"\n") for number, table in found.items()} == {101: 20, 102: 20}
    assert found[102].splitlines()[1] == hit("102", "0001_A", 5).rstrip()
    with pytest.raises(SearchError, match="lacks sequence numbers"):
        hits_by_number(b"1abc_A\t1\n")


def test_names_become_addresses_only_if_they_are_names(tmp_path: Path) -> None:
    names = ["1abc_A", "1ABC_B", "../x_A", "1abc?_A", "pdb_00001abc_AA", "1abc", "_A", "1abc_A/../.."]
    assert missing_structures(names, tmp_path) == ["1abc_A", "pdb_00001abc_AA"]
    (tmp_path / "1abc.cif").touch()
    assert missing_structures(names, tmp_path) == ["pdb_00001abc_AA"]


def test_files_need_a_cache(server: MockServer) -> None:
    with pytest.raises(InputError, match="the home directory is unknown"):
        plan_for(server, None)
