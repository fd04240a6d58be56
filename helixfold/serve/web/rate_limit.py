"""Limit how many requests a user, or an address without one, makes in a minute."""

import ipaddress
import threading
import time
from collections.abc import Callable

_MOST_KNOWN = 10_000


class RateLimiter:
    """A bucket for each user that holds the requests of a minute and fills again evenly."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}  # requests that are left, and since when

    def seconds_to_wait(self, key: str) -> float:
        """Take one request of a bucket; return 0, or after how many seconds there will be one."""
        now, rate = self._clock(), self._per_minute / 60
        with self._lock:
            if len(self._buckets) >= _MOST_KNOWN and key not in self._buckets:
                self._buckets = {
                    name: (left, since)
                    for name, (left, since) in self._buckets.items()
                    if left + rate * (now - since) < self._per_minute
                }
            left, since = self._buckets.get(key, (float(self._per_minute), now))
            left = min(self._per_minute, left + rate * (now - since))
            is_allowed = left >= 1
            self._buckets[key] = (left - is_allowed, now)
        return 0.0 if is_allowed else (1 - left) / rate


def network_of(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, or the /64 that a host with IPv6 has at least."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    mapped = found.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
