"""No line of the program runs, unpickles or unpacks what it is given, told from syntax trees and not from text."""

import ast
from collections.abc import Iterator

import pytest

from tests.support.sources import ROOT, files, module_name

# Developers' scripts, which change and run the project's own code and read its own files.
DEVELOPERS = {
    *files("scripts/parity"),
    *(ROOT / "scripts" / f"{name}.py" for name in ("inventory", "mistaken_copy", "mistakes", "mutations", "size")),
}
SOURCES = [
    path
    for path in files("data_pipeline", "helixfold", "scripts", "examples", "notebooks", "docs")
    if path not in DEVELOPERS
]

# Modules whose readers run code that a file brings, and those of XML, which open other files and expand without end.
FORBIDDEN_MODULES = {
    *("marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "code", "codeop", "pty"),
    *("xml", "lxml", "xmlrpc", "telnetlib", "ftplib", "torch.hub", "torch.package", "torch.jit"),
}
# pickle's own exceptions must be caught where a reader that never unpickles objects raises them.
PICKLE_NAMES = {"pickle.UnpicklingError", "pickle.PickleError"}
# The only module that unpickles, in a process with limits; its unpickler must define `find_class`.
UNPICKLING_MODULE = "data_pipeline.features.alphafold_pickle"
# What runs text as a program, starts programs past the one door for them, or makes a file that another may have made.
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__", "input", "breakpoint", "builtins.eval", "builtins.exec"),
    *("os.system", "os.popen", "os.startfile", "os.posix_spawn", "os.posix_spawnp", "asyncio.create_subprocess_shell"),
    *(
        f"os.{family}{kind}"
        for family in ("exec", "spawn")
        for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")
    ),
    *("tempfile.mktemp", "os.tempnam", "shutil.unpack_archive", "runpy.run_path", "runpy.run_module"),
    *("urllib.request.urlopen", "urllib.request.urlretrieve", "ssl._create_unverified_context"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "pandas.read_pickle", "torch.utils.model_zoo.load_url"),
    *("torch.ops.load_library", "torch.classes.load_library"),
}
# Arguments without which, or with another value than this, a call is unsafe.
REQUIRED = {
    **dict.fromkeys(
        (
            *("numpy.load", "numpy.lib.format.read_array", "numpy.lib.format.open_memmap"),
            *("numpy.lib.npyio.NpzFile", "numpy.save", "numpy.lib.format.write_array"),
        ),
        ("allow_pickle", False),
    ),
    "torch.load": ("weights_only", True),
    "jinja2.Environment": ("autoescape", True),
    "jinja2.Template": ("autoescape", True),
}
# Values that no call of anything may have.
FORBIDDEN_VALUES = (("shell", True), ("allow_pickle", True), ("weights_only", False), ("verify", False))
# Modules that may be imported in these rooms only: everything else goes through them.
ROOMS = {
    "subprocess": ("data_pipeline.search.process", "notebooks.fold_on_colab"),
    "ctypes": ("helixfold.execution.allocator", "helixfold.ops.cpu.compiled.threads"),
    "tarfile": (
        *(
            "helixfold.weights.download",
            "data_pipeline.search.database_download",
            "data_pipeline.search.server_archive",
        ),
        "helixfold.apps.serve.worker.tasks",  # which writes archives and reads none
    ),
    "zipfile": (
        "data_pipeline.io.zip_archive",
        "data_pipeline.io.npz",
        "helixfold.weights",
        "helixfold.results.archive",
    ),
    # One HTTP client opens all connections to servers.
    **dict.fromkeys(
        (
            *("aiohttp", "ftplib", "http.client", "httpcore", "httpx", "pooch", "requests", "urllib.request"),
            *("urllib3", "websockets"),
        ),
        ("data_pipeline.io.http",),
    ),
    # The server's protocol sets an option of the connections that it accepts, and opens none.
    "socket": ("helixfold.parallel", "data_pipeline.io.http", "helixfold.apps.serve.web.protocol"),
    "pickle": ("helixfold.weights.openfold", "data_pipeline.features.alphafold_pickle"),
    # Processes of the program's own send each other Python objects; nothing from outside gets there.
    "multiprocessing": (
        "helixfold.parallel",
        "helixfold.cli",
        "data_pipeline.io.child_processes",
        "data_pipeline.training_sets.build",
        "helixfold.benchmark.gpu",
        *("helixfold.apps.serve.upload_check", "helixfold.apps.serve.run", "helixfold.apps.serve.worker.process"),
    ),
}


def dangers(source: str, module: str) -> Iterator[str]:
    """What is wrong with a file, one line for each place."""
    tree = ast.parse(source)
    meaning = _meanings(tree)
    restricted = _restricted_unpicklers(tree) if module == UNPICKLING_MODULE else []
    for node in ast.walk(tree):
        for name in _imported(node):
            if any(_within(name, forbidden) for forbidden in FORBIDDEN_MODULES):
                yield f"line {_line(node)}: imports {name}"
            rooms = next((rooms for own, rooms in ROOMS.items() if _within(name, own)), None)
            if rooms is not None and not any(_within(module, room) for room in rooms):
                yield f"line {_line(node)}: imports {name}, which is for {', '.join(rooms)}"
        if isinstance(node, ast.ImportFrom) and node.module == "pickle":
            yield f"line {node.lineno}: takes names out of pickle"
        dotted = _dotted(node, meaning)
        if dotted.startswith("pickle.") and dotted not in PICKLE_NAMES and node not in restricted:
            yield f"line {_line(node)}: uses {dotted}"
        # Also where it is not called there: `load = yaml.load` is the same.
        if dotted in FORBIDDEN_CALLS and isinstance(getattr(node, "ctx", None), ast.Load):
            yield f"line {_line(node)}: uses {dotted}"
        if isinstance(node, ast.Call):
            yield from _call(node, _dotted(node.func, meaning))


def _call(node: ast.Call, function: str) -> Iterator[str]:
    given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    constants = {name: value.value for name, value in given.items() if isinstance(value, ast.Constant)}
    last = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    for name, value in FORBIDDEN_VALUES:
        if (name, last) == ("shell", "generate_completion"):  # the name of a shell, for which a script is printed
            continue
        # What is no constant may have that value; only what says otherwise in words is let through.
        if name in given and (name not in constants or constants[name] is value):
            yield f"line {node.lineno}: {function or 'a call'} with {name}={ast.unparse(given[name])}"
    if function in REQUIRED:
        name, value = REQUIRED[function]
        if constants.get(name) is not value:
            yield f"line {node.lineno}: {function} without {name}={value}"
    if last in ("extractall", "extract") and constants.get("filter") != "data":
        yield f"line {node.lineno}: {last} without filter='data'"


def _restricted_unpicklers(tree: ast.AST) -> list[ast.expr]:
    """Return the base classes of classes that define `find_class`."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [
        base
        for each in classes
        if any(isinstance(item, ast.FunctionDef) and item.name == "find_class" for item in each.body)
        for base in each.bases
    ]


def _meanings(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: np is numpy, and load may be numpy.load."""
    meaning: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                meaning[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            meaning |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return meaning


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _dotted(node: ast.AST, meaning: dict[str, str]) -> str:
    """A name or a chain of attributes in full, such as numpy.lib.format.read_array; empty for anything else."""
    if isinstance(node, ast.Name):
        return meaning.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, meaning)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _within(name: str, whole: str) -> bool:
    return name == whole or name.startswith(f"{whole}.")


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def test_nothing_runs_unpickles_or_unpacks_what_it_is_given() -> None:
    found = {str(path): list(dangers(path.read_text(), module_name(path))) for path in SOURCES}
    assert not {path: lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p\np.loads(b'')",
        "from pickle import loads",
        "import dill",
        "from xml.etree import ElementTree",
        "import subprocess",
        "from subprocess import run",
        "eval('1')",
        "run = exec",
        "compile('1', '', 'eval')",
        "import os\nos.system('ls')",
        "from os import popen as ask\nask('ls')",
        "import os\nos.execvp('ls', ['ls'])",
        "start(['ls'], shell=True)",
        "start(['ls'], shell=wanted)",
        "import numpy as np\nnp.load('x.npz')",
        "from numpy import load\nload('x.npz', allow_pickle=True)",
        "import numpy as np\nnp.lib.format.read_array(file)",
        "import torch\ntorch.load('x.pt')",
        "import torch\ntorch.load('x.pt', weights_only=False)",
        "import torch as t\nread = t.jit.load\nimport torch.jit",
        "archive.extractall('out')",
        "archive.extract(member, 'out', filter='fully_trusted')",
        "import yaml\nyaml.load(text)",
        "import tempfile\ntempfile.mktemp()",
        "session.get(url, verify=False)",
        "from jinja2 import Environment\nEnvironment()",
        "import urllib.request\nurllib.request.urlopen(url)",
    ],
)
def test_each_danger_is_seen(source: str) -> None:
    assert list(dangers(source, "helixfold.cli.predict"))


RESTRICTED = "import pickle\nclass Reader(pickle.Unpickler):\n    def find_class(self, module, name): ...\n"


def test_one_module_unpickles_with_its_own_names() -> None:
    assert not list(dangers(RESTRICTED, UNPICKLING_MODULE))
    assert list(dangers(RESTRICTED, "helixfold.weights.openfold"))
    assert list(dangers(RESTRICTED.replace("find_class", "other"), UNPICKLING_MODULE))
    assert list(dangers(f"{RESTRICTED}pickle.loads(b'')", UNPICKLING_MODULE))
    assert list(dangers(f"{RESTRICTED}pickle.Unpickler(file)", UNPICKLING_MODULE))


@pytest.mark.parametrize(
    "source",
    [
        "network.eval()",
        "import re\nre.compile('a')",
        "import torch\ntorch.compile(f)",
        "import torch\ntorch.load('x.pt', map_location='cpu', weights_only=True)",
        "import numpy as np\nnp.load('x.npz', allow_pickle=False)",
        "archive.extractall('out', filter='data')",
        "import subprocess",
        "stream.read()",
    ],
)
def test_what_is_safe_is_let_through(source: str) -> None:
    assert not list(dangers(source, "data_pipeline.search.process"))
