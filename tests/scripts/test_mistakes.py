"""Patterns find their place in made-up modules, and random mistakes change them."""

import ast
from pathlib import Path

import pytest

from scripts.mistakes import Pattern, apply, draw_mistakes, find_pattern, read_list

SOURCE = '''
"""A module."""

LIMIT = 8.0  # Å


class Scores:
    """Scores of pairs."""

    def ptm(self, error, mask):
        # the best alignment
        scores = (error * mask).mean(-1)
        if scores.ndim == 0:
            return scores
        scores = scores.amax(
            dim=-1,  # residues
        )
        return scores - error + LIMIT


def count(values, weights=None):
    total = 0
    for value in values:
        total += value
        total += value
    print(f"{total + 1}")
    return (lambda score: -score)(total), total
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "module.py").write_text(SOURCE)
    return tmp_path


def changed(root: Path, find: str, replace: str, function: str = "", nth: int | None = None) -> str:
    pattern = Pattern(about="", module="module.py", function=function, find=find, replace=replace, nth=nth)
    return apply(SOURCE, [find_pattern(pattern, root, "list")])


def equal(source: str, *replacements: tuple[str, str]) -> bool:
    expected = SOURCE
    for old, new in replacements:
        assert old in expected
        expected = expected.replace(old, new, 1)
    return ast.dump(ast.parse(source)) == ast.dump(ast.parse(expected))


def test_wildcards_match_expressions_and_formatting_does_not_matter(root: Path) -> None:
    source = changed(root, "_1.mean( -1 )", "_1.mean(-2)", "Scores.ptm")
    assert equal(source, (".mean(-1)", ".mean(-2)"))
    assert "# the best alignment" in source
    assert "# residues" in source
    assert equal(changed(root, "_1.amax(dim=-1)", "_1.amin(dim=-1)", "Scores.ptm"), ("amax", "amin"))


def test_equal_wildcards_match_equal_expressions_only(root: Path) -> None:
    with pytest.raises(ValueError, match="does not occur"):
        changed(root, "_1 * _1", "_1", "Scores.ptm")
    assert equal(changed(root, "_1 * _2", "_2", "Scores.ptm"), ("error * mask", "mask"))
    assert equal(changed(root, "total += _1\ntotal += _1", "total += _1", "count"), ("        total += value\n", ""))


def test_statements_are_replaced_and_deleted(root: Path) -> None:
    deleted = changed(root, "if _1:\n    return _2", "", "Scores.ptm")
    assert equal(deleted, ("if scores.ndim == 0:\n            return scores", "pass"))
    assert equal(changed(root, "print(_1)", "", "count"), ('print(f"{total + 1}")', "pass"))
    two = changed(
        root,
        "for _1 in _2:\n    total += _1\n    total += _1",
        "for _1 in _2:\n    total = _1\nelse:\n    pass",
        "count",
    )
    assert equal(
        two, ("        total += value\n        total += value\n", "        total = value\n    else:\n        pass\n")
    )


def test_names_of_arguments_hide_behind_wildcards(root: Path) -> None:
    assert equal(changed(root, "lambda _1: -_1", "lambda _1: _1", "count"), ("-score", "score"))


def test_module_level_is_outside_functions(root: Path) -> None:
    assert equal(changed(root, "LIMIT = 8.0", "LIMIT = 9.0"), ("8.0", "9.0"))
    with pytest.raises(ValueError, match="does not occur in the module outside functions"):
        changed(root, "_1.mean(-1)", "_1.mean(-2)")


def test_several_matches_need_a_choice_and_are_named(root: Path) -> None:
    with pytest.raises(ValueError, match=r"occurs 2 times .* nth = 1 in line 24, nth = 2 in line 25"):
        changed(root, "total += value", "", "count")
    assert equal(
        changed(root, "total += value", "total -= value", "count", 2),
        ("total += value\n    print", "total -= value\n    print"),
    )
    with pytest.raises(ValueError, match="nth is 3"):
        changed(root, "total += value", "", "count", 3)


def test_what_does_not_fit_is_named(root: Path) -> None:
    with pytest.raises(ValueError, match="function Scores"):
        changed(root, "_1", "_1", "Scores.iptm")
    with pytest.raises(ValueError, match="replace contains _2"):
        changed(root, "LIMIT = _1", "LIMIT = _2")
    with pytest.raises(ValueError, match="does not change"):
        changed(root, "LIMIT = _1", "LIMIT = _1")
    with pytest.raises(ValueError, match="does not occur"):  # inside an f-string
        changed(root, "total + 1", "total", "count")
    with pytest.raises(ValueError, match="does not occur"):  # 0 is not False
        changed(root, "total = False", "total = 1", "count")


def test_several_mistakes_are_made_in_one_module(root: Path) -> None:
    patterns = [
        Pattern(about="", module="module.py", function="count", find="total = 0", replace="total = 100"),
        Pattern(about="", module="module.py", find="8.0", replace="7.25"),
    ]
    source = apply(SOURCE, [find_pattern(pattern, root, "list") for pattern in patterns])
    assert equal(source, ("8.0", "7.25"), ("total = 0", "total = 100"))


def test_a_list_with_a_wrong_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "losses.toml"
    path.write_text('[[mistake]]\nabout = "a"\nmodule = "b"\nfind = "c"\nreplace = "d"\nnumber = 1\n')
    with pytest.raises(ValueError, match=r"losses.toml, mistake 1: .*number"):
        read_list(path)


def test_random_mistakes_are_valid_different_and_repeatable(root: Path) -> None:
    mistakes = draw_mistakes(root, ["module.py"], 1000, seed=1)
    sources = {apply(SOURCE, [mistake]) for mistake in mistakes}
    assert len(mistakes) >= 25
    assert len({ast.dump(ast.parse(source)) for source in sources}) >= 25
    assert all(ast.dump(ast.parse(source)) != ast.dump(ast.parse(SOURCE)) for source in sources)
    assert (
        draw_mistakes(root, ["module.py"], 5, seed=1) == draw_mistakes(root, ["module.py"], 5, seed=1) == mistakes[:5]
    )
    assert draw_mistakes(root, ["module.py"], 5, seed=2) != mistakes[:5]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a < b", "a <= b"),
        ("a == b", "a != b"),
        ("a + b", "a - b"),
        ("a / b", "b / a"),
        ("a and b", "a or b"),
        ("not a", "a"),
        ("a[3]", "a[4]"),
        ("a[3]", "a[2]"),
        ("f(True)", "f(False)"),
        ("f(a, b)", "f(b, a)"),
        ("f(a, key=b)", "f(a)"),
        ("max(a)", "min(a)"),
        ("a.sum(-1)", "a.sum(-2)"),
        ("a.sum(dim=-1)", "a.sum(dim=-2)"),
        ("a.softmax(dim=1)", "a.softmax(dim=0)"),
        ("a.transpose(0, 1)", "a"),
        ("a.mT", "a"),
        ("a * mask[:, 0]", "a"),
        ("a[i, j]", "a[j, i]"),
        ("a if b else c", "c if b else a"),
    ],
)
def test_random_mistakes_of_each_kind(root: Path, old: str, new: str) -> None:
    (root / "module.py").write_text(f"x = {old}\n")
    mistakes = draw_mistakes(root, ["module.py"], 100, seed=0)
    assert ast.dump(ast.parse(f"x = {new}")) in [ast.dump(ast.parse(apply(f"x = {old}\n", [m]))) for m in mistakes]


def test_random_mistakes_leave_messages_and_annotations_alone(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        'def f(x: "a[0]" = None) -> "b[1]":\n    raise ValueError("low" + str(1 + 2))\n'
    )
    with pytest.raises(ValueError, match="nothing to change"):
        draw_mistakes(tmp_path, ["module.py"], 5, seed=0)
