"""The server process: it stops on SIGTERM or Ctrl-C after the requests in progress."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGINT
from types import FrameType
from typing import Any, Literal, cast

import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tammes.errors import UserError
from tammes.gallery.trust import trust
from tammes.io.console import printable, say, working
from tammes.serve.app import application
from tammes.serve.connections import Connections
from tammes.serve.gallery import GalleryWatcher
from tammes.serve.reports import has_reports
from tammes.serve.state import ServerState

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SHORTEST_TOKEN = 12
_NAMED = 5  # folders in a note


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(token: str | None, file: Path | None) -> str | None:
    """The token, or the first line of a file; None without both."""
    if file is None:
        return token
    if token is not None:
        raise UserError("`token` and `token_file` are two ways to give one secret: use one of them.")
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"`token_file={str(file)!r}` cannot be read: {error}.") from None
    if not lines or not lines[0].strip():
        raise UserError(f"`token_file={str(file)!r}` is empty: its first line is the token.")
    return lines[0].strip()


def open_sources(
    what: Sequence[str], model: str | Path | None, on: Literal["auto", "cpu"], *, trust_roots: bool = False
) -> tuple[GalleryWatcher | None, list[Path]]:
    """The gallery and the folders of runs to serve, including the run of the gallery's model.

    Args:
        model: the model of the gallery, if it was moved or is not recorded.
        trust_roots: trust all folders that the gallery names, from now on.
    """
    if not what:
        raise UserError("serve what? For example: tammes serve gallery. `tammes index` makes one.")
    folders = [Path(each) for each in what if "://" not in each and has_reports(Path(each))]
    galleries = [each for each in what if "://" in each or Path(each) not in folders]
    if len(galleries) > 1:
        missing = [each for each in galleries if "://" not in each and not Path(each).exists()]
        if missing:
            raise UserError(f"no such gallery or folder of runs: {', '.join(missing)}.")
        raise UserError(f"one gallery at a time: got {' and '.join(galleries)}. Start another server for the other.")
    if not galleries:
        for name, given in (("model", model is not None), ("trust_roots", trust_roots)):
            if given:
                raise UserError(f"`{name}` is for a gallery, and only reports are served.")
        return None, folders
    with working("reading the gallery"):
        watcher = GalleryWatcher(galleries[0], model, on)
    if trust_roots:
        trust(galleries[0], watcher.current.store.about.roots)
    elif untrusted := watcher.current.untrusted_roots():
        named = ", ".join(map(printable, untrusted[:_NAMED])) + (", …" if len(untrusted) > _NAMED else "")
        say(
            f"note: {galleries[0]} names folders that were not indexed into it here: {named}. Their images are shown as"
            " thumbnails only. If they may be served whole: tammes serve GALLERY --trust-roots"
        )
    run = None if watcher.current.run is None else watcher.current.run.folder
    if run is None:
        return watcher, folders
    if not any(run.resolve().is_relative_to(folder.resolve()) for folder in folders) and (run / "report.html").exists():
        folders.append(run)
    return watcher, folders


def check_address(host: str, token: str | None) -> None:
    """Raise UserError for a host that others can reach without a valid token."""
    if token is not None and len(token) < _SHORTEST_TOKEN:
        raise UserError(
            f"a token of {len(token)} characters can be guessed: it must have {_SHORTEST_TOKEN} or more."
            " For example: openssl rand -hex 16 > token.txt, and `token_file='token.txt'`"
        )
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise UserError("a token may have only plain letters, digits and punctuation: it is sent in a header.")
    if token is None and not is_loopback(host):
        raise UserError(
            f"`host={host!r}` lets other machines in: that needs a token. For example: openssl rand -hex 16 >"
            f" token.txt, and `host={host!r}` with `token_file='token.txt'`"
        )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one."""
    if not 0 <= port <= 65535:
        raise UserError(f"`port` must be 0 to 65535, got {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
        # Connections have it from here. Without it the end of an answer waits for the client to confirm its beginning.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, UnicodeError) as error:  # the latter of what cannot be the name of a host
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[0]  # as Python goes on
        raise UserError(
            f"cannot listen at {host}, port {port}: {why}. Choose another: `port=0` takes one that is free."
        ) from None


def address_of(listening: socket.socket) -> str:
    """The URL for a browser."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def read_proxies(text: str | None) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """The addresses and networks of proxies, from a list with commas."""
    try:
        return [ipaddress.ip_network(each.strip()) for each in (text or "").split(",") if each.strip()]
    except ValueError as error:
        raise UserError(
            f"`proxy={text}`: {error}. Give the addresses that proxies connect from, such as 127.0.0.1 or 10.0.0.0/8."
        ) from None


class Server(uvicorn.Server):
    """Serves until SIGTERM or Ctrl-C; requests in progress are finished first.

    Attributes:
        signal: what ended it.
    """

    def __init__(
        self,
        state: ServerState,
        host: str,
        ready: Callable[[], None] = lambda: None,
        proxies: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = (),
    ) -> None:
        """Args:
        ready: called when requests are answered.
        proxies: whose word is taken for who a client is (X-Forwarded-For).
        """
        # Who has the token may use any name, such as that of a proxy.
        hosts = {*_LOOPBACK, host} if is_loopback(host) and state.token is None else None
        app: Any = application(state, hosts=hosts)
        if proxies:
            app = ProxyHeadersMiddleware(app, [str(each) for each in proxies])
        self.connections = Connections(state.limits, proxies)
        config = uvicorn.Config(
            self.connections.around(app),
            http="h11",
            ws="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # whatever the environment says: those of `proxies` alone are believed
            timeout_keep_alive=int(state.limits.header_seconds) or 1,
            timeout_graceful_shutdown=int(state.limits.seconds + state.limits.upload_seconds),
        )
        config.load()
        config.http_protocol_class = cast(
            "type[asyncio.Protocol]", self.connections.protocol(config.http_protocol_class)
        )
        super().__init__(config)
        # What is wrong with a form is told to who sent it; an untrusted client does not write into our log.
        logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
        self._state, self._ready = state, ready
        self.signal = 0

    def serve_at(self, listening: socket.socket) -> int:
        """Serve until it is stopped; returns the signal that ended it."""
        from threadpoolctl import threadpool_limits

        # A search is one product of a matrix and a vector: two threads of it wait for each other where a core is busy.
        with threadpool_limits(1, user_api="blas"), suppress(SystemExit):  # uvicorn's way to say it has not started
            self.run(sockets=[listening])
        if not self.started:
            raise UserError(f"the server could not start: {self._state.failed}.") from self._state.failed
        return self.signal

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self.connections.handle_exception)
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Not uvicorn's own, which sends itself the signal once more at the end; the second Ctrl-C does not wait."""
        self.signal = self.signal or sig
        self.force_exit = self.should_exit and sig == SIGINT
        self.should_exit = True
