"""Close connections whose client sends no request or reads no answer, and idle connections if there are too many."""

import asyncio
import socket
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from helixfold.apps.serve.web.request_limits import network_of

HEADER_SECONDS: Final = 20.0  # between checks; an idle connection without a new request since the last one is closed
UNREAD_CHECKS: Final = 2  # at intervals of `HEADER_SECONDS`
MAX_CONNECTIONS: Final = 1_000
MAX_CONNECTIONS_OF_ADDRESS: Final = 200  # not limited behind a proxy


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with a time limit for the head of each request, and limits for connections.

    If there are too many connections, a new one replaces another of the same address, or of the address with the most
    connections: the one that has been idle for the longest time, or the newest if none is idle.
    """

    _timer: asyncio.TimerHandle | None = None
    _last_cycle: Any = None  # the last request at the previous check
    _address = ""
    _unread_checks = 0  # successive checks at which the client had not read an answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer, and send small packets without delay. Close another connection if there are too many.

        If no other connection is idle, the newest one is closed, which is usually this one.
        """
        super().connection_made(transport)
        # asyncio sets this option only for sockets with an explicit protocol number. Without it, the body of an answer
        # waits 40 ms until the client acknowledges the head.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer = self.loop.call_later(HEADER_SECONDS, self._check)
        self._address = network_of(self.client[0]) if self.client is not None else ""
        state = self.config.app.state  # type: ignore[union-attr]  # of `create_app`
        # Connections by address, in the order in which they became idle.
        self._open_connections: dict[str, dict[TimedProtocol, None]] = state.connections
        same_address = self._open_connections.setdefault(self._address, {})
        same_address[self] = None
        # Behind a proxy, all connections have the proxy's address.
        if len(same_address) > MAX_CONNECTIONS_OF_ADDRESS and not state.service.settings.behind_proxy:
            self._make_room(same_address)
        elif sum(map(len, self._open_connections.values())) > MAX_CONNECTIONS:
            self._make_room(max(self._open_connections.values(), key=len))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, and remove the connection from the list."""
        if self._timer is not None:
            self._timer.cancel()
        self._forget()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Mark the connection as idle from now on."""
        super().on_response_complete()
        same_address = self._open_connections.get(self._address, {})
        if self in same_address:
            del same_address[self]
            same_address[self] = None

    def _make_room(self, connections: "dict[TimedProtocol, None]") -> None:
        """Close one of these connections: the one that has been idle longest, or the newest."""
        victim = next((each for each in connections if each.is_idle() and each is not self), [*connections][-1])
        victim._forget()
        victim.transport.abort()  # does not wait for the client to read what was sent

    def _forget(self) -> None:
        """Remove this connection from the open connections of its address."""
        same_address = self._open_connections.get(self._address, {})
        same_address.pop(self, None)
        if not same_address:
            self._open_connections.pop(self._address, None)

    def is_idle(self) -> bool:
        """Return whether the connection has no unanswered request."""
        return self.cycle is None or self.cycle.response_complete

    def resume_writing(self) -> None:
        """Continue writing after the client has read most of the data."""
        super().resume_writing()
        self._unread_checks = 0

    def _check(self) -> None:
        """Close the connection if no request has come since the last check, or no answer was read for some checks."""
        self._timer = self.loop.call_later(HEADER_SECONDS, self._check)
        is_unread = self.flow.write_paused or self.transport.is_closing()
        self._unread_checks = self._unread_checks + 1 if is_unread else 0
        if self._unread_checks > UNREAD_CHECKS:
            self.transport.abort()
        elif self.is_idle() and self.cycle is self._last_cycle and not self.transport.is_closing():
            self.transport.close()
        self._last_cycle = self.cycle
