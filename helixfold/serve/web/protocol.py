"""End connections on which no request arrives: a thousand of them would otherwise stay for ever."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS: Final = 20.0
MOST_CONNECTIONS: Final = 1_000


class TimedProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn, with a time within which the head of each request has to arrive."""

    _timer: asyncio.TimerHandle | None = None
    _last_cycle: Any = None  # the request that was the last one when the timer ended last

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count the time; refuse a connection where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.close()
            return
        self._count()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _count(self) -> None:
        self._timer = self.loop.call_later(HEADER_SECONDS, self._look)

    def _look(self) -> None:
        """End the connection if nothing is being answered, and no request has come since the last look."""
        cycle: Any = self.cycle
        is_idle = cycle is None or cycle.response_complete
        if is_idle and cycle is self._last_cycle:
            if not self.transport.is_closing():
                self.transport.close()
            return
        self._last_cycle = cycle
        self._count()
