"""Operators are tested twice: with PyTorch's operators alone, and with the loops that Numba compiles.

To compile them takes seconds on a new machine, so the second is in the tier `integration`.
"""

from importlib.util import find_spec

import pytest

from helixfold.ops import sizes


@pytest.fixture(params=["plain", pytest.param("loops", marks=pytest.mark.integration)], autouse=True)
def passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What computes passes over memory: "plain" PyTorch or "loops"."""
    if request.param == "loops" and not find_spec("numba"):
        pytest.skip("Numba is not installed")
    monkeypatch.setattr(sizes, "LARGE_STREAM", 0 if request.param == "loops" else None)
    return request.param
