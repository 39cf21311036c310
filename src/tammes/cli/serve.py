"""`tammes serve`: the page and the JSON API of a gallery, and the reports of runs."""

import sys
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from tammes.cli.console import optional
from tammes.cli.options import Device, Json, MadeBy
from tammes.errors import UserError
from tammes.io.console import print_json, printable

if TYPE_CHECKING:
    from tammes.serve.gallery import GalleryWatcher


@dataclass(frozen=True)
class Serve:
    """Search a gallery in the browser, or through a JSON API.

    Query images can be dropped, pasted, chosen or taken with a camera. The server listens on this machine only. To let
    other machines in, give --host and a --token, and put an https proxy in front. The API is documented at /api, with
    commands to copy; /metrics is for Prometheus. Ctrl-C or SIGTERM stops the server after the requests in progress.

    For example:
        tammes serve gallery
        tammes serve gallery runs --port 8080 --open
        tammes serve runs
        openssl rand -hex 16 > token.txt && tammes serve gallery --host 0.0.0.0 --token-file token.txt
    """

    what: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="GALLERY | RUN | RUNS…")]
    """A gallery, and folders of runs whose reports are shown."""
    host: str = "127.0.0.1"
    """The address to listen on; one that other machines can reach needs --token."""
    port: int = 8000
    """The port to listen on; 0 picks a free one."""
    token: Annotated[str | None, optional("TEXT")] = None
    """A secret that every client must send: `Authorization: Bearer TEXT`, or type once in the browser."""
    token_file: Annotated[Path | None, optional("FILE")] = None
    """The same, read from the first line of a file, so that other users of this machine do not see it."""
    model: MadeBy = None
    proxy: Annotated[str | None, optional("ADDRESS,…")] = None
    """Addresses of a proxy in front of the server, such as 127.0.0.1. X-Forwarded-For and X-Forwarded-Proto are
    believed only from there, so that limits apply to its clients and not to the proxy."""
    trust_roots: bool = False
    """Serve the files of all folders that the gallery names, even of those that you have not indexed into it on this
    machine. This is remembered in your own configuration."""
    max_upload: float = 20.0
    """Largest request, in MB."""
    max_pixels: float = 20.0
    """Largest image, in millions of pixels; the page shrinks larger ones before sending them."""
    rate: float = 30.0
    """Requests per second that one client may make on average; 0 is no limit."""
    device: Device = "auto"
    open: bool = False
    """Open the page in the browser."""
    json: Json = False


def serve(config: Serve) -> None:
    """Serve until it is stopped."""
    try:
        from tammes.serve import server
        from tammes.serve.limits import Limits
        from tammes.serve.state import ServerState
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tammes"):
            raise
        raise UserError(f"serving needs {error.name}: pip install 'tammes[web]'") from None
    token = server.read_token(config.token, config.token_file)
    server.check_address(config.host, token)
    proxies = server.read_proxies(config.proxy)
    limits = Limits(
        upload_bytes=_millions(config.max_upload), upload_pixels=_millions(config.max_pixels), rate=config.rate
    ).with_room_for_its_pixels()
    listening = server.listen(config.host, config.port)
    try:
        gallery, folders = server.open_sources(config.what, config.model, config.device, trust_roots=config.trust_roots)
        state = ServerState(gallery, folders, limits, token=token)
        address = server.address_of(listening)
        ready = partial(_ready, config, gallery, address)
        stopped_by = server.Server(state, config.host, ready, proxies).serve_at(listening)
    finally:
        listening.close()
    print("stopped.", file=sys.stderr)
    if stopped_by == 2:  # Ctrl-C
        raise SystemExit(130)


def _millions(number: float) -> int:
    return int(number * 1e6) if isfinite(number) else 0


def _ready(config: Serve, watcher: "GalleryWatcher | None", address: str) -> None:
    gallery = None if watcher is None else watcher.current
    if config.json:
        print_json({"address": address, "items": None if gallery is None else len(gallery)})
    elif gallery is None:
        print(f"{address}/runs  (Ctrl-C stops it)")
    else:
        number = gallery.rows.num_classes
        classes = f" in {number:,} classes" if number else ""
        print(
            f"{printable(gallery.name)}: {len(gallery):,} {gallery.items_word}{classes}\n{address}  (Ctrl-C stops it)"
        )
    sys.stdout.flush()
    if config.open:
        import webbrowser

        webbrowser.open(address)
