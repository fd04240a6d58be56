"""How threads of OpenMP, with which PyTorch computes on a CPU, wait for each other."""

import os
import sys

_POLICY, _PASSIVE = "OMP_WAIT_POLICY", "passive"
# With any of these the user has chosen: OpenMP's own variable, those of GNU's library, and of LLVM's and Intel's.
_CHOSEN_BY = (_POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


def sleep_while_waiting() -> None:
    """Let threads sleep instead of spin while they wait for others, unless the environment says how they wait.

    A thread that spins beside a busy program uses up the time that the thread it waits for needs: on two processors
    with busy neighbours, a block of the network then takes many times as long. OpenMP's library reads this once, when
    PyTorch loads it, so nothing is changed after that.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in _CHOSEN_BY):
        os.environ[_POLICY] = _PASSIVE
