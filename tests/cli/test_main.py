"""The command itself: exit codes, words instead of tracebacks, and what is imported when."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import helixfold
from helixfold.cli.main import main
from helixfold.runtime.interruption import INTERRUPTED, TERMINATED

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ubiquitin.fasta"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"helixfold {helixfold.__version__}\n"


def test_an_interrupted_run_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("helixfold.apps.predict.run.settings_for", interrupted)
    assert main(["predict", str(EXAMPLE)]) == INTERRUPTED
    assert "run the same command again" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["cyclopts", "helixfold.cli.predict", "helixfold.apps.predict.run", "torch"])
def test_an_interruption_while_libraries_are_loaded_is_one_sentence_too(module: str) -> None:
    program = f"""
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from helixfold.cli.main import main
sys.exit(main(["predict", {str(EXAMPLE)!r}, "--dry-run"]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (INTERRUPTED, 1)
    assert done.stderr.startswith("helixfold: interrupted")


@pytest.mark.parametrize("mebibytes", [150, 300, 600])
def test_an_address_space_without_room_for_torch_is_one_message(mebibytes: int) -> None:
    limited = f"ulimit -v {mebibytes * 1024}; exec {sys.executable} -m helixfold"
    for command in ("predict MKTAYIAK --models tiny --dry-run", "doctor"):
        done = subprocess.run(["sh", "-c", f"{limited} {command}"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"helixfold: error: the limit of {mebibytes} MiB of address space (ulimit -v")
        assert done.stderr.count("\n") == 1
    help_page = subprocess.run(["sh", "-c", f"{limited} predict --help"], capture_output=True, text=True, check=False)
    assert (help_page.returncode, help_page.stderr) == (0, "")


def test_what_fails_to_load_within_a_limit_of_address_space_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> int:
        raise ImportError("_pcg64.so: failed to map segment from shared object")

    monkeypatch.setattr("helixfold.apps.predict.run.settings_for", failing)
    with pytest.raises(ImportError):  # without a limit, something else is wrong
        main(["predict", str(EXAMPLE), "--dry-run"])
    capsys.readouterr()
    monkeypatch.setattr("resource.getrlimit", lambda kind: (2**30, 2**30))
    assert main(["predict", str(EXAMPLE), "--dry-run"]) == 2
    assert "the limit of 1,024 MiB of address space" in capsys.readouterr().err


def test_a_terminated_run_leaves_as_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []

    def terminated(*_: object, **__: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(120)
        finally:
            left.append("cleaned up")
        return 0

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("helixfold.apps.predict.run.settings_for", terminated)
    with pytest.raises(SystemExit) as done:
        main(["predict", str(EXAMPLE)])
    assert (done.value.code, left) == (TERMINATED, ["cleaned up"])
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("script", ["predict", "make_features", "benchmark", "convert_weights", "train"])
def test_scripts_are_the_same_commands(script: str) -> None:
    done = subprocess.run(
        [sys.executable, f"scripts/{script}.py", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("usage: helixfold ")


def imported(*words: str) -> set[str]:
    """The modules that a command loads."""
    program = (
        "import sys; from helixfold.cli.main import main; code = main(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_no_command(option: str) -> None:
    modules = imported(option)
    assert not {"torch", "numpy", "argparse"} & modules
    assert {name for name in modules if name.startswith(("helixfold", "data_pipeline"))} == {
        *("helixfold", "helixfold._deprecated", "data_pipeline", "data_pipeline._deprecated"),
        *(f"helixfold.cli{name}" for name in ("", ".main", ".app", ".command", ".help")),
        *(f"helixfold.runtime{name}" for name in ("", ".annotations", ".imports", ".interruption")),
        *("helixfold.runtime.options", "helixfold.runtime.standard_streams"),
        *("data_pipeline.io", "data_pipeline.io.errors"),
    }
    assert len(modules) < 400


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["predict"],
            ["features"],
            ["relax"],
            ["score"],
            ["scan"],
            ["evaluate"],
            ["report"],
            ["train"],
            ["plan"],
            ["doctor"],
        ),
        *(["weights"], ["weights", "convert"], ["predict", "--other-names"]),
    ],
    ids=" ".join,
)
def test_the_help_of_a_command_comes_without_torch(words: list[str]) -> None:
    modules = imported(*words) if "--other-names" in words else imported(*words, "--help")
    assert not {"torch", "numpy", "gemmi"} & modules
    commands = {name for name in modules if name.startswith("helixfold.cli.")}
    assert commands == {f"helixfold.cli.{name}" for name in ("main", "app", "command", "help", words[0])}


def test_a_process_of_its_own_ends_at_once_and_leaves_nothing_undone() -> None:
    program = (
        "import atexit, sys, threading, time; from helixfold.cli import main as cli;"
        "atexit.register(lambda: sys.stdout.write('registered '));"
        "late = lambda: (time.sleep(0.2), sys.stdout.write('thread '));"
        "cli.main = lambda: threading.Thread(target=late).start() or sys.stdout.write('main ') and 7;"
        "module = type('Left', (), {'__del__': lambda _: sys.stdout.write('taken apart ')})();"
        "cli.command()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.returncode, done.stderr) == (["main", "thread", "registered"], 7, "")
