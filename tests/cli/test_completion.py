"""Completion scripts offer commands, options and choices, and no earlier spelling."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helixfold.cli.app import COMMANDS

# What bash does when the tab key is pressed, without the package bash-completion.
PRESS = """
source {script}
COMP_WORDS=({words} '{last}') COMP_CWORD={place}
_helixfold
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "helixfold-completion.bash"
    path.write_text(printed("bash"))
    return path


def printed(shell: str) -> str:
    """The script, from a process of its own: it loads all commands under their summaries."""
    program = f"from helixfold.cli.main import main; main(['completion', '{shell}'])"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def offered(script: Path, words: str, last: str = "") -> list[str]:
    """What bash offers for the last word of a command line."""
    text = PRESS.format(script=script, words=words, last=last, place=len(words.split()))
    done = subprocess.run(["bash", "--norc", "-c", text], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_and_choices(script: Path) -> None:
    assert set(COMMANDS) <= set(offered(script, "helixfold"))
    assert offered(script, "helixfold", "pre") == ["predict"]
    assert set(offered(script, "helixfold weights")) >= {"download", "inspect", "convert", "merge", "verify"}
    assert offered(script, "helixfold predict", "--num-r") == ["--num-recycles"]
    assert offered(script, "helixfold benchmark memory", "--spill") == ["--spill-directory"]
    assert set(offered(script, "helixfold predict --executor")) == {"auto", "whole", "slabs", "spilled"}
    assert "--quiet" in offered(script, "helixfold fetch", "--q")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_earlier_spellings_are_not_offered(script: Path) -> None:
    assert offered(script, "helixfold train", "--pat") == []
    assert offered(script, "helixfold features", "--least") == []


@pytest.mark.integration
@pytest.mark.parametrize("shell", ["zsh", pytest.param("fish", marks=pytest.mark.long)])
def test_other_shells_have_all_commands_and_options(shell: str) -> None:
    script = printed(shell)
    assert all(name in script for name in (*COMMANDS, "num-recycles", "checkpoint-policy", "quiet"))
    assert "least-plddt" not in script
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True)
