"""Headers of all answers, the log of requests, and metrics for Prometheus."""

import json
import logging
import time
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from helixfold.apps.serve.queue.jobs import JobState
from helixfold.apps.serve.service import Service

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4  # of the metrics
_HISTOGRAM_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_COUNTED_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_JOB_STATES: Final[tuple[JobState, ...]] = ("queued", "running", "done", "failed", "cancelled", "expired")


class Metrics:
    """Counts of jobs, workers and requests of a service, and its response times."""

    def __init__(self, service: Service) -> None:
        disable_created_metrics()  # which would add a series for each counter
        self._service = service
        self._registry = registry = CollectorRegistry()
        self._jobs = Gauge("helixfold_jobs", "Jobs", ("kind", "state"), registry=registry)
        workers = Gauge("helixfold_workers", "Workers that are present", registry=registry)
        workers.set_function(lambda: len(service.workers.present()))
        started = Gauge("helixfold_start_time_seconds", "Start of the server, since 1970", registry=registry)
        started.set(service.started)
        self._requests = Counter("helixfold_requests", "Requests", ("method", "route", "status"), registry=registry)
        self._seconds = Histogram(
            "helixfold_request_seconds", "Seconds to answer", ("route",), buckets=_HISTOGRAM_SECONDS, registry=registry
        )

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request and add its duration to the response times. Unknown methods are counted as "OTHER".

        `route` is the pattern of the path, `status` the status of the answer.
        """
        method = method if method in _COUNTED_METHODS else "OTHER"
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return the current metrics in Prometheus's text format."""
        jobs = self._service.views.counts()
        for kind in ("prediction", "alignment"):
            for state in _JOB_STATES:
                self._jobs.labels(kind, state).set(jobs.get((kind, state), 0))
        return generate_latest(self._registry)


LOGGER: Final = logging.getLogger("helixfold.apps.serve")
# Pages load only the style sheet and script of this service, and cannot be shown in frames of other sites.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Without a referrer, browsers send forms of these pages with the origin "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ResponseHeaders:
    """Middleware that adds default headers to each answer, counts the request, and writes a log line."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add the headers to its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - start
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.add(scope["method"], route, status, seconds)
            client = scope.get("client") or ("", 0)
            # The path may contain the secret of a shared link; the route does not.
            line = {
                "event": "request",
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
                "address": client[0],
            }
            LOGGER.info(json.dumps(line))
