"""An MMseqs2 server on this machine that answers as a test tells it to."""

import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from data_pipeline.search.server_archive import ENVIRONMENTAL_FILE, PAIRED_FILE, UNIREF_FILE

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "MockServer"

    def do_GET(self) -> None:
        kinds = {"ticket": "state", "template": "structures"}
        self.server.paths.append(self.path)
        self.server.answer(kinds.get(self.path.split("/")[1], "download"), self)

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode(), keep_blank_values=True)
        self.server.queries.append({key: values[0] for key, values in form.items()})
        self.server.endpoints.append(self.path)
        self.server.agents.add(self.headers["User-Agent"])
        self.server.answer("submit", self)

    def send(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


class MockServer(ThreadingHTTPServer):
    """Answers each kind of request ("submit", "state", "download", "structures") from its list, the last for ever."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, list[Answer]] = {"submit": [state("PENDING")], "state": [state("COMPLETE")]}
        self.answers["download"] = [lambda handler: handler.send(archive(self.results()))]
        self.answers["structures"] = [failing(404)]
        self.requests: list[str] = []
        self.paths: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.endpoints: list[str] = []
        self.agents: set[str] = set()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, kind: str, handler: Handler) -> None:
        with self.lock:
            self.requests.append(kind)
            answers = self.answers[kind]
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
        answer(handler)

    def asked(self) -> dict[str, str]:
        """The numbered sequences of the last query."""
        words = self.queries[-1]["q"].split()
        return {name[1:]: sequence for name, sequence in zip(words[::2], words[1::2], strict=True)}

    def results(self) -> dict[str, bytes]:
        """Alignments of everything that was asked for: a row from UniRef and one from elsewhere, or pairs."""
        mode = self.queries[-1]["mode"]
        if mode.startswith("pair"):
            blocks = (("P", 2), ("Q", 1)) if mode.endswith("-env") else (("P", 2),)
            return {PAIRED_FILE: b"".join(paired_block(self.asked(), *block) for block in blocks)}
        files = {}
        for name, letter in ((UNIREF_FILE, "U"), (ENVIRONMENTAL_FILE, "E")):
            parts = [
                f">{number}\n{sequence}\n>{letter}{number}\t99\n-{sequence[1:]}\n"
                for number, sequence in self.asked().items()
            ]
            files[name] = "".join(f"{part}\0" for part in parts).encode()
        return files

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections that a test cuts are no news."""


def paired_block(sequences: Mapping[str, str], letter: str, rows: int) -> bytes:
    """Paired rows of one database, so many for each numbered sequence."""
    parts = []
    for number, sequence in sequences.items():
        pairs = "".join(f">{letter}{number}_{row}\t99\n-{sequence[1:]}\n" for row in range(rows))
        parts.append(f">{number}\n{sequence}\n{pairs}\0")
    return "".join(parts).encode()


@contextmanager
def mock_server() -> Iterator[MockServer]:
    with MockServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def state(status: str, **other: str) -> Answer:
    return lambda handler: handler.send(json.dumps({"id": "ticket_1-A", "status": status, **other}).encode())


def failing(status: int, content: bytes = b"sorry", **headers: str) -> Answer:
    return lambda handler: handler.send(content, status, **headers)


def archive(files: dict[str, bytes], *others: tarfile.TarInfo) -> bytes:
    """A tar.gz of these files, behind other members."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as tar:
        for member in others:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()
