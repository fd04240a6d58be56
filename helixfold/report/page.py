"""Write self-contained HTML pages, which need no network and no other files.

Styles, scripts and data are inside. A content security policy allows the scripts and styles by their digests and
forbids everything else, so that names and files from elsewhere cannot make the page load or run anything. Templates
are escaped. `VIEWER` is the file of the library that draws structures, and `VIEWER_LICENCE` of its licence.
"""

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Final
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from helixfold import __version__

# Files in `pages/`: the library that draws structures, and its licence.
VIEWER: Final = "3Dmol-2.5.5-min.js"
VIEWER_LICENCE: Final = "3Dmol-LICENSE.txt"
# Data are added, the best prediction first, until the page has this many characters, so that it can be sent by mail.
_MAX_CHARACTERS = 16_000_000
_CURVE_WIDTH, _CURVE_HEIGHT = 100, 24  # of a curve of losses
_ASSETS = resources.files("helixfold.report") / "pages"


def page(
    template: str, *, styles: Sequence[str], scripts: Sequence[str], inserted: Sequence[str] = (), **content: object
) -> str:
    """Return the HTML of a template filled with `content`, including the named styles and scripts of this package.

    All names are names of files in `pages/`. Templates also read the `version` of helixfold. `inserted` names scripts
    that the page's own script unpacks and runs; the policy allows them, too.
    """
    style = "".join(asset(name) for name in styles)
    script = "(() => {\n'use strict';\n" + "".join(asset(name) for name in scripts) + "})();\n"
    runs = " ".join(_digest(text) for text in (script, *map(asset, inserted)))
    policy = (
        f"default-src 'none'; script-src {runs}; style-src {_digest(style)}; img-src data: blob:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    values = {**content, "version": __version__, "policy": policy, "style": Markup(style), "script": Markup(script)}
    return _environment().get_template(template).render(values)


@cache
def asset(name: str) -> str:
    """Return the text of the file `name` in this package's folder `pages/`."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def packed(content: bytes, level: int = 6) -> str:
    """Compress bytes with zlib and encode them in base64, so that a page can hold them and a browser unpack them."""
    return base64.b64encode(zlib.compress(content, level)).decode()


@cache
def packed_asset(name: str) -> str:
    """Return a file in `pages/`, compressed and encoded by `packed`."""
    return packed(asset(name).encode(), 9)


@dataclass(kw_only=True)
class Blobs:
    """Compressed data of a page, each in its own HTML element, so that a browser unpacks only what is displayed.

    `texts` has the data by the names of the elements.
    """

    texts: dict[str, str] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether the data have more than 16 million characters, so that callers should add no more."""
        return sum(map(len, self.texts.values())) > _MAX_CHARACTERS

    def add(self, text: str) -> str:
        """Add data as text, and return the name of their HTML element."""
        name = f"blob-{len(self.texts)}"
        self.texts[name] = text
        return name


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _TEMPLATE_FILTERS
    return environment


def duration(seconds: float) -> str:
    """Format a number of seconds, such as 0.04 s, 12 s, 3 min 20 s or 2 h 5 min."""
    if seconds < 9.5:
        return f"{seconds:.2g} s" if seconds >= 0.01 else "under 0.01 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun, such as 1 sequence, 1,024 sequences or 2 complexes.

    `plural` is by default the noun with an s.
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def _size(count: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def loss_curve(losses: Sequence[float]) -> str:
    """Return the points of a curve of losses in an SVG picture of 100 by 24, with the largest loss on top."""
    low, high = min(losses), max(losses)
    height, steps = high - low or 1.0, max(1, len(losses) - 1)
    return " ".join(
        f"{_CURVE_WIDTH * step / steps:.1f},{_CURVE_HEIGHT * (high - loss) / height:.1f}"
        for step, loss in enumerate(losses)
    )


_TEMPLATE_FILTERS: Mapping[str, Callable[..., str]] = {
    "thousands": "{:,}".format,
    "counted": counted,
    "duration": duration,
    "size": _size,
    "curve": loss_curve,
    "address": quote,  # Quotes a file name as a relative link, so that it is not read as a protocol or directory.
}
