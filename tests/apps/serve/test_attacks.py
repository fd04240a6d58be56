"""What an attacker sends is refused, and the queue goes on."""

import base64
import gzip
import http.client
import io
import json
import re
import socket
import time
import zipfile
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlencode

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.settings import ServeSettings
from helixfold.apps.serve.tokens import TokenFile
from helixfold.apps.serve.web.page_user import own_path
from helixfold.apps.serve.web.protocol import HEADER_SECONDS
from helixfold.apps.serve.web.request_limits import RateLimiter
from tests.apps.serve.databases import audit_lines
from tests.apps.serve.running import WORKER, Running, running, until
from tests.apps.serve.test_pages import Browser
from tests.support.alarm import time_limit

API = "/api/v1"
JOB = {"sequence": "MKTAYIAKQR"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def tokens(guarded: Running) -> dict[str, str]:
    file = guarded.service.tokens
    return {
        "anna": file.create("anna"),
        "ben": file.create("ben"),
        "worker": file.create("node", "worker"),
        "ended": file.create("anna", seconds=-1),
    }


@pytest.mark.integration
@pytest.mark.parametrize(
    "path",
    ["..%2f..%2fservice.sqlite", "../../tokens.json", "%2e%2e/%2e%2e/secret.key", "a/../../x", ".hidden", "a//b"],
)
def test_no_path_leads_out_of_a_result(server: Running, path: str) -> None:
    server.json("POST", f"{API}/jobs", JOB)
    claimed = server.claim()
    lease = {"X-Lease": claimed["lease"], **bearer(server.worker_token)}
    base = f"{WORKER}/jobs/{claimed['id']}"
    assert server.asked("PUT", f"{base}/results/{path}", body=b"x", headers=lease)[0] in (404, 405, 422)
    assert server.asked("GET", f"{base}/inputs/{path}", headers=lease)[0] in (404, 405)
    server.finish(claimed, {"ranked_0.pdb": b"x"})
    for route in (f"{API}/jobs/{claimed['id']}/files/", f"/jobs/{claimed['id']}/files/"):
        assert server.asked("GET", route + path)[0] == 404
    assert not [each for each in server.service.storage.directory.iterdir() if each.name in ("x", "a")]


def test_others_jobs_are_as_jobs_that_there_never_were(guarded: Running, tokens: dict[str, str]) -> None:
    job = guarded.json("POST", f"{API}/jobs", JOB, headers=bearer(tokens["anna"]))["id"]
    nobody = guarded.asked("GET", f"{API}/jobs/{'0' * 32}", headers=bearer(tokens["ben"]))
    for method, ending in (
        *(("GET", ""), ("GET", "/events"), ("GET", "/files"), ("GET", "/files/ranked_0.pdb"), ("GET", "/archive")),
        *(("POST", "/cancel"), ("POST", "/retry"), ("POST", "/share"), ("DELETE", ""), ("DELETE", "/share")),
    ):
        found = guarded.asked(method, f"{API}/jobs/{job}{ending}", headers=bearer(tokens["ben"]))
        assert (found[0], found[2]) == (404, nobody[2]), ending
    assert guarded.json("GET", f"{API}/jobs", headers=bearer(tokens["ben"]))["jobs"] == []


def test_what_shows_no_good_token_is_refused(guarded: Running, tokens: dict[str, str]) -> None:
    forged = tokens["anna"][:-1] + ("A" if tokens["anna"][-1] != "A" else "B")
    for token in ("", "x", forged, tokens["ended"], tokens["worker"], guarded.worker_token):
        assert guarded.asked("POST", f"{API}/jobs", JOB, headers=bearer(token))[0] == 401
        assert guarded.asked("GET", "/metrics", headers=bearer(token))[0] == 401
    claim = {"name": "x", "kinds": ["prediction"], "wait": 0}
    for token in ("", forged, tokens["anna"]):
        assert guarded.asked("POST", f"{WORKER}/claim", claim, headers=bearer(token))[0] == 401
    basic = base64.b64encode(f"anyone:{tokens['anna']}".encode()).decode()
    assert guarded.asked("GET", f"{API}/jobs", headers={"Authorization": f"Basic {basic}"})[0] == 200


def test_tokens_are_hashed_and_end_when_they_are_revoked(tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    token = file.create("anna")
    # The secret may have underscores itself.
    _, _, secret = token.split("_", 2)
    assert len(secret) == 43
    assert secret not in (tmp_path / "tokens.json").read_text()
    assert (tmp_path / "tokens.json").stat().st_mode & 0o077 == 0
    running_server = TokenFile(tmp_path)
    assert running_server.authenticate(token) is not None
    assert running_server.authenticate(token, "worker") is None
    file.revoke("anna")
    assert running_server.authenticate(token) is None


def test_a_session_begins_with_a_token_and_ends_with_it(guarded: Running) -> None:
    token = guarded.service.tokens.create("carl")
    status, headers, _ = guarded.asked("GET", "/jobs", headers={"Accept": "text/html"})
    assert (status, headers["location"]) == (303, "/login?next=/jobs")
    _, headers, body = guarded.asked("GET", "/login")
    first = headers["set-cookie"].partition(";")[0]
    assert all(word in headers["set-cookie"] for word in ("HttpOnly", "SameSite=lax"))
    csrf = re.search(r'name="csrf" value="([^"]+)"', body.decode())
    assert csrf is not None
    form = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": first}
    for wrong in ({"csrf": "x", "token": token}, {"csrf": csrf[1], "token": "hf_0"}):
        assert guarded.asked("POST", "/login", body=urlencode(wrong).encode(), headers=form)[0] in (401, 403)
    fields = urlencode({"csrf": csrf[1], "token": token, "next": "//evil.example"}).encode()
    status, headers, _ = guarded.asked("POST", "/login", body=fields, headers=form)
    assert (status, headers["location"]) == (303, "/")
    session = {"Cookie": headers["set-cookie"].partition(";")[0]}
    assert guarded.asked("GET", "/jobs", headers=session)[0] == 200
    name, _, value = session["Cookie"].partition("=")
    forged = {"Cookie": f"{name}={value[:-2]}xx"}
    assert guarded.asked("GET", "/jobs", headers=forged)[0] == 303
    guarded.service.tokens.revoke("carl")
    assert guarded.asked("GET", "/jobs", headers=session)[0] == 303


@pytest.mark.parametrize("path", ["//evil.example", "/\\evil.example", "https://evil.example", "/a?b=//c", "evil", ""])
def test_no_redirect_leads_elsewhere(path: str) -> None:
    assert own_path(path) == "/"
    assert own_path("/jobs/abc") == "/jobs/abc"


def test_requests_of_other_sites_and_for_other_hosts_change_nothing(server: Running) -> None:
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert server.asked("POST", f"{API}/jobs", JOB, headers=headers)[0] == 403
    assert server.asked("GET", f"{API}/jobs", headers={"Host": "evil.example"})[0] == 421
    assert (
        server.asked(
            "POST",
            "/submit",
            body=b"sequence=MKTAYIAKQR",
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )[0]
        == 403
    )


def test_html_in_every_name_is_text(server: Running) -> None:
    evil = '<script>alert("x")</script><img src=x onerror=alert(1)>'
    job = server.json("POST", f"{API}/jobs", {**JOB, "name": evil})["id"]
    for path in ("/", "/jobs", f"/jobs/{job}"):
        status, headers, body = server.asked("GET", path, headers={"Accept": "text/html"})
        assert status == 200
        assert b"<script>alert" not in body
        assert b"<img src=x" not in body
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "script-src 'self'" in policy
    _, _, page = server.asked("GET", f"/{evil.replace(' ', '%20')}", headers={"Accept": "text/html"})
    assert b"<script>alert" not in page
    claimed = server.claim()
    server.finish(claimed, {"report.html": b"<script>document.cookie</script>"})
    headers = server.asked("GET", f"/jobs/{claimed['id']}/files/report.html")[1]
    assert headers["content-security-policy"].startswith("sandbox ")
    assert "allow-same-origin" not in headers["content-security-policy"]
    directives = headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "connect-src 'none'", "form-action 'none'"} <= set(directives)


@pytest.mark.integration
def test_large_and_hostile_uploads_are_refused_and_the_queue_goes_on(server: Running) -> None:
    limit = server.service.settings.max_upload
    assert server.asked("POST", f"{API}/jobs", body=b"x", headers={"Content-Length": str(limit + 1)})[0] == 413
    bomb = base64.b64encode(gzip.compress(b">query\nMKTAYIAKQR\n" + b">a\nMKTAYIAKQR\n" * 400_000)).decode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.a3m", b"0" * 2**24)
    for content in (bomb, base64.b64encode(buffer.getvalue()).decode(), base64.b64encode(b"\0" * 1000).decode()):
        files = {"alignments": [{"name": "a.a3m.gz", "content": content, "encoding": "base64"}]}
        assert server.asked("POST", f"{API}/jobs", {**JOB, **files})[0] == 422
    deep = b"[" * 100_000
    assert server.asked("POST", f"{API}/jobs", body=deep, headers={"Content-Type": "application/json"})[0] == 413
    assert list((server.service.storage.directory / "jobs").glob("*/inputs")) == []
    assert server.json("POST", f"{API}/jobs", JOB)["state"] == "queued"


@pytest.mark.integration
def test_silent_connections_are_ended(tmp_path: Path) -> None:
    with running(tmp_path) as server, ExitStack() as stack:
        silent = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), timeout=60)))
            for _ in range(100)
        ]
        for number, connection in enumerate(silent):
            connection.sendall(b"" if number % 2 else b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        until(lambda: sum(map(len, list(server.connections.values()))) == 100)
        opened = [each for connections in server.connections.values() for each in connections]
        assert server.json("POST", f"{API}/jobs", JOB)["state"] == "queued"
        for protocol in opened:
            assert protocol._timer is not None
            assert protocol._timer.when() <= protocol.loop.time() + HEADER_SECONDS
            protocol.loop.call_soon_threadsafe(protocol._check)  # as when the time for a request's head is over
        for connection in silent:
            assert connection.recv(1000) == b""


@pytest.mark.integration
def test_slow_requests_are_ended(tmp_path: Path) -> None:
    with running(tmp_path, body_seconds=0.5) as server:
        slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        slow.putrequest("POST", f"{API}/jobs")
        slow.putheader("Content-Type", "application/json")
        slow.putheader("Content-Length", "1000")
        slow.endheaders(b'{"sequence": "')
        assert server.json("GET", f"{API}/jobs")["jobs"] == []
        assert slow.getresponse().status == 408
        slow.close()


@pytest.mark.integration
def test_webhooks_call_named_hosts_alone(tmp_path: Path) -> None:
    with running(tmp_path, webhook_host=("hooks.example:443",)) as server:
        for url in (
            *("http://127.0.0.1:22/", "http://169.254.169.254/latest", "https://hooks.example:8443/", "file:///etc/x"),
            *(
                "https://user@hooks.example/",
                "http://hooks.example/",
                "https://hooks.example.evil/",
                "https://[::1",
                "x",
            ),
        ):
            assert server.asked("POST", f"{API}/jobs", {**JOB, "webhook": url})[0] == 422, url
        assert server.asked("POST", f"{API}/jobs", {**JOB, "webhook": "https://hooks.example/done"})[0] == 201


def test_who_asks_too_often_waits() -> None:
    now = [0.0]
    limiter = RateLimiter(60, clock=lambda: now[0])
    assert [limiter.seconds_to_wait("a") for _ in range(60)] == [0.0] * 60
    assert limiter.seconds_to_wait("a") > 0
    assert limiter.seconds_to_wait("b") == 0
    now[0] = 1.5
    assert limiter.seconds_to_wait("a") == 0


def test_an_address_that_others_reach_demands_tokens(tmp_path: Path) -> None:
    for host, needs in (
        ("127.0.0.1", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("10.0.0.2", True),
    ):
        assert ServeSettings(data=tmp_path, host=host).needs_token == needs
    assert ServeSettings(data=tmp_path, behind_proxy=True).needs_token


def test_the_audit_log_tells_who_did_what(guarded: Running, tokens: dict[str, str]) -> None:
    job = guarded.json("POST", f"{API}/jobs", JOB, headers=bearer(tokens["anna"]))["id"]
    guarded.json("POST", f"{API}/jobs/{job}/cancel", headers=bearer(tokens["anna"]))
    newest = audit_lines(guarded.service.database, 2)
    assert [(line["user"], line["action"], line["job"]) for line in newest] == [
        ("anna", "cancel", job),
        ("anna", "submit", job),
    ]
    assert json.dumps(newest[0]["address"]) == '"127.0.0.1"'


def logged_in(server: Running, token: str) -> Browser:
    browser = Browser(server)
    browser.open("/login")
    assert browser.send("/login", token=token) == 303
    return browser


@pytest.mark.integration
def test_copy_of_a_cookie_is_worth_nothing_after_logout(tmp_path: Path) -> None:
    with running(tmp_path, require_tokens=True) as server:
        token = server.service.tokens.create("anna")
        browser, other = logged_in(server, token), logged_in(server, token)
        copied = browser.cookie
        assert browser.open("/") == 200
        assert browser.send("/logout") == 303
        assert server.asked("GET", "/jobs", headers={"Cookie": copied})[0] == 303
        assert other.open("/jobs") == 200
    with running(tmp_path, require_tokens=True) as server:  # also once the server was started again
        assert server.asked("GET", "/jobs", headers={"Cookie": copied})[0] == 303
        assert server.asked("GET", f"{API}/jobs", headers={"Cookie": copied})[0] == 401
        assert server.asked("GET", "/jobs", headers={"Cookie": other.cookie})[0] == 200


@pytest.mark.parametrize("revoked", ["erin", "its id"])
def test_shared_links_end_with_the_token_that_made_them(guarded: Running, revoked: str) -> None:
    tokens = guarded.service.tokens
    first, second = tokens.create("erin"), tokens.create("erin")
    job = guarded.json("POST", f"{API}/jobs", JOB, headers=bearer(first))["id"]
    links = [
        guarded.json("POST", f"{API}/jobs/{job}/share", headers=bearer(token))["path"] for token in (first, second)
    ]
    links.append(
        "/shared/" + guarded.service.shares.create(job, 1000)
    )  # as an earlier version kept it, without a token
    assert [guarded.asked("GET", link)[0] for link in links] == [200, 200, 200]
    tokens.revoke(revoked if revoked == "erin" else first.split("_")[1])
    expected = [404, 404, 404] if revoked == "erin" else [404, 200, 200]
    assert [guarded.asked("GET", link)[0] for link in links] == expected
    assert guarded.asked("GET", f"{links[0]}/archive")[0] == 404


def test_shared_link_lasts_no_longer_than_the_token_that_makes_it(guarded: Running) -> None:
    token = guarded.service.tokens.create("finn", seconds=3_600)
    job = guarded.json("POST", f"{API}/jobs", JOB, headers=bearer(token))["id"]
    expires = guarded.json("POST", f"{API}/jobs/{job}/share", headers=bearer(token))["expires"]
    assert expires == guarded.service.tokens.valid_token(token.split("_")[1]).expires  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["revoke", "logout"])
def test_open_event_stream_ends_with_the_right_to_see_it(guarded: Running, how: str) -> None:
    token = guarded.service.tokens.create("gina")
    browser = logged_in(guarded, token)
    job = guarded.json("POST", f"{API}/jobs", JOB, headers=bearer(token))["id"]
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=60)
    connection.request("GET", f"{API}/jobs/{job}/events", headers={"Cookie": browser.cookie})
    answer = connection.getresponse()
    assert answer.readline() == b"event: job\n"
    if how == "revoke":
        guarded.service.tokens.revoke("gina")
    else:
        browser.open("/")
        browser.send("/logout")
    with time_limit(120):  # a stream that goes on has signs of life for ever
        answer.read()
    connection.close()
    assert [job.state for job in guarded.service.views.history("gina")][:1] == ["queued"]


def test_waiting_for_a_structure_ends_with_the_token(guarded: Running) -> None:
    token = guarded.service.tokens.create("hans")
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=120)
    connection.request("POST", "/foldSequence/v1/pdb/", b"MKTAYIAKQR", bearer(token))
    while guarded.service.views.usage("hans").active_jobs == 0:
        time.sleep(0.01)
    guarded.service.tokens.revoke("hans")
    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.integration
def test_shared_links_begin_with_the_public_address_and_never_with_the_host_of_a_request(tmp_path: Path) -> None:
    evil = {"Host": "evil.example", "Accept": "text/html", "Content-Type": "application/x-www-form-urlencoded"}
    for name, public in (("a", None), ("b", "https://fold.example.org")):
        settings = {} if public is None else {"public_url": public}
        with running(tmp_path / name, behind_proxy=True, **settings) as server:
            token = server.service.tokens.create("anna")
            job = server.json("POST", f"{API}/jobs", JOB, headers=bearer(token))["id"]
            browser = logged_in(server, token)
            browser.open(f"/jobs/{job}")
            csrf = re.search(r'name="csrf" value="([^"]+)"', browser.text)
            assert csrf is not None
            body = urlencode({"csrf": csrf[1]}).encode()
            status, _, page = server.asked(
                "POST", f"/jobs/{job}/share", body=body, headers={**evil, "Cookie": browser.cookie}
            )
            link = re.search(r'href="([^"]*)/shared/[^"]+"', page.decode())
            assert link is not None
            assert (status, link[1]) == (200, public or "")
            assert b"evil.example" not in page
            assert b"http://" not in page
            headers = {**bearer(token), "Host": "evil.example"}
            found = server.json("POST", f"{API}/jobs/{job}/share", headers=headers)
            assert found["url"] == (None if public is None else public + found["path"])
            for path in ("/jobs/", f"{API}/jobs/"):  # no redirect to an address that is made of the header
                assert "location" not in server.asked("GET", path, headers=headers)[1]


@pytest.mark.parametrize(
    "url", ["fold.example.org", "https://a/b", "https://user@a", "ftp://a", "https://a:x", "https://"]
)
def test_public_address_that_is_none_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="public address"):
        ServeSettings(data=tmp_path, public_url=url)


@pytest.mark.integration
def test_service_is_known_by_the_host_of_its_public_address(tmp_path: Path) -> None:
    with running(tmp_path, public_url="https://fold.example.org") as server:
        for host, status in (("fold.example.org", 200), ("127.0.0.1", 200), ("evil.example", 421)):
            assert server.asked("GET", "/", headers={"Host": host})[0] == status
