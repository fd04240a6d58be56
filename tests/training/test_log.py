"""What a run records can be read back whatever ended it, and each step stands in it once."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from data_pipeline.io.errors import InputError
from helixfold.results.training_log import LOG_FILE, StepRecord, read_log
from helixfold.training.log import TENSORBOARD_DIRECTORY, SilentLog, TensorBoardWriter, TrainingLog

ROOT = Path(__file__).parents[2]
SUMMARY = {"loss": 3.5, "lddt_ca": 0.25, "tm_score": 0.125, "loss/distogram": 1.5}
CHAINS = [{"name": "1abc_A", "residues": 40, "lddt_ca": 0.25}]


def record(step: int, **changes: Any) -> StepRecord:
    made = StepRecord(
        step=step,
        examples_seen=(step + 1) * 2,
        losses={"backbone_fape": 0.75, "weighted": 3.25 + step, "total": 26.0 + 8 * step},
        learning_rate=1e-3,
        gradient_norm=0.125,
        clipped=0.5,
        skipped=False,
        passes=3,
        seconds=0.25,
        data_seconds=0.0625,
        examples_per_second=8.0,
        memory_gib=1.5,
        names=("1abc_A", "2xyz_B"),
    )
    return replace(made, **changes)


def open_log(directory: Path, first_step: int = 0, *, progress: bool = False) -> TrainingLog:
    return TrainingLog(directory, first_step=first_step, last_step=10, progress=progress)


def write_run(directory: Path, first_step: int, stop: int) -> None:
    """Steps, each with an event, and an evaluation after every second."""
    log = open_log(directory, first_step)
    for step in range(first_step, stop):
        log.step(record(step))
        log.event("refused", "a chain is left out", step=step)
        if step % 2:
            log.evaluation(step, SUMMARY, CHAINS)
    log.close()


def lines(directory: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (directory / LOG_FILE).read_text().splitlines()]


def test_steps_and_evaluations_are_read_back_as_they_were_given(tmp_path: Path) -> None:
    write_run(tmp_path, 0, 4)
    history = read_log(tmp_path / LOG_FILE)
    assert history.steps == tuple(record(step) for step in range(4))
    assert [(each.step, each.summary, each.chains) for each in history.evaluations] == [
        (step, SUMMARY, tuple(CHAINS)) for step in (1, 3)
    ]


def test_every_line_tells_its_type_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helixfold.training.log.time.time", lambda: 1234.5)
    write_run(tmp_path, 0, 2)
    assert [line["type"] for line in lines(tmp_path)] == ["step", "event", "step", "event", "evaluation"]
    assert {line["time"] for line in lines(tmp_path)} == {1234.5}


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.step(record(0, losses={"total": math.nan}, gradient_norm=math.inf, skipped=True))
    log.evaluation(0, {"loss": -math.inf}, [{"name": "1abc_A", "losses": {"total": math.nan}}])
    log.event("skipped", "not finite", step=0, norms=[math.inf, 1.0])
    log.close()
    step, evaluation, event = lines(tmp_path)
    assert (step["losses"], step["gradient_norm"]) == ({"total": None}, None)
    assert (evaluation["summary"], evaluation["chains"][0]["losses"]) == ({"loss": None}, {"total": None})
    assert event["details"] == {"norms": [None, 1.0]}
    history = read_log(tmp_path / LOG_FILE)
    assert math.isnan(history.steps[0].gradient_norm)
    assert math.isnan(history.steps[0].losses["total"])
    assert math.isnan(history.evaluations[0].summary["loss"])


def test_scores_of_complexes_come_back_and_earlier_logs_have_none(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.step(record(0, metrics={"native_contacts": 0.5}))
    log.step(record(1))
    log.close()
    assert [step.metrics for step in read_log(tmp_path / LOG_FILE).steps] == [{"native_contacts": 0.5}, {}]
    events = EventAccumulator(str(tmp_path / TENSORBOARD_DIRECTORY)).Reload()
    assert [event.value for event in events.Scalars("complexes/native_contacts")] == [0.5]
    path = tmp_path / LOG_FILE
    path.write_text(path.read_text().replace(', "metrics": {}', ""))
    assert read_log(path).steps[1] == record(1)


def test_a_step_is_in_the_file_when_it_was_recorded(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for step in range(3):
        log.step(record(step))
        assert len(read_log(tmp_path / LOG_FILE).steps) == step + 1
    log.close()


def test_a_resumed_run_lists_each_step_once(tmp_path: Path) -> None:
    write_run(tmp_path / "broken", 0, 7)
    write_run(tmp_path / "broken", 4, 10)
    write_run(tmp_path / "whole", 0, 10)
    broken, whole = (
        [{key: value for key, value in line.items() if key != "time"} for line in lines(tmp_path / name)]
        for name in ("broken", "whole")
    )
    assert broken == whole
    assert sorted(path.name for path in (tmp_path / "broken").iterdir()) == [LOG_FILE, TENSORBOARD_DIRECTORY]


def test_events_without_a_step_stay(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.event("restore", "a damaged checkpoint is passed over")
    log.step(record(0))
    log.close()
    open_log(tmp_path).close()
    assert [line["type"] for line in lines(tmp_path)] == ["event"]


def test_a_log_torn_anywhere_in_its_last_lines_is_read_and_continued(tmp_path: Path) -> None:
    write_run(tmp_path, 0, 3)
    path = tmp_path / LOG_FILE
    content = path.read_bytes()
    ends = [place + 1 for place in range(len(content)) if content[place] == ord("\n")]
    for cut in range(ends[-4], len(content) + 1, 7):
        path.write_bytes(content[:cut])
        whole = content[: max(end for end in ends if end <= cut)].count(b'"type": "step"')
        assert len(read_log(path).steps) == whole
        log = open_log(tmp_path, whole)
        log.step(record(whole))
        log.close()
        assert [step.step for step in read_log(path).steps] == list(range(whole + 1))


@pytest.mark.integration
def test_a_killed_run_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.training.test_log import open_log, record\n"
        "log = open_log(Path(sys.argv[1]))\n"
        "for step in range(10**6):\n    log.step(record(step, names=tuple('chain_%d' % n for n in range(200))))\n"
        "    print(step, flush=True)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    for _ in range(50):
        last = int(run.stdout.readline())
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    steps = [step.step for step in read_log(tmp_path / LOG_FILE).steps]
    assert steps == list(range(len(steps)))
    assert len(steps) > last
    open_log(tmp_path, 20).close()
    assert len(read_log(tmp_path / LOG_FILE).steps) == 20


GOOD = {**record(0).__dict__, "names": ["1abc_A"], "type": "step", "time": 1.0}


@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        "[1, 2]",
        "{}",
        json.dumps({**GOOD, "type": "other"}),
        json.dumps({**GOOD, "step": "1"}),
        json.dumps({**GOOD, "step": None}),
        json.dumps({**GOOD, "skipped": 1}),
        json.dumps({**GOOD, "seconds": "long"}),
        json.dumps({**GOOD, "seconds": 10**400}),
        json.dumps({**GOOD, "losses": {"total": "high"}}),
        json.dumps({**GOOD, "losses": [1.0]}),
        json.dumps({**GOOD, "names": [1]}),
        json.dumps({**GOOD, "names": "1abc_A"}),
        json.dumps({**GOOD, "more": 1}),
        json.dumps({name: value for name, value in GOOD.items() if name != "passes"}),
        json.dumps({"type": "evaluation", "time": 1.0, "step": 1, "summary": {}, "chains": ["1abc_A"]}),
        json.dumps(GOOD) + "\n" + json.dumps(GOOD),
    ],
)
def test_any_other_file_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / LOG_FILE
    event = json.dumps({"type": "event", "time": 1.0, "kind": "restore", "text": "", "step": None, "details": {}})
    path.write_text(f"{event}\n{line}\n")
    with pytest.raises(InputError, match=f"{LOG_FILE}, line [23]: "):
        read_log(path)


def test_a_log_that_is_not_there_is_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / LOG_FILE)


def test_a_run_does_not_write_behind_what_is_no_log(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).write_text("my notes\nmore of them\n")
    with pytest.raises(InputError, match="move the file away"):
        open_log(tmp_path)
    assert (tmp_path / LOG_FILE).read_text() == "my notes\nmore of them\n"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 2000), byte=st.integers(0, 255))
def test_a_damaged_log_is_refused_or_only_the_damaged_line_differs(tmp_path: Path, place: int, byte: int) -> None:
    path = tmp_path / LOG_FILE
    if not path.exists():
        write_run(tmp_path, 0, 4)
        path.rename(tmp_path / "whole")
    content = bytearray((tmp_path / "whole").read_bytes())
    content[place % len(content)] = byte
    path.write_bytes(content)
    try:
        found = read_log(path)
    except InputError as error:
        assert "\n" not in str(error)
        return
    whole = read_log(tmp_path / "whole")
    records, undamaged = [*found.steps, *found.evaluations], [*whole.steps, *whole.evaluations]
    # Only the last line can be dropped: its line break may be what is damaged.
    assert len(undamaged) - len(records) in (0, 1)
    assert sum(each not in undamaged for each in records) <= 1


def test_a_full_disk_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = open_log(tmp_path)
    log.step(record(0))
    disk, full = log._file, io.FileIO("/dev/full", "ab")
    log._file = full
    log.step(record(1))
    log.step(record(2))
    assert capsys.readouterr().err.count("No space left on device") == 1
    log._file = disk
    full.close()
    log.step(record(3))
    log.close()
    assert [step.step for step in read_log(tmp_path / LOG_FILE).steps] == [0, 1, 2, 3]


def test_a_disk_that_takes_a_little_at_a_time_gets_whole_lines(tmp_path: Path) -> None:
    class Narrow(io.FileIO):
        def write(self, content: Any) -> int:
            return super().write(content[:100])

    log = open_log(tmp_path)
    log._file.close()
    log._file = Narrow(tmp_path / LOG_FILE, "ab")
    for step in range(3):
        log.step(record(step))
    log.close()
    assert read_log(tmp_path / LOG_FILE).steps == tuple(record(step) for step in range(3))


def test_tensorboard_shows_every_number_in_its_group(tmp_path: Path) -> None:
    write_run(tmp_path, 0, 4)
    events = EventAccumulator(str(tmp_path / TENSORBOARD_DIRECTORY)).Reload()
    assert {tag.split("/")[0] for tag in events.Tags()["scalars"]} == {"loss", "optimizer", "speed", "evaluation"}
    for tag, value in {
        "loss/total": 50.0,
        "loss/backbone_fape": 0.75,
        "optimizer/gradient_norm": 0.125,
        "optimizer/clipped": 0.5,
        "optimizer/skipped": 0.0,
        "speed/memory_gib": 1.5,
        "speed/examples_per_second": 8.0,
        "evaluation/lddt_ca": 0.25,
    }.items():
        last = events.Scalars(tag)[-1]
        assert (last.step, last.value) == (3, value), tag


def test_tensorboard_does_not_show_what_was_made_again(tmp_path: Path) -> None:
    write_run(tmp_path, 0, 7)
    write_run(tmp_path, 4, 6)
    events = EventAccumulator(str(tmp_path / TENSORBOARD_DIRECTORY)).Reload()
    assert [event.step for event in events.Scalars("loss/total")] == list(range(6))


@pytest.mark.parametrize("first", [0, 2])
def test_a_disk_that_is_full_for_tensorboard_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Full from the beginning, or later, with threads that would print a traceback of their own."""
    threads = set(threading.enumerate())
    if first == 0:
        open_file = Path.open
        monkeypatch.setattr(Path, "open", lambda path, mode: open_file(Path("/dev/full"), mode))
    board = TensorBoardWriter(tmp_path, 0)
    monkeypatch.undo()
    for step in range(3):
        if step == first == 2:
            assert board._file is not None
            with open("/dev/full", "wb") as full:
                os.dup2(full.fileno(), board._file.fileno())
        board.write(step, {"loss/total": 1.0})
    board.close()
    said = "helixfold: cannot write TensorBoard events (No space left on device); log.jsonl has everything\n"
    assert capsys.readouterr().err == said
    assert set(threading.enumerate()) <= threads


def test_an_event_is_one_printed_line_and_kept_with_its_details(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = open_log(tmp_path)
    log.event("refused", "chain 1abc\x1b[2J_A\nis odd", step=3, chains=["1abc_A"])
    log.close()
    assert capsys.readouterr().err == "helixfold: step 3: chain 1abc\\x1b[2J_A\\nis odd\n"
    (line,) = lines(tmp_path)
    assert (line["kind"], line["step"], line["details"]) == ("refused", 3, {"chains": ["1abc_A"]})


def test_a_silent_log_writes_and_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    log = SilentLog()
    log.step(record(0))
    log.evaluation(0, SUMMARY, CHAINS)
    log.event("skipped", "not finite", step=0)
    log.close()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_progress_is_a_line_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, progress=True)
    clock = [1000.0]
    monkeypatch.setattr("helixfold.training.progress.time.monotonic", lambda: clock[0])
    for step in range(10):
        log.step(record(step))
        clock[0] += 15
        if step == 2:
            log.evaluation(step, SUMMARY, CHAINS)
    log.close()
    assert capsys.readouterr().err.splitlines() == [
        "helixfold: 1 of 10 steps, weighted loss 3.250, 8 examples/s",
        "helixfold: 3 of 10 steps, weighted loss 5.250, 8 examples/s",
        "helixfold: held-out chains after 3 steps: weighted loss 3.500, CA-lDDT 0.250, TM-score 0.125",
        "helixfold: 5 of 10 steps, weighted loss 7.250, lDDT 0.250, 8 examples/s",
        "helixfold: 7 of 10 steps, weighted loss 9.250, lDDT 0.250, 8 examples/s",
        "helixfold: 9 of 10 steps, weighted loss 11.250, lDDT 0.250, 8 examples/s",
        "helixfold: 10 of 10 steps, weighted loss 12.250, lDDT 0.250, 8 examples/s",
    ]


def test_on_a_terminal_progress_is_a_bar_that_events_stand_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    log = open_log(tmp_path, 4, progress=True)
    log.evaluation(4, SUMMARY, CHAINS)
    for step in range(4, 10):
        log.step(record(step))
    log.event("stop", "asked to end")
    log.close()
    shown = screen.getvalue()
    assert "4/10" in shown
    assert "10/10" in shown.split("\r")[-1]
    assert "weighted loss 12.250, lDDT 0.250, 8 examples/s" in shown
    assert "\rhelixfold: asked to end\n" in shown
