"""Set how OpenMP threads, which PyTorch uses on a CPU, wait for each other: sleeping or spinning."""

import os
import sys
import warnings
from functools import cache

# GNU's library, which comes with PyTorch on Linux, uses the second variable if both are set: the number of times that a
# waiting thread checks whether the others have finished before it sleeps. If threads sleep at once, a block of the
# network takes 1.3 to 1.5 times as long on idle processors. With ten times as many checks it takes 2.5 times as long
# next to a busy program.
_WAIT_SETTINGS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
# Variables by which users choose the policy: of OpenMP itself, and of GNU's, LLVM's and Intel's libraries.
_USER_SETTINGS = (*_WAIT_SETTINGS, "KMP_BLOCKTIME", "KMP_LIBRARY")


def sleep_while_waiting() -> None:
    """Make waiting OpenMP threads sleep soon instead of spinning, unless the environment sets a policy.

    A spinning thread takes processor time from the thread that it waits for. On two processors with other busy
    programs, a block of the network then takes many times as long. The OpenMP library reads the setting once, when
    PyTorch loads it, so this does nothing after that.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in _USER_SETTINGS):
        os.environ.update(_WAIT_SETTINGS)


@cache
def warn_of_spinning_threads() -> None:
    """Warn once if PyTorch was loaded too early for `sleep_while_waiting`, unless it computes in one thread."""
    torch = sys.modules.get("torch")
    if torch is None or any(name in os.environ for name in _USER_SETTINGS) or torch.get_num_threads() == 1:
        return
    warnings.warn(
        "torch was imported before helixfold, so its threads spin while they wait, which is many times slower next to "
        "other programs; import helixfold first, or set OMP_WAIT_POLICY=passive before Python starts",
        stacklevel=3,
    )
