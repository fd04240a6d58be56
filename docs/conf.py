"""How Sphinx builds these pages: plain Markdown that reads as well where it lies.

python -m pip install -c constraints.txt -e '.[docs]'
sphinx-build -W --keep-going docs build/docs
"""

import re

from sphinx.application import Sphinx

import helixfold

project = "helixfold"
author = "the helixfold authors"
release = version = helixfold.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "helixfold"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
myst_heading_anchors = 3
# Tables and code of these pages are for reading, not for a highlighter's guess.
highlight_language = "none"

# Docstrings are plain text with `code`, and shapes such as "b r r" are no names to look up.
default_role = "code"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 90
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"

_MODULE = re.compile(r"^- \[`([\w.]+)`\]", re.MULTILINE)
_CONTENTS = re.compile(r"^## (.+)$|^- \[[^]]+\]\(([\w/-]+)\.md\)", re.MULTILINE)


def _contents(_: Sphinx, name: str, source: list[str]) -> None:
    """The list of pages in index.md is the table of contents: who reads it as plain Markdown sees no directive."""
    if name != "index":
        return
    lines: list[str] = []
    for heading, page in _CONTENTS.findall(source[0]):
        if heading:
            lines += ["```", "", "```{toctree}", ":hidden:", f":caption: {heading}", ""]
        else:
            lines.append(page)
    source[0] += "\n" + "\n".join([*lines[1:], "```", ""])


def _reference(_: Sphinx, name: str, source: list[str]) -> None:
    """The list of modules in reference/python.md is followed by what their docstrings say."""
    if name != "reference/python":
        return
    for module in _MODULE.findall(source[0]):
        source[0] += f"\n## `{module}`\n\n```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _contents)
    app.connect("source-read", _reference)
