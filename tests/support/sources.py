"""The project's Python files and their syntax trees, for tests that look at all of them."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def files(*folders: str) -> list[Path]:
    """Return the Python files below these folders of the repository, in order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    """Return the dotted name under which a file of the repository is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imported_names(path: Path) -> tuple[str, ...]:
    """Return the full name of everything that a file imports, also inside functions."""
    names: list[str] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(names)


# Methods of `Prediction` that need a package of a higher layer import it when they are called.
CONVENIENCES = "helixfold.folding.prediction"
ROOMS_OF_CONVENIENCES = ("helixfold.analysis.", "helixfold.results.", "helixfold.report.")


def is_convenience(module: str, imported: str) -> bool:
    """Return whether a module imports this name for the methods of `Prediction`, from a higher layer."""
    return module == CONVENIENCES and imported.startswith(ROOMS_OF_CONVENIENCES)
