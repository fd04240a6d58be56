"""Count phrases and names that the style guide avoids, and measure pages: `python scripts/english.py [PATH ...]`.

Without paths, the packages and the documentation are read. `--show PHRASE` lists each place of a phrase. `--pages`
prints the words (with a letter or digit, also in code) and the mean sentence length of each page. What scripts write
into pages is not counted, and neither is the record of measurements. `--draw SEED COUNT` draws public functions and
classes with their docstrings, and identifiers with what documents them, for a reader to explain who has not seen the
code.
"""

import argparse
import ast
import io
import random
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("data_pipeline", "helixfold", "docs", "README.md", "CONTRIBUTING.md")
RECORD = "docs/dev/measurements.md"
# Between such comments, scripts write tables (scripts/command_page.py, outputs_page.py, settings_pages.py), and a page
# shows a file, which tests compare.
_GENERATED = re.compile(r"^<!-- (?!end )[\w: /.]+ -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)

# Phrases in prose: docstrings, comments, messages, documentation.
PHRASES = {
    "those of, that of": r"\b(?:those|that) of\b",
    "say, tell, know": r"\b(?:says?|said|tells?|told|knows|knew)\b",
    "is no NOUN": r"\b(?:is|are|was|were|be) no (?!longer|more|fewer|less)",
    "for, as a reason": r", for (?:it|they|there|these|this|no|what|each|all|such|which|then)\b",
    "fronted What": r"(?<=[.!?:] )What [a-z]+\b[^?.]*\.|^What [a-z]+\b[^?.]*\.",
    "fronted Of": r"(?:^|(?<=[.!?] ))Of [a-z]",
    "beside, but for": r"\bbeside\b|\bbut for\b",
    "in place of, anew": r"\bin place of\b|\banew\b",
    "a pass, passes": r"\b(?:a|each|every|one|all|first|last|per) pass(?:es)?\b|\bpasses before\b",
    "One gives": r"(?:^|(?<=[.!?] ))One (?:gives|has|can|may|takes|sees|gets)\b",
    "go on, begin anew": r"\b(?:goes|go|went|going) on\b(?! to)|\bbeg[iau]ns? anew\b",
    "card": r"\bcards?\b",
    "forecast": r"\bforecasts?\b",
    "refusal": r"\brefusals?\b",
    "as many, as much": r"\b(?:as many|as much|so many|so much)\b",
    "in all": r"\bin all\b",
    "that there is": r"\bthat there (?:is|are)\b",
}
# Names in code: variables, parameters, functions, classes and attributes that are defined.
NAMES = {
    "participle": r"(?:found|given|made|chosen|kept|asked|wanted|taken|left_out|done|known|told|said|drawn|shown|held)",
    "most, least": r"(?:.*_)?(?:most|least)(?:_.*)?",
    "number for index": r"number",
    "card": r"(?:.*_)?cards?(?:_.*)?",
    "refusal": r"(?:.*_)?refus(?:al|als|es)(?:_.*)?",
    "forecast": r"(?:.*_)?forecasts?(?:_.*)?",
    "passes": r"(?:.*_)?passes(?:_.*)?",
}
_LONG_SENTENCE = 25


@dataclass(frozen=True)
class Text:
    """A piece of prose, or a name, and where it stands."""

    path: Path
    line: int
    text: str
    is_name: bool = False


def texts(path: Path) -> Iterator[Text]:
    """Yield the prose of a page, or the prose and the defined names of a Python file."""
    if path.suffix != ".py":
        source = hand_written(path)
        yield from (Text(path, line, text) for line, text in _paragraphs(source))
        return
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield Text(path, node.lineno, " ".join(node.value.split()))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Text(path, node.lineno, node.name.strip("_").lower(), is_name=True)
        elif isinstance(node, ast.arg):
            yield Text(path, node.lineno, node.arg.strip("_").lower(), is_name=True)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
            yield Text(path, node.lineno, name.strip("_").lower(), is_name=True)
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            words = token.string.lstrip("#").strip()
            if comments and comments[-1][0] + comments[-1][1].count("\n") + 1 == token.start[0]:
                comments[-1] = (comments[-1][0], f"{comments[-1][1]}\n{words}")
            else:
                comments.append((token.start[0], words))
    yield from (Text(path, line, words.replace("\n", " ")) for line, words in comments)


def hand_written(page: Path) -> str:
    """Return the text of a page with empty lines instead of the lines that scripts write."""
    return _GENERATED.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"))


def _paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs and lines of tables of a page, without code blocks, and the number of their first line."""
    collected: list[str] = []
    start, in_code = 0, False
    for index, line in enumerate([*page.splitlines(), ""], start=1):
        words = line.strip()
        is_fence = words.startswith("```")
        in_code ^= is_fence
        if in_code:
            continue
        if collected and (is_fence or not words or words.startswith((":::", "- ", "* ", "|", "#", "1. "))):
            yield start, " ".join(collected)
            collected = []
        if words and not is_fence and not words.startswith(":::"):
            start = start if collected else index
            collected.append(words)


def files(paths: Sequence[Path]) -> list[Path]:
    """Return the Python files and pages below some paths, without the record of measurements."""
    below = [each for path in paths for each in ([path] if path.is_file() else sorted(path.rglob("*")))]
    return [path for path in below if path.suffix in (".py", ".md") and path.absolute() != ROOT / RECORD]


def places(paths: Sequence[Path]) -> Iterator[tuple[str, Text]]:
    """Yield each place of a phrase or name that the style guide avoids."""
    phrases = {name: re.compile(pattern, re.MULTILINE) for name, pattern in PHRASES.items()}
    names = {f"name: {name}": re.compile(pattern) for name, pattern in NAMES.items()}
    for path in files(paths):
        for text in texts(path):
            if text.is_name:
                yield from ((name, text) for name, pattern in names.items() if pattern.fullmatch(text.text))
            else:
                yield from ((name, text) for name, pattern in phrases.items() for _ in pattern.finditer(text.text))


def sentences(page: str) -> list[str]:
    """Return the sentences of a page's prose; headings and tables are left out."""
    prose = [text for _, text in _paragraphs(page) if not text.startswith(("#", "|", "<", ":", "["))]
    plain = [re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", text)) for text in prose]
    split = [each for text in plain for each in re.split(r"(?<=[.!?:;])\s+", text)]
    return [each for each in split if re.search(r"[a-z]", each)]


def page_lines(paths: Sequence[Path]) -> Iterator[str]:
    """Yield for each page its words, the mean words of a sentence, and its number of long sentences; then for all."""
    total = Counter[str]()
    yield f"{'page, without generated text':52}{'words':>8}{'words a sentence':>18}{f'over {_LONG_SENTENCE}':>9}"
    for path in (path for path in files(paths) if path.suffix == ".md"):
        page = hand_written(path)
        lengths = [len(each.split()) for each in sentences(page)]
        counts = {"words": len(re.findall(r"\S*\w\S*", page)), "sentences": len(lengths), "in sentences": sum(lengths)}
        counts["long"] = sum(length > _LONG_SENTENCE for length in lengths)
        total.update(counts)
        yield _page_line(str(path.absolute().relative_to(ROOT)), counts)
    yield _page_line("all", total)


def _page_line(name: str, counts: "Counter[str] | dict[str, int]") -> str:
    mean = counts["in sentences"] / max(1, counts["sentences"])
    return f"{name:52}{counts['words']:8,}{mean:18.1f}{counts['long']:9,}"


def drawn(seed: int, count: int) -> Iterator[str]:
    """Yield public functions and classes with their docstrings, then identifiers, drawn with a seed."""
    documented, identifiers = [], []
    for path in files([ROOT / "data_pipeline", ROOT / "helixfold"]):
        if path.suffix != ".py":
            continue
        source = path.read_text(encoding="utf-8")
        where, tree = path.relative_to(ROOT), ast.parse(source)
        described = _described_names(tree, source.splitlines())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                docstring = ast.get_docstring(node)
                if docstring:
                    documented.append(f"{where}:{node.lineno} {_signature(node)}\n{docstring}")
        identifiers += [f"{where}: {name} in {place}" for name, place in sorted(described.items())]
    chooser = random.Random(seed)
    yield from chooser.sample(documented, count)
    yield from chooser.sample(identifiers, count)


def _described_names(tree: ast.Module, lines: Sequence[str]) -> dict[str, str]:
    """Return what documents each name of a module: a signature and docstring, or comments.

    The names are functions and classes with a docstring, their parameters and fields, and constants of the module with
    a comment. Other names have nothing but themselves to explain them.
    """
    described: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (docstring := ast.get_docstring(node)):
            if isinstance(node, ast.ClassDef):
                names = _assigned(node.body)
            else:
                names = [arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)]
            described |= dict.fromkeys([node.name, *names], f"{_signature(node)}\n{docstring}")
    for node in tree.body:
        comment = _comment_at(lines, node.lineno - 1)
        described |= dict.fromkeys(_assigned([node]) if comment else [], f"the module\n{comment}")
    return {name: text for name, text in described.items() if len(name.strip("_")) > 2 and name not in ("self", "cls")}


def _assigned(body: list[ast.stmt]) -> list[str]:
    """Return the names that statements assign."""
    targets = [target for each in body if isinstance(each, ast.Assign) for target in each.targets]
    targets += [each.target for each in body if isinstance(each, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _comment_at(lines: Sequence[str], index: int) -> str:
    """Return the comment at the end of a line and on the lines above it."""
    start = index
    while start and lines[start - 1].startswith("#"):
        start -= 1
    comments = [*lines[start:index], *lines[index].partition("  #")[1:]]
    return " ".join(" ".join(comments).replace("#", " ").split())


def _signature(node: "ast.FunctionDef | ast.ClassDef") -> str:
    if isinstance(node, ast.ClassDef):
        fields = [ast.unparse(each) for each in node.body if isinstance(each, ast.AnnAssign)]
        return f"class {node.name}: {'; '.join(fields)}"
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"def {node.name}({ast.unparse(node.args)}){returns}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / name for name in FOLDERS])
    parser.add_argument("--show", metavar="PHRASE", help="list the places of a phrase, by the first words of its row")
    parser.add_argument("--pages", action="store_true", help="words and sentence lengths by page")
    parser.add_argument("--draw", nargs=2, type=int, metavar=("SEED", "COUNT"))
    options = parser.parse_args(arguments)
    if options.draw is not None:
        print("\n\n".join(drawn(*options.draw)))
    elif options.pages:
        print("\n".join(page_lines(options.paths)))
    elif options.show is not None:
        for name, text in places(options.paths):
            if name.startswith(options.show):
                print(f"{text.path}:{text.line}: {text.text[:160]}")
    else:
        counts = Counter(name for name, _ in places(options.paths))
        for name in (*PHRASES, *(f"name: {name}" for name in NAMES)):
            print(f"{name:28}{counts[name]:6,}")
        print(f"{'total':28}{counts.total():6,}")


if __name__ == "__main__":
    main(sys.argv[1:])
