"""A server in a thread of the test, without workers of its own, and what the tests ask of it."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn

from helixfold.apps.serve.http_client import HttpClient
from helixfold.apps.serve.queue.workers import WorkerOffers
from helixfold.apps.serve.service import Service
from helixfold.apps.serve.settings import ServeSettings
from helixfold.apps.serve.web.app import create_app
from helixfold.apps.serve.web.protocol import TimedProtocol

WORKER = "/api/v1/worker"
OFFERS = {
    "device": "cpu",
    "models": ["tiny"],
    "forecasts": {"tiny": {"points": [[64, 1.0, 2**28], [256, 8.0, 2**30]], "longest": 500, "recycles": 3}},
}


@dataclass
class Running:
    """A server that runs, at an address, and its service, at which tests look behind its back."""

    service: Service
    port: int
    worker_token: str
    connections: dict[str, dict[TimedProtocol, None]]  # open ones, by the address of the client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers (lower case) and the body of an answer, whatever it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        sent = dict(headers or {})
        if content is not None:
            body = json.dumps(content).encode()
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, content: Any = None, **others: Any) -> Any:
        """The JSON of an answer that must be a good one."""
        status, _, body = self.asked(method, path, content, **others)
        assert status < 300, (status, body)
        return json.loads(body) if body else None

    def as_worker(self, method: str, path: str, claimed: Mapping[str, Any] | None = None, **others: Any) -> Any:
        """The JSON of an answer to a worker, about a claimed job; raise `ServerError` for a refusal."""
        lease = {} if claimed is None else {"X-Lease": claimed["lease"]}
        place = path if claimed is None else f"/jobs/{claimed['id']}{path}"
        answer = HttpClient(self.url, self.worker_token).request(method, WORKER + place, headers=lease, **others)
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.json() if is_json else answer.body

    def claim(self, kinds: tuple[str, ...] = ("prediction",), wait: float = 0) -> Any:
        """A job as a worker claims it, or None."""
        return self.as_worker("POST", "/claim", content={"name": "test", "kinds": list(kinds), "wait": wait}) or None

    def finish(self, claimed: Mapping[str, Any], files: Mapping[str, bytes], **summary: Any) -> None:
        """Send the result of a claimed job, as a worker does."""
        for path, content in files.items():
            self.as_worker("PUT", f"/results/{path}", claimed, body=content)
        self.as_worker("POST", "/finish", claimed, content={"summary": summary, "files": len(files)})


def until(happened: Callable[[], object]) -> None:
    """Wait until something has happened, at most so long that only a test that fails takes as long."""
    end = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def running(directory: Path, *, offers: Mapping[str, Any] | None = OFFERS, **settings: Any) -> Iterator[Running]:
    """A server with these settings, at which one worker has said hello."""
    service = Service.open(replace(ServeSettings(data=directory, port=0), **settings))
    app = create_app(service)
    config = uvicorn.Config(
        app, port=0, http=TimedProtocol, loop="asyncio", ws="none", lifespan="off", log_config=None, access_log=False
    )
    config.load()
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        if offers is not None:
            service.workers.record_message("local/test", WorkerOffers.model_validate(offers))
        state = app.state
        yield Running(service, socket.getsockname()[1], state.worker_token, state.connections)
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        socket.close()
        service.close()
