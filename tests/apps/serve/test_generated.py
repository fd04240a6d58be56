"""Whatever is sent to whichever route, the answer is never that the service made a mistake."""

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.apps.serve.running import Running, running

WORDS = ("sequence", "name", "options", "alignments", "webhook", "wait", "kinds", "progress", "summary", "error", "q")
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(["MKTAYIAKQR", "MK:MK", ">a\nMK", "0" * 32, "prediction"]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)),
    max_leaves=12,
)
BODIES = st.one_of(
    VALUES, st.fixed_dictionaries({"sequence": TEXTS}, optional=dict.fromkeys(("name", "options", "webhook"), VALUES))
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("service"), wait_seconds=0.05, max_requests=10**7) as found:
        yield found


def routes(server: Running) -> list[tuple[str, str]]:
    described = server.json("GET", "/api/openapi.json")
    return [(method.upper(), path) for path, methods in described["paths"].items() for method in methods]


def test_there_are_routes(service: Running) -> None:
    assert len(routes(service)) > 25


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_request_is_answered_with_a_mistake(service: Running, data: st.DataObject) -> None:
    method, path = data.draw(st.sampled_from(routes(service)))
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + quote(data.draw(TEXTS), safe="") + rest.partition("}")[2]
    body = json.dumps(data.draw(BODIES)).encode()
    headers = {"Authorization": f"Bearer {service.worker_token}", "X-Lease": "x"}
    headers["Content-Type"] = data.draw(
        st.sampled_from(["application/json", "application/x-www-form-urlencoded", "text/plain"])
    )
    status, _, answer = service.asked(method, path, body=None if method == "GET" else body, headers=headers)
    assert status < 500 or status in (501, 502, 503, 504), (method, path, status, answer)
