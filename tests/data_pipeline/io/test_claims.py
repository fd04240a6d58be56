"""Targets are shared among processes by claims: none is taken twice, none is lost, whatever clocks and caches say."""

import json
import multiprocessing
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io import claims as module
from data_pipeline.io.claims import ClaimFiles, Claims, LostClaimError, SeenFile

_LAG = 10.0


@dataclass
class Server:
    """A file server whose clock is years from this machine's, and which keeps every version of its files."""

    time: float = 1e9
    versions: dict[str, list[SeenFile]] = field(default_factory=dict)

    def write(self, name: str, content: bytes) -> None:
        self.versions.setdefault(name, []).append(SeenFile(content, self.time))


class LaggingFiles(ClaimFiles):
    """A machine's view of the server: what others wrote is seen up to ten seconds late; own writes at once."""

    def __init__(self, server: Server, own: str, lag: float = _LAG) -> None:
        super().__init__(Path("nowhere"), own)
        object.__setattr__(self, "_view", (server, lag, dict[str, float]()))

    def create(self, name: str, content: bytes) -> bool:
        server, _, written = self._view  # type: ignore[attr-defined]
        if name in server.versions:
            return False
        server.write(name, content)
        written[name] = server.time
        return True

    def replace(self, name: str, content: bytes) -> None:
        server, _, written = self._view  # type: ignore[attr-defined]
        server.write(name, content)
        written[name] = server.time

    def touch(self, name: str) -> None:
        server = self._view[0]  # type: ignore[attr-defined]
        self.replace(name, server.versions[name][-1].content)

    def read(self, name: str) -> SeenFile | None:
        server, lag, written = self._view  # type: ignore[attr-defined]
        until = max(server.time - lag, written.get(name, 0.0))
        seen = [version for version in server.versions.get(name, []) if version.time <= until]
        return seen[-1] if seen else None


@pytest.fixture(autouse=True)
def no_known_processes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Machines that know nothing of each other's processes."""
    if "killed" not in request.node.name and "ended_process" not in request.node.name:
        monkeypatch.setattr(module, "_has_ended", lambda owner: False)


def machine(server: Server, name: str, lag: float = _LAG) -> Claims:
    return Claims(LaggingFiles(server, name, lag))


def test_a_target_is_taken_once_and_goes_on_when_its_process_is_silent() -> None:
    server = Server()
    first, second = machine(server, "a"), machine(server, "b")
    assert first.take("t") == "taken"
    assert second.take("t") == "held"  # not seen yet, but the file can be made only once
    for _ in range(20):
        server.time += 30
        first.renew()
        assert second.take("t") == "held"
    server.time += module.EXPIRY + _LAG + 1
    assert second.take("t") == "taken"
    server.time += _LAG + 1
    assert first.take("t") == "held"
    first.renew()
    with pytest.raises(LostClaimError, match="another process continues this target"):
        first.require_held("t")
    second.require_held("t")


def test_what_ended_since_a_process_began_is_done_and_what_ended_before_may_be_taken_again() -> None:
    server = Server()
    first, second = machine(server, "a", 0.0), machine(server, "b", 0.0)
    server.time += 1
    for target, state in (("good", "finished"), ("bad", "failed"), ("interrupted", "released")):
        assert first.take(target) == "taken"
        first.end(target, state, "no luck" if state == "failed" else None)  # type: ignore[arg-type]
    assert [second.take(target) for target in ("good", "bad", "interrupted")] == ["done", "done", "taken"]
    assert second.failures(["good", "bad", "interrupted", "other"]) == {"bad": "no luck"}
    server.time += 1
    later = machine(server, "c", 0.0)
    assert [later.take(target) for target in ("good", "bad", "interrupted")] == ["taken", "taken", "held"]
    assert later.failures(["bad"]) == {}
    later.close()
    assert second.take("good") == "taken"


def test_an_onlooker_learns_whether_somebody_works_on_a_target() -> None:
    server = Server()
    worker, onlooker = machine(server, "a", 0.0), machine(server, "b", 0.0)
    assert onlooker.work_on("t") == "none"
    worker.take("t")
    assert onlooker.work_on("t") == "held"
    server.time += module.EXPIRY + 1
    assert onlooker.work_on("t") == "lost"
    worker.renew()
    assert onlooker.work_on("t") == "held"
    worker.end("t", "finished")
    assert onlooker.work_on("t") == "none"


_EVENTS = st.tuples(st.integers(0, 3), st.sampled_from(["take", "end", "die", "wait", "long"]))


@given(st.integers(2, 4), st.lists(_EVENTS, max_size=60))
def test_no_target_is_held_twice_or_lost_for_any_order_of_events(count: int, events: list[tuple[int, str]]) -> None:
    server = Server()
    targets = ["x", "y", "z"]
    alive = [machine(server, str(number)) for number in range(count)]
    holding: dict[str, Claims] = {}
    finished: list[str] = []

    def pass_time(seconds: float) -> None:
        for _ in range(int(seconds // 15)):
            server.time += 15
            for each in alive:
                each.renew()

    for who, event in events:
        claims = alive[who % len(alive)]
        own = [target for target, owner in holding.items() if owner is claims]
        if event == "take":
            free = [target for target in targets if target not in finished and claims.take(target) == "taken"]
            assert not set(free) & set(holding)
            holding |= dict.fromkeys(free, claims)
        elif event == "end" and own:
            claims.require_held(own[0])
            claims.end(own[0], "finished")
            finished.append(own[0])
            del holding[own[0]]
        elif event == "die" and len(alive) > 1:
            alive.remove(claims)
            pass_time(module.EXPIRY + 60)
            holding = {target: owner for target, owner in holding.items() if owner is not claims}
        elif event in ("wait", "long"):
            pass_time(15 if event == "wait" else 600)
    assert len(set(finished)) == len(finished)
    # What is left is taken by whoever is left.
    server.time += module.EXPIRY + 2 * _LAG
    last = machine(server, "last")
    assert [last.take(target) for target in targets] == ["taken"] * 3


def test_files_are_made_by_one_alone_and_have_the_servers_time(tmp_path: Path) -> None:
    one, two = ClaimFiles(tmp_path / "claims"), ClaimFiles(tmp_path / "claims")
    assert one.read("x") is None
    assert one.create("x", b"1")
    assert not two.create("x", b"2")
    seen = two.read("x")
    assert seen is not None
    assert seen.content == b"1"
    now = two.now()
    assert 0 <= now - seen.time < 60
    os.utime(tmp_path / "claims" / "x", (5, 5))
    one.touch("x")
    renewed = two.read("x")
    assert renewed is not None
    assert abs(renewed.time - now) < 60
    one.replace("x", b"3")
    assert two.read("x") != seen
    two.remove_clocks(300)
    assert [path.name for path in (tmp_path / "claims").iterdir()] == ["x"]


def test_a_link_that_was_made_though_the_answer_was_lost_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def lost(source: Path, target: Path) -> None:
        link(source, target)
        raise OSError("the server does not answer")

    files = ClaimFiles(tmp_path)
    monkeypatch.setattr(os, "link", lost)
    assert files.create("x", b"1")
    assert not files.create("x", b"2")
    assert (tmp_path / "x").read_bytes() == b"1"


def test_a_directory_that_is_removed_at_any_moment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Claims(ClaimFiles(tmp_path / "claims"))
    for name in ("link", "replace"):
        action, calls = getattr(os, name), []

        def removing(source: Path, target: Path, action: Any = action, calls: list[Path] = calls) -> None:
            calls.append(target)
            if len(calls) == 1:
                shutil.rmtree(tmp_path / "claims")
            action(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, removing)
            if name == "link":
                assert claims.take("t") == "held"
                assert claims.take("t") == "taken"
            else:
                claims.end("t", "finished")
        assert calls
    shutil.rmtree(tmp_path / "claims")
    claims.renew()
    assert claims.take("t") == "taken"
    shutil.rmtree(tmp_path / "claims")
    claims.close()


@pytest.mark.parametrize(
    ("other", "is_removed"),
    [("alive", False), ("closed", True), ("ended_process", True), ("elsewhere", False), ("elsewhere, silent", True)],
)
def test_claims_are_removed_unless_a_process_uses_them(
    other: str, is_removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # processes of this machine are known
    module.remove_claims(tmp_path)
    assert not any(tmp_path.iterdir())
    if other.startswith("elsewhere"):
        monkeypatch.setattr(module, "_this_process", lambda: "elsewhere 0 1 1 1")
    elif other == "ended_process":
        monkeypatch.setattr(module, "_this_process", lambda: f"{module._machine()} 4194305 1")
    claims = Claims(ClaimFiles(tmp_path / ".claims"))
    assert claims.take("t") == "taken"
    if other == "closed":
        claims.end("t", "failed", "no luck")
        claims.close()
    elif other == "elsewhere, silent":
        (clock,) = tmp_path.glob(".claims/clock-*")
        os.utime(clock, (clock.stat().st_mtime - module.EXPIRY - 1,) * 2)
        claims.renew()  # and not silent after all
        module.remove_claims(tmp_path)
        assert (tmp_path / ".claims").is_dir()
        os.utime(clock, (clock.stat().st_mtime - module.EXPIRY - 1,) * 2)
    before = sorted((tmp_path / ".claims").iterdir())
    module.remove_claims(tmp_path)
    assert (tmp_path / ".claims").exists() != is_removed
    assert is_removed or sorted((tmp_path / ".claims").iterdir()) == before


def test_a_damaged_claim_expires(tmp_path: Path) -> None:
    claims = Claims(ClaimFiles(tmp_path))
    assert claims.take("t") == "taken"
    (path,) = tmp_path.glob("*.1")
    path.write_bytes(b"{")
    other = Claims(ClaimFiles(tmp_path))
    assert other.take("t") == "held"
    os.utime(path, (5, 5))
    assert other.take("t") == "taken"


def worked(directory: Path, seed: int) -> None:
    """Work on thirty targets as a process does, and note each beginning and end in a file of its own."""
    random = np.random.default_rng(seed)
    claims = Claims.in_directory(directory)
    targets = [f"t{number}" for number in range(30)]
    while targets:
        for target in [targets[number] for number in random.permutation(len(targets))]:
            answer = claims.take(target)
            if answer == "taken" and not (directory / f"{target}.done").exists():
                (directory / f"{target}.begun.{os.getpid()}").touch()
                time.sleep(0.01)
                with (directory / f"{target}.done").open("x") as file:  # fails where it was done twice
                    file.write(str(os.getpid()))
                claims.end(target, "finished")
            elif answer == "taken":
                claims.end(target, "finished")
            if answer != "held":
                targets.remove(target)
    claims.close()


@pytest.mark.parametrize("count", [2, 10])
def test_killed_processes_lose_their_targets_to_the_others_and_none_is_made_twice(tmp_path: Path, count: int) -> None:
    random = np.random.default_rng(count)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([worked.__module__])
    running = [context.Process(target=worked, args=(tmp_path, seed)) for seed in range(count)]
    for process in running:
        process.start()
    for round_ in range(count):
        time.sleep(float(random.uniform(0.0, 0.05)))
        victim = running.pop(int(random.integers(len(running))))
        victim.kill()
        victim.join()
        running.append(context.Process(target=worked, args=(tmp_path, count + round_)))
        running[-1].start()
    for process in running:
        process.join(60)
        assert process.exitcode == 0
    assert len(list(tmp_path.glob("*.done"))) == 30
    states = [json.loads(path.read_text()) for path in tmp_path.glob(".claims/*.*")]
    assert {words["target"] for words in states if words["state"] == "finished"} == {f"t{n}" for n in range(30)}


def test_a_claim_of_an_ended_process_of_this_machine_is_free_at_once(tmp_path: Path) -> None:
    claims = Claims(ClaimFiles(tmp_path))
    assert claims.take("t") == "taken"
    (path,) = tmp_path.glob("*.1")
    words = json.loads(path.read_text())
    assert Claims(ClaimFiles(tmp_path)).take("t") == "held"
    path.write_text(json.dumps({**words, "owner": words["owner"][:-1] + "x"}))  # its number, of another time
    assert Claims(ClaimFiles(tmp_path)).take("t") == "taken"
    path.with_suffix(".2").unlink()
    path.write_text(json.dumps({**words, "owner": "elsewhere 0 1 1 1"}))
    assert Claims(ClaimFiles(tmp_path)).take("t") == "held"


def test_claims_of_a_directory_are_renewed_until_they_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Claims, "renew", lambda self: self._closed.set())
    claims = Claims.in_directory(tmp_path)
    monkeypatch.setattr(claims, "_renewal", 0.0)
    assert (tmp_path / ".claims").is_dir()
    assert claims._thread is not None
    assert claims.take("t") == "taken"
    claims.close()
    assert not claims._thread.is_alive()
    assert Claims(ClaimFiles(tmp_path / ".claims")).work_on("t") == "none"
    assert claims.renewed("other") is None


def test_the_server_says_when_a_claim_was_renewed() -> None:
    server = Server()
    claims = machine(server, "a", 0.0)
    claims.take("t")
    server.time += 50
    assert claims.renewed("t") == server.time - 50
    claims.renew()
    assert claims.renewed("t") == server.time


def test_what_killed_processes_left_is_removed_when_it_has_expired(tmp_path: Path) -> None:
    files = ClaimFiles(tmp_path, "own")
    for name, age in (("clock-old", 400), ("draft-old-1", 400), ("clock-new", 200), ("draft-new-1", 200), ("x.1", 400)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    (tmp_path / "clock-own").touch()
    (tmp_path / "y.1").touch()
    os.utime(tmp_path / "y.1", (1e9, 1e9))
    files.remove_clocks(300.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clock-new", "draft-new-1", "x.1", "y.1"]
