"""Headers that every answer carries, and the log and the counts of requests."""

import json
import logging
import time
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from helixfold.serve.web.metrics import Metrics

LOGGER: Final = logging.getLogger("helixfold.serve")
# Pages load nothing but this service's own style and script, and are in nobody's frame.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Without a referrer, browsers send forms of these pages as if they came from nowhere.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ResponseHeaders:
    """Middleware that adds the headers which an answer does not set itself, counts it, and writes one line of log."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and complete its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def completed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, completed)
        finally:
            seconds = time.perf_counter() - start
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.add(scope["method"], route, status, seconds)
            client = scope.get("client") or ("", 0)
            # A path may hold the secret of a shared link, its route does not.
            line = {
                "event": "request",
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
                "address": client[0],
            }
            LOGGER.info(json.dumps(line))
