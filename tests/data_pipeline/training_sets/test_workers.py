"""A file that fails, or that takes its process with it, is alone in that."""

import os
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from data_pipeline.training_sets import build
from data_pipeline.training_sets.build import FileOutcome, process_files
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.record_builder import RecordBuilder
from tests.data_pipeline.training_sets.faulty_recipe import FaultyRecipe
from tests.data_pipeline.training_sets.training_files import write_training_files
from tests.support.interruptions import living_processes


def outcomes(root: Path, builder: RecordBuilder, paths: list[Path], workers: int) -> dict[str, FileOutcome]:
    return {outcome.path.name: outcome for outcome in process_files(builder, root / "store", paths, workers)}


@pytest.mark.integration
def test_a_file_that_kills_its_process_loses_only_itself(tmp_path: Path) -> None:
    structures, _ = write_training_files(tmp_path, 5)
    found = outcomes(tmp_path, FaultyRecipe(filter=ChainFilter()), sorted(structures.iterdir()), workers=2)
    assert len(found) == 5
    assert {name: outcome.problem for name, outcome in found.items() if outcome.problem} == {
        "1abc.pdb.gz": "ZeroDivisionError: a mistake of ours",
        "2abc.pdb": "the process that read it died (out of memory?); try again with fewer --workers",
    }
    assert all(len(outcome.chains) == 2 for outcome in found.values() if not outcome.problem)


def test_a_mistake_within_one_thread_is_also_the_files_own(tmp_path: Path) -> None:
    structures, _ = write_training_files(tmp_path, 2)
    found = outcomes(tmp_path, FaultyRecipe(filter=ChainFilter()), sorted(structures.iterdir()), workers=1)
    assert found["1abc.pdb.gz"].problem == "ZeroDivisionError: a mistake of ours"
    assert [chain.entry.name for chain in found["0abc.pdb"].chains if chain.is_new] == ["0abc_A", "0abc_B"]


class BreakingPool(ThreadPoolExecutor):
    """A pool whose process dies at one file, and takes the files with it that the pool has been given."""

    def __init__(self) -> None:
        super().__init__(1)
        self.is_broken = False

    def submit(self, _: object, path: Path) -> Future[FileOutcome]:  # type: ignore[override]
        if self.is_broken:
            raise BrokenProcessPool
        self.is_broken = path.name == "2"
        found: Future[FileOutcome] = Future()
        if self.is_broken or path.name == "1":
            found.set_exception(BrokenProcessPool() if self.is_broken else ZeroDivisionError("a mistake of ours"))
        else:
            found.set_result(FileOutcome(path=path))
        return found


def test_files_in_progress_when_a_pool_breaks_are_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[int] = []

    def pool(builder: object, store: object, workers: int) -> BreakingPool:
        pools.append(workers)
        return BreakingPool()

    monkeypatch.setattr(build, "_pool", pool)
    paths = [Path(str(number)) for number in range(6)]
    found = list(process_files(RecordBuilder(filter=ChainFilter()), Path("store"), paths, 3))
    assert sorted(outcome.path.name for outcome in found) == list("012345")
    assert {outcome.path.name: outcome.problem for outcome in found if outcome.problem} == {
        "1": "ZeroDivisionError: a mistake of ours",
        "2": "the process that read it died (out of memory?); try again with fewer --workers",
    }
    assert pools == [3, 3, 1]  # the second has the files that the first was not given


def test_no_file_is_no_work(tmp_path: Path) -> None:
    assert outcomes(tmp_path, RecordBuilder(filter=ChainFilter()), [], workers=1) == {}
    assert outcomes(tmp_path, RecordBuilder(filter=ChainFilter()), [], workers=2) == {}
    assert not list(tmp_path.rglob("*.lmdb"))


WAIT = """
import sys, time
from pathlib import Path
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.record_builder import RecordBuilder
from data_pipeline.training_sets.build import process_files
if __name__ == "__main__":
    builder = RecordBuilder(filter=ChainFilter())
    for outcome in process_files(builder, Path("store"), sorted(Path("structures").iterdir()), 2):
        print("one", flush=True)
        time.sleep(60)
"""


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    write_training_files(tmp_path, 3)
    (tmp_path / "wait.py").write_text(WAIT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(
        [sys.executable, "wait.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    assert len(living_processes(process.pid)) >= 3
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 120
    while living_processes(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert living_processes(process.pid) == []
