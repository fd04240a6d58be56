"""How a command imports what it runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def collecting_no_garbage() -> Iterator[None]:
    """Collect no garbage while modules are imported inside, and leave what they made out of all later collections.

    Modules make hundreds of thousands of objects that stay. To look through them again and again takes a tenth of the
    time of imports, and a tenth of a second each time that memory is given back after a prediction.
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
    # Only once in a process: what a caller made since then may become garbage.
    gc.freeze()
