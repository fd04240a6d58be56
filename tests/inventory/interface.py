"""What users name: options of the command line, routes of the service, Python names, files' keys and variables."""

import ast
import contextlib
import copy
import inspect
import json
import os
import re
import signal
import sys
import tempfile
import time
import tomllib
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.inventory.commands import ROOT, run_command
from tests.inventory.digest import Digest, digest, json_digest

# Words that every option is asked to read; those that it accepts show its bounds.
_NUMBERS = (
    *("-1", "0", "1", "2", "31", "100", "101", "1000", "1001", "1024", "1025", "2000", "2001", "10000", "10001"),
    *("65535", "65536", "100000", "100001", "1000000", "1000001", "4611686018427387904", "4611686018427387905"),
)
_OTHERS = ("0.5", "-0.5", "inf", "nan", "8GiB", "2021-11-01", "1/3", "word")


def options() -> Digest:
    """Return names, type, default and accepted words of every option of every command, from cyclopts."""
    from helixfold.cli import app as commands  # noqa: PLC0415

    found: Digest = {}
    for name in commands.COMMANDS:
        _add_command([name], commands.application, found)
    return found


def _add_command(words: list[str], application: Any, found: Digest) -> None:
    root = application(words)
    _, apps, _ = root.parse_commands(words)
    if apps[-1].default_command is not None:
        with root.app_stack(apps):
            arguments = apps[-1].assemble_argument_collection()
        # Arguments without names of their own hold the options of a dataclass.
        found[f"helixfold {' '.join(words)}"] = {
            name: _option(each) for each in arguments if each.parse and not each.children for name in each.names
        }
    for word in apps[-1]:
        if not word.startswith("-"):
            _add_command([*words, word], application, found)


def _option(argument: Any) -> list[str]:
    """Return type, default and, of an option whose words are not free, those it accepts of `_NUMBERS` and `_OTHERS`."""
    default = argument.field_info.default
    if default is inspect.Parameter.empty:
        default = None
    text = "required" if argument.required else _without_places(str(default))
    found = [_type(argument.hint), text]
    numbers, others = ([word for word in words if _accepts(argument, word)] for words in (_NUMBERS, _OTHERS))
    if argument.hint is not bool and 0 < len([*numbers, *others]) < len([*_NUMBERS, *_OTHERS]):
        found.append(" ".join([f"{numbers[0]} to {numbers[-1]}" if numbers else "", *others]).strip())
    if argument.parameter.choices:
        found.append(" ".join(map(str, argument.parameter.choices)))
    return found


def _without_places(text: str) -> str:
    """Return a text with words for the paths that differ between machines and runs."""
    places = {sys.executable: "PYTHON", tempfile.gettempdir(): "TEMPORARY", str(ROOT): "PROJECT"}
    for path, word in places.items():
        text = text.replace(path, word)
    return text


def _type(hint: Any) -> str:
    """Return the text of a type without its annotations."""
    parts = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Annotated:
            return _type(parts[0])
        case typing.Literal:
            return "|".join(map(str, parts))
        case types.UnionType | typing.Union:
            return " | ".join(map(_type, parts))
        case None:
            return "..." if hint is ... else getattr(hint, "__name__", str(hint))
        case origin:
            return f"{origin.__name__}[{', '.join(map(_type, parts))}]"


def _accepts(argument: Any, word: str) -> bool:
    from cyclopts import Token  # noqa: PLC0415

    argument = copy.copy(argument)
    argument.tokens = [Token(keyword=argument.name, value=word, source="inventory")]
    try:
        argument.validate(argument.convert())
    except Exception:
        return False
    return True


# What the service is asked: method, path, content type and body.
REQUESTS = (
    ("GET", "/", "", b""),
    ("GET", "/jobs", "", b""),
    ("GET", "/login", "", b""),
    ("GET", "/metrics", "", b""),
    ("GET", "/v1/health/live", "", b""),
    ("GET", "/v1/health/ready", "", b""),
    ("GET", "/api/v1/service", "", b""),
    ("POST", "/api/v1/forecast", "application/json", b'{"sequence": "MKTAYIAKQR"}'),
    ("POST", "/api/v1/jobs", "application/json", b'{"sequence": "MKTAYIAKQR"}'),
    ("POST", "/api/v1/jobs", "application/json", b'{"sequence": "MKT1"}'),
    ("POST", "/api/v1/jobs", "application/json", b"{"),
    ("GET", "/api/v1/jobs", "", b""),
    ("POST", "/foldSequence/v1/pdb/", "text/plain", b"MKTAYIAKQR"),
    (
        "POST",
        "/protein-structure/alphafold2/predict-structure-from-sequence",
        "application/json",
        b'{"sequence": "MKTAYIAKQR"}',
    ),
    (
        "POST",
        "/protein-structure/alphafold2/predict-structure-from-MSA",
        "application/json",
        b'{"sequence": "MKTAYIAKQR", "alignments": {"u": {"a3m": '
        b'{"alignment": ">q\\nMKTAYIAKQR\\n", "format": "a3m"}}}}',
    ),
    (
        "POST",
        "/protein-structure/alphafold2/predict-MSA-from-sequence",
        "application/json",
        b'{"sequence": "MKTAYIAKQR"}',
    ),
    ("POST", "/ticket/msa", "application/x-www-form-urlencoded", b"q=%3E101%0AMKTAYIAKQR&mode=env"),
    ("GET", "/no/such/route", "", b""),
)


def service(root: Path) -> Digest:
    """Return the schema of a running service with one worker, and what it answers to `REQUESTS`."""
    folder = root / "service"
    folder.mkdir()
    printed = root / "home/service.printed"
    child = os.fork()
    if child == 0:
        with printed.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        words = "serve --data data --port 0 --workers 1 --models tiny --device cpu --memory 4GiB --threads 1"
        code, _, _ = run_served(words.split(), folder)
        os._exit(code)
    try:
        while not (address := re.search(r"http://127\.0\.0\.1:(\d+)", printed.read_text() if printed.exists() else "")):
            if os.waitpid(child, os.WNOHANG)[0]:
                child = 0
                return {"does not start": printed.read_text()[-300:]}
            time.sleep(0.05)
        port = int(address[1])
        _wait(lambda: _ask(port, "GET", "/v1/health/ready", "", b"")[0] == 200)
        found = _schema(json.loads(_ask(port, "GET", "/api/openapi.json", "", b"")[1]))
        counts: dict[str, int] = {}
        for method, path, kind, body in REQUESTS:
            if (method, path) == ("GET", "/api/v1/jobs"):
                # A job's record differs while it waits and runs.
                _wait(lambda: b'"done"' in _ask(port, "GET", "/api/v1/jobs", "", b"")[1])
            status, content, headers = _ask(port, method, path, kind, body)
            name = f"{method} {path}"
            counts[name] = counts.get(name, 0) + 1
            found[f"answer: {name}{f' ({counts[name]})' * (counts[name] > 1)}"] = {
                "code": status,
                "type": headers.split(";")[0],
            } | _answer(content, headers)
    finally:
        if child:
            os.kill(child, signal.SIGTERM)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return found | {"exit code after SIGTERM": code}


def _wait(is_ready: Callable[[], bool]) -> None:
    """Wait for the service; it prints its address before it accepts connections."""
    for _ in range(600):
        with contextlib.suppress(ConnectionError):
            if is_ready():
                return
        time.sleep(0.2)
    raise TimeoutError("the service did not answer as expected within 600 attempts")


def run_served(words: list[str], folder: Path) -> tuple[int, str, str]:
    """Run the service in this process, which is a child."""
    from helixfold.cli.main import main  # noqa: PLC0415

    os.chdir(folder)
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    try:
        return main(words), "", ""
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1, "", ""
    except BaseException:
        return 99, "", ""


def _ask(port: int, method: str, path: str, kind: str, body: bytes) -> tuple[int, bytes, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        headers = {"Content-Type": kind} if kind else {"Accept": "text/html, application/json"}
        connection.request(method, path, body=body or None, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers.get("Content-Type", "")
    finally:
        connection.close()


def _answer(content: bytes, kind: str) -> Digest:
    """Return the digest of an answer: keys of JSON, fields of the forms of a page, structures."""
    if "json" in kind:
        value = json.loads(content)
        if isinstance(value, list) and value and isinstance(value[0], str):
            return {"structures": len(value)} | digest("x.pdb", value[0].encode())
        return json_digest(content)
    if "html" in kind:
        return {
            "fields": sorted(set(re.findall(r"<(?:input|select|textarea)[^>]*?name=\"([^\"]+)\"", content.decode())))
        }
    if content.startswith((b"MODEL", b"HEADER", b"ATOM", b"REMARK", b"TITLE", b"PARENT")):
        return digest("x.pdb", content)
    if b"# TYPE" in content:
        return {"metrics": sorted(set(re.findall(r"# TYPE (\S+)", content.decode())))}
    return {}


def _schema(schema: dict[str, Any]) -> Digest:
    """Return parameters, bodies and answers of every route, and the fields of every message."""
    found: Digest = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            bodies = operation.get("requestBody", {}).get("content", {})
            found[f"{method.upper()} {path}"] = [
                *(
                    f"{each['in']} {each['name']}{' required' * each.get('required', False)}"
                    for each in operation.get("parameters", [])
                ),
                *(f"body {kind} {_kind(body.get('schema', {}))}" for kind, body in bodies.items()),
                *(f"answer {status}" for status in operation["responses"]),
            ]
    for name, part in schema.get("components", {}).get("schemas", {}).items():
        if "properties" not in part:
            found[f"message {name}"] = _kind(part)
            continue
        needed = part.get("required", [])
        found[f"message {name}"] = {
            field: f"{_kind(each)}{' required' * (field in needed)}" for field, each in part["properties"].items()
        }
    return found


def _kind(schema: dict[str, Any]) -> str:
    """Return a schema in one line, without titles and descriptions."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        kinds = " or ".join(_kind(each) for each in schema["anyOf"])
    else:
        kinds = str(schema.get("type", "any"))
        if "items" in schema:
            kinds += f" of {_kind(schema['items'])}"
        if "properties" in schema:
            kinds += f" of {{{', '.join(f'{name}: {_kind(each)}' for name, each in schema['properties'].items())}}}"
    skipped = (
        "$ref",
        "anyOf",
        "type",
        "items",
        "title",
        "description",
        "properties",
        "additionalProperties",
        "prefixItems",
    )
    rest = [f"{name}={value}" for name, value in schema.items() if name not in skipped]
    return " ".join([kinds, *rest])


def python_names() -> Digest:
    """Return the signature of everything that pages, notebooks and examples import from the project, or once did.

    Old import paths work until they are taken out of the tables of `_deprecated`.
    """
    found: Digest = {}
    earlier = json.loads((ROOT / "tests/inventory/names.json").read_text())
    warnings.simplefilter("ignore", DeprecationWarning)
    for name in sorted({*_imports(), *earlier}):
        module, _, attribute = name.rpartition(".")
        try:
            value = getattr(import_module(module), attribute) if module else import_module(name)
        except (ImportError, AttributeError):
            try:
                import_module(name)
                found[name] = "module"
            except ImportError:
                found[name] = "missing"
            continue
        found[name] = _signature(value)
        if inspect.isclass(value) and value.__module__.startswith(("helixfold", "data_pipeline")):
            found[name] = {"": found[name]} | {
                member: _signature(each) for member, each in vars(value).items() if not member.startswith("_")
            }
    return found


def _signature(value: Any) -> str:
    if inspect.ismodule(value):
        return "module"
    if not callable(value):
        return type(value).__name__
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return "callable"
    return f"({', '.join(_parameter(each) for each in parameters)})"


def _parameter(parameter: inspect.Parameter) -> str:
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    keyword = "*, " if parameter.kind is parameter.KEYWORD_ONLY else ""
    default = ""
    if parameter.default is not parameter.empty:
        simple = isinstance(parameter.default, bool | int | float | str | type(None))
        default = f"={parameter.default!r}" if simple else "=..."
    return f"{keyword}{star}{parameter.name}{default}"


def _imports() -> Iterator[str]:
    for text in _code():
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.startswith(("helixfold", "data_pipeline"))
            ):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name.startswith(("helixfold", "data_pipeline")))


def _code() -> Iterator[str]:
    """Yield the Python code of pages, notebooks and examples."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield from re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        for here in re.findall(r"<<'?(\w+)'?\n(.*?)\n\1\n", page.read_text(), re.DOTALL):
            yield here[1]
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(notebook.read_text())["cells"]:
            if cell["cell_type"] == "code":
                yield "".join(line for line in cell["source"] if not line.lstrip().startswith(("!", "%")))
    for example in sorted((ROOT / "examples").rglob("*.py")):
        yield example.read_text()


# Files with every known key, and one that is unknown; the error message lists the known ones, or the file is read.
_TOML = {
    "cluster": ("train nothing --output run --cluster t.toml", "[fold.a]\nmemory = '2GiB'\n{}"),
    "databases": (
        "databases check t.toml",
        "[[alignments]]\nname = 'a'\ntool = 'jackhmmer'\npath = 'x.fasta'\n{}",
    ),
    "templates": (
        "databases check t.toml",
        "[templates]\ntool = 'hmmsearch'\npath = 'x.fasta'\nstructures = '.'\nlatest_release = 2021-11-01\n{}",
    ),
    "uniprot": ("databases check t.toml", "[uniprot]\npath = 'x.fasta'\n{}"),
    "jobs": (
        "finetune --jobs t.toml --weights w.safetensors --output out --device cpu --memory 1KB",
        # The last key ends the command before it estimates memory, which takes 25 s.
        "[[job]]\nname = 'a'\ntraining_set = 'none'\n{}last_key = 1\n",
    ),
}
_TOML_KEYS = {
    "cluster": (
        *("provider = 'local'", "nodes = 1", "workers = 1", "gpus = 0", "gpus = 1\ncard = 'a100'", "cores = 1"),
        *("walltime = '01:00:00'", "queue = 'q'", "account = 'a'", "directives = ['#x']", "setup = 'true'"),
        *("python = 'python3'", "provider = 'kubernetes'\nimage = 'i'\nvolumes = ['c:/d']", "task_minutes = 1"),
        *("provider = 'slurm'", "provider = 'pbs'", "provider = 'lsf'", "provider = 'kubernetes'\nimage = 'i'"),
        *("[search]", "[train]\nprovider = 'pbs'", "[fold.b]\nmemory = '3GiB'", "no_such_key = 1"),
    ),
    "databases": (
        "engine = 'program'",
        "max_rows = 5",
        "options = { iterations = 1 }",
        "options = { e_value = 0.1 }",
        "no_such_key = 1",
    ),
    "templates": ("obsolete = 'x.fasta'", "release_dates = 'x.fasta'", "engine = 'program'", "no_such_key = 1"),
    "uniprot": ("engine = 'program'", "max_rows = 5", "no_such_key = 1"),
    "jobs": (
        *("held_out = 'h'", "adapter = 'full'", "rank = 2", "alpha = 1.0", "targets = '*'", "rank_stabilised = true"),
        *(
            "decomposed = true",
            "steps = 1",
            "learning_rate = 0.1",
            "seed = 1",
            "deadline = 9.0",
            "settings = ['steps=1']",
        ),
        *("no_such_key = 1",),
    ),
}


def formats(root: Path) -> Digest:
    """Return extras, environment variables, and which keys of TOML files are accepted."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: Digest = {
        f"extra {name}": sorted(re.split(r"[<>=;]", each)[0] for each in packages)
        for name, packages in project["optional-dependencies"].items()
    }
    found["commands"] = project["scripts"]
    found["environment variables"] = _variables()
    folder = root / "toml"
    folder.mkdir()
    (folder / "x.fasta").write_bytes(b">x\nMKTAYIAKQR\n")
    (folder / "w.safetensors").write_bytes((ROOT / "tests/earlier_versions/0.1/weights.safetensors").read_bytes())
    for name, (command, text) in _TOML.items():
        found[f"keys of {name}"] = {}
        for key in _TOML_KEYS[name]:
            (folder / "t.toml").write_text(text.format(key + "\n"))
            _, _, errors = run_command(command.split(), folder)
            # A known key is one that the program does not complain of by its name.
            word = key.partition(" ")[0].split("\n")[0]
            complaint = next(
                (line for line in errors.splitlines() if "t.toml" in line and re.search(r"unknown|there is no", line)),
                "",
            )
            is_refused = re.search(rf"unknown ([^;]*, )?{re.escape(word)}\b|'{re.escape(word)}'", complaint)
            found[f"keys of {name}"][key.replace("\n", "; ")] = "refused" if is_refused else "read"
    return found


def _variables() -> list[str]:
    """Return the names of environment variables that the project reads or sets, except in tests."""
    found = set()
    for folder in ("helixfold", "data_pipeline"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            found |= set(re.findall(r"\bHELIXFOLD_[A-Z_]+", text))
            if "environ" in text or "getenv" in text:
                constants = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
                found |= {
                    each
                    for each in constants
                    if isinstance(each, str) and re.fullmatch(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+|RANK", each)
                }
    return sorted(found)


def test_counts() -> dict[str, int]:
    """Return the number of test functions in each folder of tests."""
    counts: dict[str, int] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        folder = path.relative_to(ROOT / "tests").parts[0] if path.parent != ROOT / "tests" else "."
        counts[folder] = counts.get(folder, 0) + len(re.findall(r"^\s*def test_", path.read_text(), re.MULTILINE))
    return counts
