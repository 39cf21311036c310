"""Limits on connections: their number, also per address, and how long each may be idle or slow.

uvicorn's protocol, which reads requests and writes answers, is wrapped here: calls of asyncio are passed on to it. An
ASGI wrapper around the application signals when a request begins and ends.
"""

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

from cachetools import TTLCache
from starlette.types import ASGIApp, Receive, Scope, Send

from tammes.io.console import printable
from tammes.serve.limits import Limits
from tammes.serve.middleware import busy

_SHARE = 4  # one address has no more than one in so many connections
_QUIET = 10.0  # seconds until the log has another line about the same


class Connections:
    """All connections of a server. If there are too many, an idle one is closed for a new one."""

    def __init__(self, limits: Limits, proxies: Sequence[IPv4Network | IPv6Network] = ()) -> None:
        """Args:
        proxies: whose connections are those of many clients.
        """
        self.limits, self._proxies = limits, proxies
        self._most = max(2, min(limits.connections, _open_files() // 4))
        self._open: dict[Any, _Connection] = {}
        self._said: TTLCache[str, None] = TTLCache(1000, _QUIET)

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self, inner: Callable[..., asyncio.Protocol]) -> Callable[..., asyncio.Protocol]:
        """A factory of protocols for new connections, around uvicorn's."""
        return lambda **options: _Connection(self, inner(**options))

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, with its requests tracked at their connections."""

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            found = self._open.get(tuple(scope.get("client") or ())) if scope["type"] == "http" else None
            if found is None:
                await app(scope, receive, send)
            elif found.refused:
                await busy(scope, receive, send)
            else:
                with found.answering():
                    await app(scope, receive, send)

        return noted

    def admit(self, new: "_Connection") -> bool:
        """Whether to accept a connection, possibly only to answer that there are too many."""
        if len(self._open) >= 2 * self._most:
            self.log("too many connections at once: some were closed at once")
            return False
        self._open[new.address] = new
        counts = Counter(each.host for each in self._open.values())
        # Behind a proxy are many clients.
        alone = counts[new.host] > max(1, self._most // _SHARE) and not self._is_proxy(new.host)
        if alone or len(self._open) > self._most:
            most = new.host if alone else counts.most_common(1)[0][0]
            idle = [each for each in self._open.values() if each.idle_since is not None and each is not new]
            if alone:
                idle = [each for each in idle if each.host == most]
            # The longest idle, of the address that has most.
            idle.sort(key=lambda each: (each.host != most, each.idle_since))
            self.log(f"{counts[most]} connections of {most} at once: {'idle' if idle else 'new'} ones are closed")
            if idle:
                self.forget(idle[0])
                idle[0].close()
            else:
                new.refused = True
        return True

    def forget(self, connection: "_Connection") -> None:
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]

    def log(self, text: str) -> None:
        """Log a line, rate-limited per kind of message, so that clients cannot fill the log."""
        kind = re.sub(r"\d", "", text)
        if kind not in self._said:
            self._said[kind] = None
            print(f"tammes: {printable(text)}.", file=sys.stderr, flush=True)

    def handle_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log errors outside of requests in one line, such as a failed `accept`."""
        error = context.get("exception")
        self.log(f"{context['message']}{'' if error is None else f' ({type(error).__name__}: {error})'}")

    def _is_proxy(self, host: str) -> bool:
        try:
            return any(ip_address(host) in each for each in self._proxies)
        except ValueError:
            return False


class _Connection(asyncio.Protocol):
    """A connection with limits on the time to send a request and to receive the answer.

    Attributes:
        idle_since: when the last answer ended, or the connection began; None while a request is answered.
        refused: whether it is one too many, and is told so.
    """

    def __init__(self, all_of_them: Connections, inner: asyncio.Protocol) -> None:
        self._all, self._inner = all_of_them, inner
        self._limits, self._loop = all_of_them.limits, asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._admitted = False
        self.refused = False
        self.idle_since: float | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self.address = tuple((transport.get_extra_info("peername") or ("", id(self)))[:2])
        self.host = str(self.address[0])
        self._admitted = self._all.admit(self)
        if not self._admitted:
            transport.abort()
            return
        self._inner.connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._admitted:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._admitted else None

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._all.forget(self)
        if self._admitted:
            self._inner.connection_lost(exc)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """The block in which a request is answered, with a limit on its total time."""
        self._stop_timer()
        self.idle_since = None
        whole = self._limits.upload_seconds + self._limits.seconds + self._limits.header_seconds
        self._timer = self._loop.call_later(whole, self._transport.abort)
        try:
            yield
        finally:
            self._wait()

    def close(self) -> None:
        """Close the connection, and abort it if the client does not read the rest in time."""
        self._stop_timer()
        self._transport.close()
        self._timer = self._loop.call_later(self._limits.header_seconds, self._transport.abort)

    def _wait(self) -> None:
        """Wait for the next request, with a time limit."""
        self._stop_timer()
        self.idle_since = self._loop.time()
        self._timer = self._loop.call_later(self._limits.header_seconds, self.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _open_files() -> int:
    """The limit of open files of this process."""
    if sys.platform == "win32":
        return 512
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
