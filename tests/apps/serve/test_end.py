"""How `helixfold serve` ends when it is told to: as systemd expects, with its jobs back in the queue."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helixfold.apps.serve.client import Client
from helixfold.runtime.interruption import TERMINATED


@pytest.mark.integration
def test_sigterm_returns_the_running_job_and_leaves_no_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "helixfold", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    command += ["--models", "tiny", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            with Client(url) as client:
                job = client.submit("MKTAYIAKQR" * 30, name="long", recycles=50)["id"]
                state = next(state for state in client.watch(job) if state["state"] == "running")
                assert state["id"] == job
        finally:
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == TERMINATED
    assert f"jobs/{job}/release" in errors or "/release" in errors
    assert "leaked" not in errors
    assert "Traceback" not in errors
