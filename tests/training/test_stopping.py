"""Asked to end, a run is told once, however many tell it; asked again, it ends."""

import signal

import pytest

from helixfold.training import stopping
from helixfold.training.stopping import StopRequest


def test_a_signal_that_comes_twice_at_once_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    try:
        with StopRequest().handling_signals() as stop:
            assert not stop.is_requested()
            for _ in range(2):  # from the scheduler, and from torchrun that it told as well
                signal.raise_signal(signal.SIGTERM)
            assert stop.is_requested()
            assert not ended
            monkeypatch.setattr(stopping, "_SAME_REQUEST", 0.0)
            signal.raise_signal(signal.SIGTERM)
            assert ended == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_every_request_has_its_exit_code(number: signal.Signals, code: int) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with StopRequest().handling_signals() as stop:
            signal.raise_signal(number)
        assert stop.is_requested()
        assert stop.exit_code == code
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_run_that_nohup_started_ignores_its_closed_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest().handling_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
        assert not stop.is_requested()
    finally:
        signal.signal(signal.SIGHUP, before)
