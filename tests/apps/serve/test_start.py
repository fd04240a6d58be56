"""What `helixfold serve` prints when it starts."""

import shlex
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.run import serve
from helixfold.apps.serve.settings import DATA, ServeSettings
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.cli.main import main


def test_the_advice_on_a_missing_token_creates_one_for_this_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_check() -> None:
        raise InputError("far enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("helixfold.apps.serve.run.prepare_checks", no_check)
    advice = "no user has a token yet; create one with helixfold serve token create USER"
    for data, option in ((DATA, ""), (DATA.absolute(), ""), (tmp_path / "my data", f" --data '{tmp_path}/my data'")):
        with pytest.raises(InputError, match="far enough"):
            serve(ServeSettings(data=data, require_tokens=True), WorkerOptions())
        assert capsys.readouterr().out == f"{advice}{option}\n"
    assert main(shlex.split(f"{advice}{option}".partition("helixfold ")[2])) == 0
    with pytest.raises(InputError, match="far enough"):
        serve(ServeSettings(data=tmp_path / "my data", require_tokens=True), WorkerOptions())
    assert advice not in capsys.readouterr().out
