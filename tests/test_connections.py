"""Predictions connect to no server that was not named, and no client of a server gives credentials away."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.io.errors import SearchError
from data_pipeline.search.alignment_server import AlignmentServer, ServerOptions
from helixfold.apps.serve.http_client import HttpClient, ServerError
from helixfold.cli.main import main
from helixfold.weights.download import download_parameters


class Server(ThreadingHTTPServer):
    """Answers 404 or redirects a GET, and keeps the headers of all requests."""

    daemon_threads = True

    def __init__(self, location: str | None) -> None:
        self.location, self.headers = location, list[dict[str, str]]()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(404 if self.server.location is None else 302)
        self.send_header("Location", self.server.location or "")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


@contextmanager
def serving(location: str | None = None) -> Iterator[Server]:
    with Server(location) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(client: str, url: str, folder: Path) -> None:
    """Ask for something that the server does not have."""
    if client == "search":
        with pytest.raises(SearchError, match="404"):
            AlignmentServer(ServerOptions(url=url)).fetch("archive", lambda file: file.read())
    elif client == "weights":
        with pytest.raises(ValueError, match="404"):
            download_parameters(["tiny"], directory=folder / "weights", url=url, progress=False)
    else:
        with pytest.raises(ServerError):
            HttpClient(url, "secret").request("GET", "/api")


def test_predictions_connect_only_to_the_server_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[object] = []
    connect = socket.socket.connect

    def record(connection: socket.socket, address: Any) -> None:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            addresses.append(address)
        connect(connection, address)

    def look_up(host: str, *others: object, **options: object) -> list[object]:
        addresses.append(host)
        raise socket.gaierror

    monkeypatch.setattr(socket.socket, "connect", record)
    monkeypatch.setattr("helixfold.apps.predict.postprocess.write_plots", lambda *_: None)
    fasta = tmp_path / "x.fasta"
    fasta.write_text(">a\nMKTAYIAKQR\n")
    command = ["predict", str(fasta), "--models", "tiny", "--num-recycles", "0"]
    with serving() as server:
        assert main([*command, "--output", str(tmp_path / "searched"), "--msa-server", server.url]) != 0
        assert set(addresses) == {("127.0.0.1", server.server_port)}
    addresses.clear()
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert main([*command, "--output", str(tmp_path / "alone")]) == 0
    assert addresses == []


@pytest.fixture(autouse=True)
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ".netrc"
    path.write_text("default login me password precious\n")
    path.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(path))


@pytest.mark.parametrize("client", ["search", "weights"])
def test_netrc_passwords_are_not_sent(client: str, tmp_path: Path) -> None:
    with serving() as other, serving(f"{other.url}/there") as server:
        ask(client, server.url, tmp_path)
        assert len(server.headers) == len(other.headers) == 1
        assert not [name for name in (*server.headers[0], *other.headers[0]) if "auth" in name]


@pytest.mark.parametrize("client", ["search", "weights"])
def test_a_password_in_an_address_is_sent_only_to_its_origin(client: str, tmp_path: Path) -> None:
    with serving() as other, serving(f"{other.url.replace('://', '://name:word@')}/there") as server:
        ask(client, server.url.replace("://", "://me:p%40ss@"), tmp_path)
        assert server.headers[0]["authorization"] == "Basic bWU6cEBzcw=="
        assert not [name for name in other.headers[0] if "auth" in name]


def test_the_token_of_a_service_does_not_follow_redirects(tmp_path: Path) -> None:
    with serving() as other, serving(f"{other.url}/there") as server:
        ask("service", server.url, tmp_path)
        assert server.headers[0]["authorization"] == "Bearer secret"
        assert other.headers == []
        with pytest.raises(ServerError, match=f"it redirects to {other.url}/there"):
            HttpClient(server.url).request("GET", "/api")
