"""The middleware of every request: host, token, rate and body size are checked before the body is read; time limits;

error responses; security headers.
"""

import asyncio
import hmac
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import ceil
from time import monotonic, perf_counter
from urllib.parse import urlsplit

from cachetools import LRUCache
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tammes.serve.errors import FAULT, RequestError, error_response
from tammes.serve.limits import Limits
from tammes.serve.telemetry import Telemetry

COOKIE = "tammes_token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script';"
    " trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without one, browsers would not say which page sends a form
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}
_CHEAP = ("/static/", "/api/health")  # and images: a page shows many of them
_CHEAP_COST = 0.05
_CLIENTS = 10_000  # whose requests are counted
_LINGER = 5.0  # seconds, for a client that is still sending when it is refused
_WITH_IMAGE = ("/api/search", "/search")  # the others have short bodies
_OPEN = ("/api/health", "/static/", "/login")  # to be reached without a token


class RequestMiddleware:
    """Checks and limits around an ASGI application."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        telemetry: Telemetry,
        *,
        token: str | None = None,
        hosts: Iterable[str] | None = None,
        respond: Callable[[Request, RequestError], Response],
    ) -> None:
        """Args:
        hosts: the allowed host names; None for any. The check prevents DNS rebinding: a page of another site, opened on
            this machine, could otherwise let its own name point here and read what is served.
        respond: creates the error response, JSON for a program, a page for a person.
        """
        self._app, self._limits, self._telemetry, self._token = app, limits, telemetry, token
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._respond = respond
        self._clients: LRUCache[str, tuple[float, float]] = LRUCache(_CLIENTS)  # what each has left, and since when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, method = perf_counter(), scope["method"]
        scope = _simplified(scope)
        request = Request(scope)
        body = _Body(receive, request.headers, self._limits, image=scope["path"] in _WITH_IMAGE)
        answer = _Response(send, body)
        self._telemetry.under_way.inc()
        try:
            try:
                self._check(request)
                await self._answer(scope, body, answer)
            except RequestError as error:
                await self._refuse(request, answer, error)
            except ClientDisconnect:
                pass  # nobody is left to answer
            except Exception:  # a fault of ours: the log gets the details, the client does not
                traceback.print_exc(file=sys.stderr)
                if not answer.started:
                    await self._refuse(request, answer, RequestError(500, FAULT))
        finally:
            self._telemetry.under_way.dec()
            route = getattr(scope.get("route"), "path", "other")
            method = method if method in _METHODS else "other"
            self._telemetry.requests.labels(route, method, str(answer.status)).inc()
            self._telemetry.seconds.labels(route).observe(perf_counter() - began)

    async def _answer(self, scope: Scope, body: "_Body", answer: "_Response") -> None:
        """Answer in time: one limit for the body to arrive, another from there on."""
        seconds = self._limits.seconds
        body.check_length()
        try:
            async with asyncio.timeout(seconds + (self._limits.upload_seconds if body.expected else 0)) as limit:
                body.when_whole = lambda: limit.reschedule(asyncio.get_running_loop().time() + seconds)
                await self._app(scope, body.receive, answer.send)
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestError(504, f"this took longer than {seconds:g} seconds.", retry_after=5) from None

    def _check(self, request: Request) -> None:
        path = request.scope["path"]  # not `request.url`, which is made from it and the Host header
        if self._hosts is not None and _host(request) not in self._hosts:
            raise RequestError(421, "this server is not known by that name. Use the address that it printed.")
        cheap = path.startswith(_CHEAP) or path.endswith(("/thumbnail", "/image"))
        self._limit_rate(request.client.host if request.client else "", _CHEAP_COST if cheap else 1.0)
        if self._token is not None and not path.startswith(_OPEN) and not self._has_token(request):
            raise RequestError(
                401, "a token is needed: send `Authorization: Bearer TOKEN`, or open /login in a browser."
            )
        if _of_another_site(request):
            raise RequestError(403, "pages of other sites may not send anything here.")

    def _has_token(self, request: Request) -> bool:
        assert self._token is not None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same_token(given.strip(), self._token):
            return True
        kept = request.cookies.get(COOKIE)
        return kept is not None and same_token(kept, cookie_of(self._token))

    def _limit_rate(self, client: str, cost: float) -> None:
        """A token bucket for each client: it fills at the rate, and each request takes from it."""
        rate = self._limits.rate
        if not rate:
            return
        now, most = monotonic(), max(1.0, rate * self._limits.burst)  # at least one request fits in
        left, since = self._clients.get(client, (most, now))
        left = min(most, left + (now - since) * rate)
        enough = left >= cost
        self._clients[client] = (left - cost if enough else left, now)
        if not enough:
            raise RequestError(
                429,
                f"more than {rate:g} requests a second from one client. Try again in a moment.",
                retry_after=ceil((cost - left) / rate),
            )

    async def _refuse(self, request: Request, answer: "_Response", error: RequestError) -> None:
        if answer.started:  # part of it is sent: the client sees that it was cut off
            raise ConnectionAbortedError(error.detail)
        response = self._respond(request, error)
        await response(request.scope, _nothing, answer.send)


_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


class _Response:
    """The response: records its status and adds the security headers."""

    def __init__(self, send: Send, body: "_Body | None") -> None:
        self._send, self._body = send, body
        self.started = False
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        elif self.status >= 400 and self._body is not None:
            # A client that still sends when the connection is closed would not see why it was refused.
            await self._send({**message, "more_body": True})
            if not message.get("more_body", False):
                await self._body.drain()
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        await self._send(message)


class _Body:
    """The body of a request, with limits on its size and time."""

    def __init__(self, receive: Receive, headers: Headers, limits: Limits, *, image: bool) -> None:
        self._receive, self._limits, self._image = receive, limits, image
        self._most = limits.upload_bytes if image else min(limits.other_bytes, limits.upload_bytes)
        self._bytes = 0
        self._until: float | None = None
        self._whole = False
        self.when_whole: Callable[[], None] = lambda: None
        """Called once, when all of it is there."""
        self._length = headers.get("content-length", "0")
        self.expected = "transfer-encoding" in headers or self._length != "0"

    def check_length(self) -> None:
        """Refuse a body that declares too large a size, before any of it is read."""
        if self._length.isdecimal() and int(self._length) > self._most:
            raise self._too_large()

    async def drain(self) -> None:
        """Read and discard the rest, for a limited time."""
        if not self.expected or self._whole:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_LINGER, self._limits.upload_seconds)):
                while not self._whole:
                    message = await self._receive()
                    self._whole = message["type"] == "http.disconnect" or not message.get("more_body", False)

    async def receive(self) -> Message:
        if self._until is None:
            self._until = monotonic() + self._limits.upload_seconds
        try:
            async with asyncio.timeout(max(0.0, self._until - monotonic())) as limit:
                message = await self._receive()
        except TimeoutError:
            if not limit.expired():
                raise
            seconds = f"{self._limits.upload_seconds:g}"
            raise RequestError(408, f"the body of the request took longer than {seconds} seconds to arrive.") from None
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._most:
            raise self._too_large()
        if not message.get("more_body", False):
            self._until = float("inf")  # all that can follow is that the client has gone
            if self.expected and not self._whole:
                self.when_whole()
            self._whole = True
        return message

    def _too_large(self) -> RequestError:
        smaller = " Make the image smaller." if self._image else ""
        return RequestError(413, f"this request may have up to {self._most / 1e6:g} MB.{smaller}")


def _simplified(scope: Scope) -> Scope:
    """The request without Range, and with HEAD as GET, whose body the server leaves out."""
    headers = [each for each in scope["headers"] if each[0] != b"range"]
    return {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"], "headers": headers}


def same_token(given: str, token: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def cookie_of(token: str) -> str:
    """The value of the cookie, from which the token cannot be computed."""
    return hmac.new(token.encode(), b"tammes-cookie", "sha256").hexdigest()


def _of_another_site(request: Request) -> bool:
    """Whether a page of another site sends this request (CSRF). Following a link from another site is allowed."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return request.method not in ("GET", "HEAD") and site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and origin.lower().partition("://")[2] != request.headers.get("host", "").lower()


def _host(request: Request) -> str:
    try:
        return (urlsplit(f"//{request.headers.get('host', '')}").hostname or "").lower()
    except ValueError:
        return ""


async def busy(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of a connection beyond the limit."""
    request = Request(scope)
    response = error_response(
        request, RequestError(503, "too many connections at once. Try again in a moment.", retry_after=1)
    )
    response.headers["Connection"] = "close"
    await response(scope, receive, _Response(send, None).send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
