"""Imports of a command are no garbage, and what is made later is collected as ever."""

import gc

import pytest

from helixfold.runtime import imports
from helixfold.runtime.imports import collecting_no_garbage


def test_garbage_is_collected_again_after_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    imports._freeze.cache_clear()
    for _ in range(2):
        with pytest.raises(ImportError), collecting_no_garbage():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled()
        assert frozen == [True]


def test_a_process_that_collects_no_garbage_stays_so() -> None:
    gc.disable()
    try:
        with collecting_no_garbage():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
