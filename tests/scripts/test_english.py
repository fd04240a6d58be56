"""`scripts/english.py` finds the phrases and names that the style guide avoids, and measures pages."""

from collections import Counter
from pathlib import Path

import pytest

from scripts import english

MODULE = '''"""Read what is there. Of all files the first counts."""


def least(found: int) -> int:
    """Return the size of the first, or that of the second."""
    # It is no error to
    # have none.
    raise ValueError(f"there are {found}, and the reason is told")
'''
PAGE = """# Pages

A sentence of six words, here.
Another one.

```bash
echo the size of the first or that of the second
```

- It goes on beside the other.

<!-- files: target -->
It goes on beside the generated table.
<!-- end -->
"""


def test_phrases_and_names_are_found_where_they_stand(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    (tmp_path / "page.md").write_text(PAGE)
    found = Counter((text.path.name, name, text.line) for name, text in english.places([tmp_path]))
    assert found == {
        ("module.py", "fronted Of", 1): 1,
        ("module.py", "those of, that of", 5): 1,
        ("module.py", "is no NOUN", 6): 1,
        ("module.py", "say, tell, know", 8): 1,
        ("module.py", "name: most, least", 4): 1,
        ("module.py", "name: participle", 4): 1,
        ("page.md", "beside, but for", 10): 1,
        ("page.md", "go on, begin anew", 10): 1,
    }


def test_pages_are_measured_without_their_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(english, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    assert [line.split() for line in english.page_lines([tmp_path])][1:] == [
        ["page.md", "27", "5.0", "0"],
        ["all", "27", "5.0", "0"],
    ]


def test_a_seed_draws_the_same_docstrings_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(english, "ROOT", tmp_path)
    for folder in ("helixfold", "data_pipeline"):
        (tmp_path / folder).mkdir()
        for index in range(5):
            (tmp_path / folder / f"part_{index}.py").write_text(MODULE.replace("least", f"first_{index}"))
    drawn = list(english.drawn(7, 3))
    assert drawn == list(english.drawn(7, 3)) != list(english.drawn(8, 3))
    assert len(drawn) == 6
    assert all("(found: int) -> int" in each for each in drawn[:3])
