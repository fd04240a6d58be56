"""Counts for Prometheus, in its text format."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from helixfold.serve.queue.jobs import JobState
from helixfold.serve.service import Service

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_STATES: Final[tuple[JobState, ...]] = ("queued", "running", "done", "failed", "cancelled", "expired")


class RequestCounts:
    """Numbers of requests by method, route and status, and how long their answers took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._numbers: Counter[str] = Counter()

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request; methods that HTTP does not have are one."""
        method = method if method in _METHODS else "OTHER"
        with self._lock:
            self._requests[method, route, status] += 1
            self._sums[route] += seconds
            self._numbers[route] += 1
            for bucket in _BUCKETS:
                self._buckets[route, bucket] += seconds <= bucket

    def lines(self) -> Iterator[str]:
        """Yield the lines of these counts."""
        with self._lock:
            requests, buckets = dict(self._requests), dict(self._buckets)
            sums, numbers = dict(self._sums), dict(self._numbers)
        yield "# TYPE helixfold_requests_total counter"
        for (method, route, status), count in sorted(requests.items()):
            labels = _labels(method=method, route=route, status=status)
            yield f"helixfold_requests_total{labels} {count}"
        yield "# TYPE helixfold_request_seconds histogram"
        for route in sorted(numbers):
            for bucket in _BUCKETS:
                yield f"helixfold_request_seconds_bucket{_labels(route=route, le=bucket)} {buckets[route, bucket]}"
            yield f"helixfold_request_seconds_bucket{_labels(route=route, le='+Inf')} {numbers[route]}"
            yield f"helixfold_request_seconds_sum{_labels(route=route)} {sums[route]:.6f}"
            yield f"helixfold_request_seconds_count{_labels(route=route)} {numbers[route]}"


def metrics(service: Service, counts: RequestCounts) -> str:
    """Return the text of all metrics of a service."""
    jobs: Mapping[Any, int] = service.views.counts()
    lines = ["# TYPE helixfold_jobs gauge"]
    for kind in ("prediction", "alignment"):
        for state in _STATES:
            lines.append(f"helixfold_jobs{_labels(kind=kind, state=state)} {jobs.get((kind, state), 0)}")
    lines += [
        "# TYPE helixfold_workers gauge",
        f"helixfold_workers {len(service.workers.present())}",
        "# TYPE helixfold_start_time_seconds gauge",
        f"helixfold_start_time_seconds {service.started:.0f}",
        *counts.lines(),
    ]
    return "\n".join(lines) + "\n"


def _labels(**values: object) -> str:
    shown = (f'{name}="{_escaped(str(value))}"' for name, value in values.items())
    return "{" + ",".join(shown) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
