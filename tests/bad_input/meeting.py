"""How the command meets an input: its exit code, what it said, and what changed in the folder and around it."""

import contextlib
import io
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from helixfold.cli.main import main

_WRITES = ("predict", "features")


@dataclass(frozen=True, kw_only=True)
class Met:
    """`said` holds the lines of stderr; `changed` what appeared, went or has other content."""

    code: int
    said: tuple[str, ...]
    changed: tuple[str, ...]


def met(command: str | list[str], folder: Path) -> Met:
    """What a command does that runs in `folder`, in this process; what is raised, a test sees as it is."""
    arguments = shlex.split(command) if isinstance(command, str) else command
    if arguments[:1] and arguments[0] in _WRITES and "--output" not in arguments:
        arguments += ["--output", "out"]
    if arguments[:1] == ["predict"] and "--num-recycles" not in arguments:
        arguments += ["--num-recycles", "0"]  # should an input be let through after all
    before, errors = contents(folder.parent), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = main(arguments)
    after = contents(folder.parent)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return Met(code=code, said=tuple(errors.getvalue().splitlines()), changed=tuple(changed))


def contents(folder: Path) -> dict[str, bytes | str]:
    """All that lies there and below, by name."""
    found: dict[str, bytes | str] = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path)] = f"link to {os.readlink(path)}"
        elif path.is_file():
            found[str(path)] = path.read_bytes()
        else:
            found[str(path)] = "directory" if path.is_dir() else "neither file nor directory"
    return found
