"""Run command lines in forked children of one process that has everything imported, and digest the files they write."""

import contextlib
import gc
import importlib
import io
import os
import pkgutil
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bad_input.case import Content, lay_out
from tests.inventory.digest import Digest, digest, json_digest

ROOT = Path(__file__).parents[2]
# A command line, with an event in brackets before it, or a change to the folder between two command lines.
Step = str | Callable[[Path], object]
_EVENT = re.compile(r"\[([^\]]*)\] ")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Command lines that run one after the other in a folder with these files.

    The folder begins as a copy of what the run `after` left. `says` are words of which the inventory records whether
    the commands printed them.
    """

    name: str
    steps: tuple[Step, ...]
    files: Mapping[str, Content] = field(default_factory=dict)
    after: str | None = None
    says: tuple[str, ...] = ()


def import_everything() -> None:
    """Import the whole project, so that children need not."""
    import data_pipeline  # noqa: PLC0415
    import helixfold  # noqa: PLC0415

    for package in (helixfold, data_pipeline):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not re.search(r"triton|benchmark|notebook", module.name):
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def folders() -> Iterator[Path]:
    """Yield a temporary directory for the folders of runs, with a home directory that holds no parameters."""
    root = Path(tempfile.mkdtemp(prefix="inventory_")).resolve()
    before = dict(os.environ)
    os.environ |= {
        "HOME": str(root / "home"),
        "XDG_CACHE_HOME": str(root / "home/cache"),
        "HELIXFOLD_CONFIG": os.devnull,
        "MPLCONFIGDIR": str(root / "home/matplotlib"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "NO_PROXY": "*",
        "TMPDIR": str(root / "home"),
    }
    (root / "home").mkdir()
    tempfile.tempdir = None
    try:
        yield root
    finally:
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir = None
        shutil.rmtree(root, ignore_errors=True)


def carry_out(run: Run, root: Path) -> Digest:
    """Return the exit codes of a run's commands and the digests of the files that they wrote, changed or removed."""
    folder = root / run.name
    if run.after is None:
        folder.mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "earlier").symlink_to(ROOT / "tests/earlier_versions")
    else:
        shutil.copytree(root / run.after, folder, symlinks=True)
    lay_out(folder, run.files)
    before, codes, printed, found = _contents(folder), [], "", Digest()
    for number, step in enumerate(run.steps):
        if callable(step):
            step(folder)
            continue
        event = _EVENT.match(step)
        words = shlex.split(step if event is None else step[event.end() :])
        code, out, errors = run_command(words, folder, event[1] if event else "")
        codes.append(code)
        printed += out + errors
        if "--json" in words and out.strip().startswith("{"):
            found[f"stdout of command {number + 1}"] = json_digest(out.encode())
        if "Traceback" in errors:
            found[f"traceback of command {number + 1}"] = True
    found["exit codes"] = codes
    found |= {f"says {word}": word in printed for word in run.says}
    (root / "home" / f"{run.name}.printed").write_text(printed)
    after = _contents(folder)
    for name in sorted(after):
        if after[name] != before.get(name):
            found[name] = digest(name, after[name])
    return found | dict.fromkeys(before.keys() - after.keys(), "removed")


def run_command(words: list[str], folder: Path, event: str = "") -> tuple[int, str, str]:
    """Run a command line in a forked child; return its exit code (minus a signal), standard output and error."""
    out, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
    sys.stdout.flush()
    sys.stderr.flush()
    if event.startswith("import"):
        code = _interrupted_import(words, folder, event.split()[1], out, errors)
    elif (child := os.fork()) == 0:
        _child(words, folder, event, out.fileno(), errors.fileno())
    else:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = []
    for stream in (out, errors):
        stream.seek(0)
        texts.append(stream.read().decode(errors="replace"))
        stream.close()
    return code, texts[0], texts[1]


def _child(words: list[str], folder: Path, event: str, out: int, errors: int) -> None:
    code = 70
    try:
        from helixfold.cli.main import main  # noqa: PLC0415

        if event == "closed pipe":
            reading, out = os.pipe()
            os.close(reading)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = f"{folder}:{ROOT}"  # a run may bring a sitecustomize.py for processes that it starts
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(errors, 2)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        # Processes that a command spawns import the main module again, which must not be this program.
        sys.modules["__main__"] = types.ModuleType("__main__")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.fsync = lambda _: None
        _prepare(event, folder)
        code = main(words)
        sys.stdout.flush()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        code = 99  # a traceback
        with contextlib.suppress(Exception):
            traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _prepare(event: str, folder: Path) -> None:
    """Arrange what happens during a command: `kill FILE` or `interrupt FILE` before a file of this name is written,
    or `out of memory` at the first calculation of a network.
    """
    kind, _, name = event.partition(" ")
    if kind in ("kill", "interrupt"):
        sent, pending = signal.SIGKILL if kind == "kill" else signal.SIGINT, [name]
        parent = os.getpid()

        def strike(kind: str, arguments: tuple[object, ...]) -> None:
            is_write = kind == "os.rename" or (kind == "open" and isinstance(arguments[2], int) and arguments[2] & 3)
            if is_write and pending and os.getpid() == parent and any(pending[0] in str(each) for each in arguments):
                pending.clear()
                os.kill(parent, sent)

        sys.addaudithook(strike)
    elif event == "out of memory":
        fail_first_call(MemoryError("injected"))


def fail_first_call(error: Exception) -> None:
    """Let the first call of a module of a network with tensors that hold values raise an error."""
    import torch  # noqa: PLC0415

    call, pending = torch.nn.Module.__call__, [error]

    def failing(module: torch.nn.Module, *arguments: object, **named: object) -> object:
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        if pending and tensors and all(each.device.type == "cpu" for each in tensors):
            raise pending.pop()
        return call(module, *arguments, **named)

    torch.nn.Module.__call__ = failing  # type: ignore[method-assign]


_INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
pending = [{module!r}]
def strike(event, arguments):
    if event == "import" and pending and arguments[0] == pending[0]:
        pending.clear()
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(strike)
from helixfold.cli.main import main
sys.exit(main({words!r}))
"""


def _interrupted_import(words: list[str], folder: Path, module: str, out: io.IOBase, errors: io.IOBase) -> int:
    """Run a command in a fresh interpreter that gets SIGINT when it begins to import a module."""
    program = _INTERRUPTED.format(module=module, words=words)
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, stdout=out, stderr=errors, check=False, timeout=300
    ).returncode


# TensorBoard's files have the time, the host and the process in their names, and clocks of claims are named at random.
_VARYING = re.compile(r"(events\.out\.tfevents\.|/clock-).+")


def _contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder by its name without varying parts; links are not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        # Parsl's own files have names with times and random numbers.
        if path.is_file() and not path.is_symlink() and ".cluster/runs/" not in str(path):
            found[_VARYING.sub(r"\1*", str(path.relative_to(folder)))] = path.read_bytes()
    return found
