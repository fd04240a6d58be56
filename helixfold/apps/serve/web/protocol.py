"""End connections on which no request arrives or no answer is read, and idle ones where there are too many."""

import asyncio
import socket
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from helixfold.apps.serve.web.request_limits import network_of

HEADER_SECONDS: Final = 20.0
UNREAD_LOOKS: Final = 2  # once every `HEADER_SECONDS`
MAX_CONNECTIONS: Final = 1_000
MAX_CONNECTIONS_OF_ADDRESS: Final = 200


class TimedProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn, with a time within which the head of each request has to arrive.

    Where there are too many connections, one of the same address, or of the address that has most, is closed for a new
    one: the one that has been idle for longest, or the newest one if none is idle.
    """

    _timer: asyncio.TimerHandle | None = None
    _last_cycle: Any = None  # the request that was the last one when the timer ended last
    _address = ""
    _unread_looks = 0  # of the timer, at which the client had not read an answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count the time; close another connection, or this one, if there are too many."""
        super().connection_made(transport)
        # asyncio does this only for sockets that were opened with the number of TCP. Otherwise the body of an answer
        # waits 40 ms for the client to acknowledge the head.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer = self.loop.call_later(HEADER_SECONDS, self._look)
        self._address = network_of(self.client[0]) if self.client is not None else ""
        state = self.config.app.state  # type: ignore[union-attr]  # of `create_app`
        # By address; of each one, those that have been idle for longest come first.
        self._open: dict[str, dict[TimedProtocol, None]] = state.connections
        own = self._open.setdefault(self._address, {})
        own[self] = None
        # Behind a proxy, all connections are the proxy's.
        if len(own) > MAX_CONNECTIONS_OF_ADDRESS and not state.service.settings.behind_proxy:
            self._make_room(own)
        elif sum(map(len, self._open.values())) > MAX_CONNECTIONS:
            self._make_room(max(self._open.values(), key=len))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting."""
        if self._timer is not None:
            self._timer.cancel()
        self._forget()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Count as idle from now on."""
        super().on_response_complete()
        own = self._open.get(self._address, {})
        if self in own:
            del own[self]
            own[self] = None

    def _make_room(self, connections: "dict[TimedProtocol, None]") -> None:
        victim = next((each for each in connections if each.is_idle() and each is not self), [*connections][-1])
        victim._forget()
        victim.transport.abort()  # its client need not read what was sent before there is room

    def _forget(self) -> None:
        own = self._open.get(self._address, {})
        own.pop(self, None)
        if not own:
            self._open.pop(self._address, None)

    def is_idle(self) -> bool:
        """Return whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def resume_writing(self) -> None:
        """Write on, since the client has read most of what it was sent."""
        super().resume_writing()
        self._unread_looks = 0

    def _look(self) -> None:
        """End the connection if no request has come since the last look, or no answer was read for some looks."""
        self._timer = self.loop.call_later(HEADER_SECONDS, self._look)
        is_unread = self.flow.write_paused or self.transport.is_closing()
        self._unread_looks = self._unread_looks + 1 if is_unread else 0
        if self._unread_looks > UNREAD_LOOKS:
            self.transport.abort()
        elif self.is_idle() and self.cycle is self._last_cycle and not self.transport.is_closing():
            self.transport.close()
        self._last_cycle = self.cycle
