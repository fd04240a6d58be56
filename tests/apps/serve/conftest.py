"""A server that the tests of its routes share; without the extra serve, there is nothing to test here."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if find_spec("fastapi") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from tests.apps.serve.running import running

if TYPE_CHECKING:
    from tests.apps.serve.running import Running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Running]":
    """A server on this machine, whose user needs no token."""
    with running(tmp_path_factory.mktemp("service"), max_requests=100_000) as found:
        yield found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Running]":
    """A server that demands tokens."""
    directory = tmp_path_factory.mktemp("guarded")
    with running(directory, require_tokens=True, max_requests=100_000) as found:
        yield found


@pytest.fixture(autouse=True)
def patient_upload_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the checking process take long on a busy machine; its limits of memory and processor time are as they are."""
    monkeypatch.setattr("helixfold.apps.serve.upload_check._MAX_SECONDS", 600)
