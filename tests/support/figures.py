"""Figures of matplotlib as they are drawn, to read their data back."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from matplotlib.figure import Figure


def figure_of(draw: Callable[[], object]) -> Figure:
    """Return the one figure that `draw` saves."""
    saved: list[Figure] = []

    def remember(figure: Figure, *_: Any, **__: Any) -> None:
        saved.append(figure)

    with patch.object(Figure, "savefig", remember):
        draw()
    (figure,) = saved
    return figure
