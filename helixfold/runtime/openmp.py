"""How threads of OpenMP, with which PyTorch computes on a CPU, wait for each other."""

import os
import sys
import warnings
from functools import cache

# GNU's library, which PyTorch brings on Linux, follows the second where both are set: a thread looks so often whether
# the others are done before it sleeps. A block of the network takes 1.3 to 1.5 times as long on idle processors if
# threads sleep at once, and 2.5 times as long beside a busy program if they look ten times as often.
_CHOICE = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
# With any of these the user has chosen: OpenMP's own variable, those of GNU's library, and of LLVM's and Intel's.
_CHOSEN_BY = (*_CHOICE, "KMP_BLOCKTIME", "KMP_LIBRARY")


def sleep_while_waiting() -> None:
    """Let threads that wait for others sleep soon instead of spin, unless the environment says how they wait.

    A thread that spins beside a busy program uses up the time that the thread it waits for needs: on two processors
    with busy neighbours, a block of the network then takes many times as long. OpenMP's library reads this once, when
    PyTorch loads it, so nothing is changed after that.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in _CHOSEN_BY):
        os.environ.update(_CHOICE)


@cache
def warn_of_spinning_threads() -> None:
    """Warn once if PyTorch was loaded too early for `sleep_while_waiting`, unless it computes in one thread."""
    torch = sys.modules.get("torch")
    if torch is None or any(name in os.environ for name in _CHOSEN_BY) or torch.get_num_threads() == 1:
        return
    warnings.warn(
        "torch was imported before helixfold, so its threads spin while they wait, which takes many times as long "
        "beside other programs; import helixfold first, or set OMP_WAIT_POLICY=passive before Python starts",
        stacklevel=3,
    )
