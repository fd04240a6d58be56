"""Imports of a command are no garbage, and what is made later is collected as ever."""

import gc

import pytest

from helixfold.imports import collecting_no_garbage


@pytest.mark.parametrize("frozen", [0, 7])
def test_garbage_is_collected_again_after_imports(frozen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen_again: list[bool] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "freeze", lambda: frozen_again.append(True))
    with pytest.raises(ImportError), collecting_no_garbage():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
    assert frozen_again == [True] * (frozen == 0)


def test_a_process_that_collects_no_garbage_stays_so() -> None:
    gc.disable()
    try:
        with collecting_no_garbage():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
