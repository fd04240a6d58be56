"""Bars are shown where somebody looks: on a terminal, in a notebook, or where they are asked for."""

import sys

import pytest

from helixfold.runtime.screen import hides_bars


def test_bars_are_shown_in_notebooks_and_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    # None is tqdm's own choice, which asks the terminal.
    assert [hides_bars(each) for each in (None, True, False)] == [None, False, True]
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert [hides_bars(each) for each in (None, True, False)] == [False, False, True]
