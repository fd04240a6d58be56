"""A signal from any thread that something has changed, for which coroutines wait."""

import asyncio
import threading


class ChangeSignal:
    """Wakes up the coroutines that wait for a change; one that comes while nobody waits is not kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def changed(self) -> None:
        """Wake up all that wait."""
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait(self, seconds: float) -> None:
        """Wait for a change, at most for so many seconds."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.add(entry)
        try:
            await asyncio.wait_for(entry[1].wait(), seconds)
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._waiting.discard(entry)
