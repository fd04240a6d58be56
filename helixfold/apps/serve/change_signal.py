"""A signal by which any thread wakes up waiting coroutines."""

import asyncio
import threading


class ChangeSignal:
    """Wakes up the coroutines that wait for a change. A change that nobody waits for has no effect."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def notify(self) -> None:
        """Wake up all waiting coroutines."""
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait(self, seconds: float) -> None:
        """Wait until `notify` is called, or until `seconds` have passed; the caller does not learn which."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.add(waiter)
        try:
            await asyncio.wait_for(waiter[1].wait(), seconds)
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._waiting.discard(waiter)
