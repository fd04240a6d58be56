"""Deliberate mistakes for mutation tests: syntax-tree patterns from TOML lists, or random changes.

A list has entries like this one; `function` is a qualified name (`Class.method`), empty or absent outside functions:

    [[mistake]]
    about = "the aligned error is transposed"
    module = "helixfold/analysis/scores.py"
    function = "ptm"
    find = "_1.mean(-1)"
    replace = "_1.mean(-2)"
    nth = 1

`find` is an expression, or one or more consecutive statements. In it, `_1`, `_2`, ... match any expression, and the
same name must match equal expressions. An empty `replace` deletes statements. `nth` (from 1) selects one of several
matches.
"""

import ast
import copy
import random
import re
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_WILDCARD = re.compile(r"_\d+")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NOT_COMPARED = ("ctx", "kind", "type_comment")


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A deliberate mistake: a replacement for the bytes from `start` to `end` of a module."""

    about: str
    module: str
    function: str
    start: int
    end: int
    text: str
    origin: str
    line: int

    @property
    def package(self) -> str:
        """The folder of the module, at most two levels deep, by which results are counted."""
        return "/".join(self.module.split("/")[:-1][:2])


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A pattern in a list of mistakes, with its replacement."""

    about: str
    module: str
    find: str
    replace: str
    function: str = ""
    nth: int | None = None


def read_list(path: Path) -> list[Pattern]:
    """Read the entries of a list; raise `ValueError` for missing or unknown keys."""
    patterns = []
    for index, entry in enumerate(tomllib.loads(path.read_text())["mistake"], 1):
        try:
            patterns.append(Pattern(**entry))
        except TypeError as error:
            raise ValueError(f"{path.name}, mistake {index}: {str(error).replace('Pattern.__init__() ', '')}") from None
    return patterns


def apply(source: str, mistakes: list[Mistake]) -> str:
    """Return the source of a module with non-overlapping mistakes applied."""
    code = source.encode()
    for mistake in sorted(mistakes, key=lambda mistake: -mistake.start):
        code = code[: mistake.start] + mistake.text.encode() + code[mistake.end :]
    return code.decode()


def find_pattern(pattern: Pattern, root: Path, origin: str) -> Mistake:
    """Return the mistake for a pattern in its module; raise `ValueError` if the pattern does not match."""
    path = root / pattern.module
    if not path.is_file():
        raise ValueError(f"{pattern.module} does not exist")
    source = path.read_text()
    old, new = _parse(pattern.find), _parse(pattern.replace)
    is_expression = all(len(body) == 1 and isinstance(body[0], ast.Expr) for body in (old, new))
    matches = []
    for scope in _scopes(ast.parse(source), pattern.function):
        for nodes in _sequences(scope, 0 if is_expression else len(old)):
            bound: dict[str, ast.expr] = {}
            if _is_match([old[0].value] if is_expression else old, nodes, bound):  # type: ignore[attr-defined]
                matches.append((nodes, bound))
    place = f"{pattern.function or 'the module outside functions'} of {pattern.module}"
    if not matches:
        raise ValueError(f"{pattern.find!r} does not occur in {place}")
    if pattern.nth is None and len(matches) > 1:
        lines = ", ".join(f"nth = {n} in line {nodes[0].lineno}" for n, (nodes, _) in enumerate(matches, 1))
        raise ValueError(f"{pattern.find!r} occurs {len(matches)} times in {place}: {lines}")
    if not 1 <= (nth := pattern.nth or 1) <= len(matches):
        raise ValueError(f"{pattern.find!r} occurs {len(matches)} times in {place}, nth is {nth}")
    nodes, bound = matches[nth - 1]
    new = [_Substitution(bound).visit(node) for node in new]
    mistake = _mistake(
        source,
        nodes,
        [new[0].value] if is_expression else new,  # type: ignore[attr-defined]
        about=pattern.about,
        module=pattern.module,
        function=pattern.function,
        origin=origin,
    )
    if mistake is None:
        raise ValueError(f"{pattern.replace!r} does not change {pattern.find!r}, or is not valid there")
    return mistake


def draw_mistakes(root: Path, modules: list[str], count: int, seed: int) -> list[Mistake]:
    """Draw random mistakes, with equal probability of each kind; raise `ValueError` if the modules have none."""
    remaining: dict[str, list[tuple[str, str, list[ast.AST], list[ast.AST], str]]] = {}
    sources = {}
    for module in sorted(modules):
        sources[module] = (root / module).read_text()
        for kind, function, old, new in _candidates(ast.parse(sources[module])):
            remaining.setdefault(kind, []).append((module, function, old, new, kind))
    rng, mistakes = random.Random(seed), []
    while remaining and len(mistakes) < count:
        candidates = remaining[kind := rng.choice(sorted(remaining))]
        module, function, old, new, about = candidates.pop(rng.randrange(len(candidates)))
        if not candidates:
            del remaining[kind]
        mistake = _mistake(sources[module], old, new, about=about, module=module, function=function, origin="random")
        if mistake is not None:
            mistakes.append(mistake)
    if not mistakes:
        raise ValueError("the modules have nothing to change")
    return mistakes


def _mistake(source: str, old: list[ast.AST], new: list[ast.AST], *, about: str, **place: str) -> Mistake | None:
    """Replace nodes by others in the text, which keeps comments and lines elsewhere; None if nothing is changed."""
    code = source.encode()
    lines = [0, *(match.end() for match in re.finditer(b"\n", code))]
    first, last = old[0], old[-1]
    start, end = lines[first.lineno - 1] + first.col_offset, lines[last.end_lineno - 1] + last.end_col_offset
    if isinstance(first, ast.expr):
        text = f"({ast.unparse(new[0])})"
    else:
        text = "\n".join(map(ast.unparse, new)) or "pass"
        text = text.replace("\n", "\n" + " " * first.col_offset) if "\n" in text else text
    if place["origin"] == "random":
        about = f"{about}: {_short(code[start:end].decode())} -> {_short(text)}"
    mistake = Mistake(about=about, start=start, end=end, text=text, line=first.lineno, **place)
    try:
        changed = ast.parse(apply(source, [mistake]))
        compile(changed, place["module"], "exec")
    except (SyntaxError, ValueError):
        return None
    return None if ast.dump(changed) == ast.dump(ast.parse(source)) else mistake


def _short(text: str) -> str:
    return textwrap.shorten(" ".join(text.split()), 60, placeholder=" ...")


# Patterns


def _parse(text: str) -> list[ast.stmt]:
    return ast.parse(textwrap.dedent(text).strip("\n")).body


def _scopes(tree: ast.Module, function: str) -> list[ast.AST]:
    """Return the definitions with a qualified name, or the module."""
    if not function:
        return [tree]
    scopes = [node for name, node in _definitions(tree) if name == function.replace("<locals>.", "")]
    if not scopes:
        raise ValueError(f"function {function} does not exist")
    return scopes


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            yield prefix + child.name, child
            yield from _definitions(child, f"{prefix}{child.name}.")
        else:
            yield from _definitions(child, prefix)


def _walk(node: ast.AST, leave_out: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """Yield all nodes in source order, except inside f-strings, for which Python 3.11 has no positions."""
    yield node
    for child in () if isinstance(node, ast.JoinedStr) else ast.iter_child_nodes(node):
        if not isinstance(child, leave_out):
            yield from _walk(child, leave_out)


def _sequences(scope: ast.AST, count: int) -> Iterator[list[ast.AST]]:
    """Yield single expressions if `count` is 0, or else `count` consecutive statements.

    In a module, functions are excluded.
    """
    for node in _walk(scope, _FUNCTIONS if isinstance(scope, ast.Module) else ()):
        if isinstance(node, ast.expr) and not count:
            yield [node]
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if count and isinstance(body, list):
                yield from (body[i : i + count] for i in range(len(body) - count + 1))


def _is_match(pattern: object, node: object, bound: dict[str, ast.expr]) -> bool:
    """Return whether a node matches a pattern, and bind its wildcards."""
    if isinstance(pattern, ast.Name) and _WILDCARD.fullmatch(pattern.id) and isinstance(node, ast.expr):
        return _is_match(bound.setdefault(pattern.id, node), node, {})
    if isinstance(pattern, ast.arg) and _WILDCARD.fullmatch(pattern.arg) and isinstance(node, ast.arg):
        return _is_match(ast.Name(pattern.arg), ast.Name(node.arg), bound)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, list) and isinstance(node, list):
        return len(pattern) == len(node) and all(_is_match(*pair, bound) for pair in zip(pattern, node, strict=True))
    if isinstance(pattern, ast.AST):
        fields = [field for field in pattern._fields if field not in _NOT_COMPARED]
        return all(_is_match(getattr(pattern, field, None), getattr(node, field, None), bound) for field in fields)
    return pattern == node


class _Substitution(ast.NodeTransformer):
    """Replace wildcards with the expressions bound to them."""

    def __init__(self, bound: dict[str, ast.expr]) -> None:
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not _WILDCARD.fullmatch(node.id):
            return node
        if node.id not in self.bound:
            raise ValueError(f"replace contains {node.id}, which find does not")
        return copy.deepcopy(self.bound[node.id])

    def visit_arg(self, node: ast.arg) -> ast.arg:
        name = self.bound.get(node.arg)
        return ast.arg(name.id) if isinstance(name, ast.Name) else node


# Random mistakes

_OTHER: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
_PAIRS = ("min max", "amin amax", "argmin argmax", "minimum maximum", "any all", "sum mean", "floor ceil", "sin cos")
_OTHER_NAME = {a: b for pair in _PAIRS for a, b in (pair.split(), pair.split()[::-1])}
_AXES = ("dim", "axis", "dim1", "dim2")
_REDUCTIONS = ("sum", "mean", "softmax", "amax", "amin", "argmax", "cat", "stack", "unbind")
# Functions whose messages are for people, so tests need not check them.
_MESSAGES = {"debug", "info", "warning", "warn", "error", "print", "write", "add_argument"}


def _candidates(tree: ast.Module) -> Iterator[tuple[str, str, list[ast.AST], list[ast.AST]]]:
    """Yield kinds of mistakes, names of functions, nodes and their replacements."""
    names = {id(node): name for name, node in _definitions(tree)}

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, str, list[ast.AST], list[ast.AST]]]:
        function = names.get(id(node), function)
        for kind, new in _variants(node):
            yield kind, function, [node], [] if new is None else [new]
        for child in _changed_children(node):
            yield from visit(child, function)

    yield from visit(tree, "")


def _changed_children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children that computation depends on: not annotations, decorators, messages or match patterns."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.pattern)):
        return
    if isinstance(node, ast.Call) and _name(node.func) in _MESSAGES:
        return
    if isinstance(node, ast.If) and _name(node.test) in ("TYPE_CHECKING", "__name__"):
        return
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list", "msg", "bases"):
            yield from (
                child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)
            )


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _variants(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:  # noqa: PLR0912
    """Yield the kinds of mistakes at a node, each with the replacement of the node; None deletes it."""
    match node:
        case ast.Compare(ops=[op]):
            for other in _OTHER.get(type(op), ()):
                yield "comparison", _with(node, ops=[other()])
        case ast.BinOp(op=op):
            if isinstance(op, ast.Mult):
                for factor, rest in ((node.left, node.right), (node.right, node.left)):
                    if "mask" in ast.unparse(factor):
                        yield "dropped mask", rest
            if isinstance(op, (ast.MatMult, ast.Sub, ast.Div)):
                yield "exchanged operands", _with(node, left=node.right, right=node.left)
            for other in _OTHER.get(type(op), ()):
                yield "arithmetic", _with(node, op=other())
        case ast.BoolOp(op=op):
            yield "and, or", _with(node, op=_OTHER[type(op)][0]())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield "dropped sign or not", node.operand
        case ast.Constant(value=bool() as value):
            yield "True, False", ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", ast.Constant(value + 1)
            yield "constant", ast.Constant(value - 1)
        case ast.Call():
            yield from _call_variants(node)
        case ast.Attribute(attr="T" | "mT"):
            yield "transposition", node.value
        case ast.Subscript(slice=ast.Tuple(elts=[first, second, *rest])) if ast.dump(first) != ast.dump(second):
            yield "exchanged axes", _with(node, slice=ast.Tuple([second, first, *rest]))
        case ast.IfExp():
            yield "exchanged branches", _with(node, body=node.orelse, orelse=node.body)
        case ast.If(orelse=[], body=[*_, ast.Return() | ast.Continue() | ast.Break() | ast.Raise()]):
            yield "dropped early end", None
        case ast.If(test=test) | ast.While(test=test) if not isinstance(node, ast.While):
            yield "inverted condition", _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            if not (isinstance(node, ast.Expr) and _name(node.value.func) in _MESSAGES):  # type: ignore[attr-defined]
                yield "dropped statement", None
        case ast.Assign(targets=[target], value=value):
            is_update = isinstance(target, ast.Name) and any(_name(part) == target.id for part in ast.walk(value))
            if is_update or isinstance(target, (ast.Attribute, ast.Subscript)):
                yield "dropped statement", None
        case ast.Return(value=ast.Tuple(elts=[first, second, *rest])):
            yield "exchanged results", ast.Return(ast.Tuple([second, first, *rest]))


def _call_variants(node: ast.Call) -> Iterator[tuple[str, ast.AST | None]]:
    name = _name(node.func)
    if name in _MESSAGES:
        return
    if other := _OTHER_NAME.get(name):
        field = "id" if isinstance(node.func, ast.Name) else "attr"
        yield "other function", _with(node, func=_with(node.func, **{field: other}))
    if isinstance(node.func, ast.Attribute) and name in ("transpose", "swapaxes", "permute", "flip"):
        yield "transposition", node.func.value
    if isinstance(node.func, ast.Attribute) and name in ("clamp", "clip", "abs", "sqrt", "square", "relu", "detach"):
        yield "dropped call", node.func.value
    if len(node.args) > 1 and not any(isinstance(arg, ast.Starred) for arg in node.args):
        yield "exchanged arguments", _with(node, args=[node.args[1], node.args[0], *node.args[2:]])
    for index, keyword in enumerate(node.keywords):
        others = node.keywords[:index], node.keywords[index + 1 :]
        yield "dropped argument", _with(node, keywords=[*others[0], *others[1]])
        if keyword.arg in _AXES and isinstance(value := _literal(keyword.value), int):
            axis = _with(keyword, value=_other_axis(value))
            yield "other axis", _with(node, keywords=[*others[0], axis, *others[1]])
    if name in _REDUCTIONS and node.args and isinstance(value := _literal(node.args[-1]), int):
        yield "other axis", _with(node, args=[*node.args[:-1], _other_axis(value)])


def _other_axis(axis: int) -> ast.AST:
    return ast.Constant(-1 if axis == -2 else -2 if axis < 0 else 1 if axis == 0 else axis - 1)


def _literal(node: ast.AST) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
