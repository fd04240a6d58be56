"""Figures as matplotlib draws them, to read their data back."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from matplotlib.figure import Figure


def figure_of(draw: Callable[[], object]) -> Figure:
    """Return the figure that `draw` saves; fail unless it saves exactly one."""
    saved: list[Figure] = []
    save = Figure.savefig

    def remember(figure: Figure, *arguments: Any, **options: Any) -> None:
        saved.append(figure)
        save(figure, *arguments, **options)

    with patch.object(Figure, "savefig", remember):
        draw()
    (figure,) = saved
    return figure
