"""A file server on this machine that can be told to misbehave."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Behaviour:
    """How the server answers; lists hold one entry per request, and afterwards it behaves well."""

    content: bytes
    parts: bool = True  # whether it knows Range
    cuts: list[int | None] = field(default_factory=list)  # bytes after which the connection breaks
    statuses: list[int] = field(default_factory=list)  # answers instead of the content; 0 is none
    versions: list[str] = field(default_factory=list)  # ETags
    stalls: int = 0  # requests whose content comes only once there is another request
    shift: int = 0  # sends parts that start so much later than asked for
    ranges: list[str] = field(default_factory=list)  # what was asked for
    sent: int = 0


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    """The address of a server with this behaviour."""
    asked_again = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            behaviour.ranges.append(wanted)
            if len(behaviour.ranges) > behaviour.stalls:
                asked_again.set()
            status = behaviour.statuses.pop(0) if behaviour.statuses else 0
            if status:
                self.send_error(status)
                return
            total = len(behaviour.content)
            start = (
                int(wanted.removeprefix("bytes=").partition("-")[0] or 0) + behaviour.shift if behaviour.parts else 0
            )
            self.send_response(206 if behaviour.parts and wanted else 200)
            if behaviour.parts and wanted:
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            self.send_header("Content-Length", str(total - start))
            self.send_header("ETag", behaviour.versions.pop(0) if behaviour.versions else '"1"')
            self.end_headers()
            if len(behaviour.ranges) <= behaviour.stalls:
                asked_again.wait()
            cut = behaviour.cuts.pop(0) if behaviour.cuts else None
            self._send(behaviour.content[start:] if cut is None else behaviour.content[start : start + cut])
            if cut is not None:
                self.connection.shutdown(socket.SHUT_RDWR)

        def _send(self, body: bytes) -> None:
            try:
                for at in range(0, len(body), 2**16):
                    self.wfile.write(body[at : at + 2**16])
                    behaviour.sent += len(body[at : at + 2**16])
            except OSError:  # the client has what it wanted
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/params.tar"
    finally:
        asked_again.set()
        server.shutdown()
        server.server_close()
        thread.join()
