"""Count the code by package: `python scripts/size.py`, or with `--json`.

For Python, it counts statements (every `ast.stmt` except docstrings), classes, dataclasses, parameters annotated as
callables, files and lines. A second table counts lines of templates, JavaScript, style sheets and C++.
"""

import argparse
import ast
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("data_pipeline", "helixfold", "scripts", "examples", "tests")
OTHER = {
    ".js": "JavaScript",
    ".html": "templates",
    ".css": "style sheets",
    ".cpp": "C++",
    ".h": "C++",
    ".jinja": "templates",
}
# Third-party libraries that pages include.
_FOREIGN = ("3Dmol", ".min.")


@dataclass
class Size:
    """Counts for a package."""

    statements: int = 0
    classes: int = 0
    dataclasses: int = 0
    callbacks: int = 0
    files: int = 0
    lines: int = 0

    def add(self, other: "Size") -> None:
        """Add other counts in place."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


def size_of(text: str) -> Size:
    """Return the counts for the text of a Python file."""
    nodes = list(ast.walk(ast.parse(text)))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Size(
        statements=sum(isinstance(node, ast.stmt) for node in nodes) - sum(map(_docstrings, nodes)),
        classes=len(classes),
        dataclasses=sum(any("dataclass" in ast.unparse(each) for each in node.decorator_list) for node in classes),
        callbacks=sum(map(_callbacks, functions)),
        files=1,
        lines=len(text.splitlines()),
    )


def _docstrings(node: ast.AST) -> int:
    has_docstring = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return int(has_docstring and ast.get_docstring(node, clean=False) is not None)


def _callbacks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of parameters of a function that are annotated as callables."""
    signature = function.args
    parameters = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs, signature.vararg, signature.kwarg]
    return sum(
        each is not None and each.annotation is not None and "Callable" in ast.unparse(each.annotation)
        for each in parameters
    )


def sizes(root: Path = ROOT) -> dict[str, Size]:
    """Return the counts of every top-level folder, with the packages `data_pipeline` and `helixfold` by subfolder."""
    packages: dict[str, Size] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).parts
            is_divided = folder in ("data_pipeline", "helixfold") and len(parts) > 2
            package = "/".join(parts[:2]) if is_divided else folder
            packages.setdefault(package, Size()).add(size_of(path.read_text()))
    return packages


def other_lines(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """Return the numbers of files and lines of languages other than Python in the packages, by language."""
    languages: dict[str, dict[str, int]] = {}
    for folder in ("data_pipeline", "helixfold"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in OTHER and not any(word in path.name for word in _FOREIGN):
                counts = languages.setdefault(OTHER[path.suffix], {"files": 0, "lines": 0})
                counts["files"] += 1
                counts["lines"] += len(path.read_text().splitlines())
    return languages


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Count the code by package.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(words)
    packages, others = sizes(), other_lines()
    program = Size()
    for name, each in packages.items():
        if name.startswith(("data_pipeline", "helixfold")):
            program.add(each)
    total = {"helixfold and data_pipeline": program}
    if options.json:
        rows = {name: asdict(each) for name, each in (packages | total).items()}
        print(json.dumps({"packages": rows, "others": others}))
        return
    columns = list(asdict(program))
    print(f"{'package':28}" + "".join(f"{name:>12}" for name in columns))
    for name, each in (packages | total).items():
        print(f"{name:28}" + "".join(f"{value:12,}" for value in asdict(each).values()))
    print(f"\n{'not Python':28}{'files':>12}{'lines':>12}")
    for name, counts in sorted(others.items()):
        print(f"{name:28}{counts['files']:12,}{counts['lines']:12,}")


if __name__ == "__main__":
    main()
