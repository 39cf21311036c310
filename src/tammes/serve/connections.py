"""Connections: how many at once, and how long each may be silent or slow.

uvicorn's own protocol reads requests and writes answers; here its connections are counted and timed.
"""

import asyncio
import re
import sys
from collections.abc import Callable
from typing import Any

from cachetools import TTLCache
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from tammes.io.console import printable
from tammes.serve.limits import Limits

_QUIET = 10.0  # seconds until the log has another line about the same


class Connections:
    """All connections of a server. Where there are too many, the longest idle one gives way to a new one."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.open = limits, set[Connection]()
        self._most = max(2, min(limits.connections, _open_files() // 4))
        self._said: TTLCache[str, None] = TTLCache(1000, _QUIET)

    def admit(self, new: "Connection") -> None:
        idle = {each.idle_since: each for each in self.open if each.idle_since is not None}
        self.open.add(new)
        if len(self.open) > self._most:
            self.log(f"more than {self._most} connections at once: {'idle' if idle else 'new'} ones are closed")
            if idle:
                oldest = idle[min(idle)]
                self.open.discard(oldest)
                oldest.close()
            else:
                new.app = service_unavailable

    def log(self, text: str) -> None:
        """One line, and not another of its kind at once: who is at fault must not fill the log."""
        kind = re.sub(r"\d", "", text)
        if kind not in self._said:
            self._said[kind] = None
            print(f"tammes: {printable(text)}.", file=sys.stderr, flush=True)

    def handle_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What went wrong outside of a request, as an `accept` where no file can be opened, in one line."""
        error = context.get("exception")
        self.log(f"{context['message']}{'' if error is None else f' ({type(error).__name__}: {error})'}")


class Connection(H11Protocol):
    """A connection with limits on the time to send a request and to receive the answer.

    Attributes:
        idle_since: when the last answer ended, or the connection began; None while a request is answered.
    """

    def __init__(self, all_of_them: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = all_of_them
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.admit(self)
        self._wait()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:  # a request: all of it has to come in, and the answer to be taken, in time
            self.idle_since, limits = None, self._all.limits
            self._limit(limits.upload_seconds + limits.seconds + limits.header_seconds, self.transport.abort)

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()  # which begins the next request where that has come already

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._all.open.discard(self)
        super().connection_lost(exc)

    def close(self) -> None:
        """Close it, and do not wait longer for the client to take in what is left."""
        self.transport.close()
        self._limit(self._all.limits.header_seconds, self.transport.abort)

    def _wait(self) -> None:
        """For the next request."""
        self.idle_since = self.loop.time()
        self._limit(self._all.limits.header_seconds, self.close)

    def _limit(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, then)


def _open_files() -> int:
    """How many files this process may have open."""
    if sys.platform == "win32":
        return 512
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
