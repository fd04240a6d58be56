"""Import modules without garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def collecting_no_garbage() -> Iterator[None]:
    """Disable garbage collection while modules are imported inside, and exclude their objects from later collections.

    All objects that exist at the end are excluded, but only the first time in a process. Modules create hundreds of
    thousands of permanent objects. Scanning them repeatedly takes a tenth of the time of imports, and a tenth of a
    second for each collection after a prediction.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        _freeze()


@cache
def _freeze() -> None:
    # Only once in a process, because objects that a caller has created since may become garbage.
    gc.freeze()
