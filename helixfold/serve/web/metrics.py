"""Counts for Prometheus, in its text format."""

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

from helixfold.serve.queue.jobs import JobState
from helixfold.serve.service import Service

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_STATES: Final[tuple[JobState, ...]] = ("queued", "running", "done", "failed", "cancelled", "expired")


class Metrics:
    """Counts of jobs, workers and requests of a service, and its response times."""

    def __init__(self, service: Service) -> None:
        disable_created_metrics()  # a second series for each of the counts
        self._service = service
        self._registry = registry = CollectorRegistry()
        self._jobs = Gauge("helixfold_jobs", "Jobs", ("kind", "state"), registry=registry)
        workers = Gauge("helixfold_workers", "Workers that are present", registry=registry)
        workers.set_function(lambda: len(service.workers.present()))
        started = Gauge("helixfold_start_time_seconds", "Start of the server, since 1970", registry=registry)
        started.set(service.started)
        self._requests = Counter("helixfold_requests", "Requests", ("method", "route", "status"), registry=registry)
        self._seconds = Histogram(
            "helixfold_request_seconds", "Seconds to answer", ("route",), buckets=_BUCKETS, registry=registry
        )

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request; methods that HTTP does not have are one."""
        method = method if method in _METHODS else "OTHER"
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics as they are now."""
        jobs = self._service.views.counts()
        for kind in ("prediction", "alignment"):
            for state in _STATES:
                self._jobs.labels(kind, state).set(jobs.get((kind, state), 0))
        return generate_latest(self._registry)
