"""`tammes serve`: the page and the JSON API of a gallery, and the reports of runs."""

import sys
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from tammes.cli.console import optional
from tammes.errors import UserError
from tammes.io.console import print_json, printable, working

if TYPE_CHECKING:
    from tammes.serve.gallery import Watched


@dataclass(frozen=True)
class Serve:
    """Search a gallery in the browser, by pictures dropped, pasted, chosen or taken; and by a JSON API.

    Listens on this machine only. Other machines need --host and a --token, and should come through a proxy that speaks
    https. The API is described at /api, with commands to type; /metrics is for Prometheus. Ctrl-C or SIGTERM stops it,
    after the answers that are under way.

    For example:

    tammes serve gallery

    tammes serve gallery runs --port 8080 --open

    tammes serve runs

    openssl rand -hex 16 > token.txt && tammes serve gallery --host 0.0.0.0 --token-file token.txt
    """

    what: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="GALLERY | RUN | RUNS…")]
    """A gallery, and folders of runs whose reports are served."""
    host: str = "127.0.0.1"
    """Where it listens; any address that others can reach needs --token."""
    port: int = 8000
    """0 takes one that is free."""
    token: Annotated[str | None, optional("TEXT")] = None
    """What a client has to know: `Authorization: Bearer TEXT`, or typed in once in the browser."""
    token_file: Annotated[Path | None, optional("FILE")] = None
    """The same, from the first line of a file, where other users of this machine cannot see it."""
    model: Annotated[Path | None, optional("RUN")] = None
    """Where the run is that made the gallery, if it has moved."""
    max_upload: float = 20.0
    """The largest request, in MB."""
    max_pixels: float = 20.0
    """The largest picture, in millions of pixels; the page makes larger ones smaller before it sends them."""
    rate: float = 30.0
    """Requests a second that one client may make over time; 0: no limit."""
    device: Literal["auto", "cpu"] = "auto"
    """auto takes a GPU if there is one."""
    open: bool = False
    """Open it in the browser."""
    json: bool = False
    """Say where it listens as one JSON object."""


def serve(config: Serve) -> None:
    """Serve until it is stopped."""
    try:
        from tammes.serve.limits import Limits
        from tammes.serve.server import address_of, check_address, listen
        from tammes.serve.server import serve as serve_site
        from tammes.serve.state import Site
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tammes"):
            raise
        raise UserError(f"serving needs {error.name}: pip install 'tammes[web]'") from None
    token = _token(config)
    check_address(config.host, token)
    limits = Limits(
        upload_bytes=_millions(config.max_upload), upload_pixels=_millions(config.max_pixels), rate=config.rate
    ).with_room_for_its_pixels()
    listening = listen(config.host, config.port)
    try:
        gallery, folders = _sorted_out(config)
        site = Site(gallery, folders, limits, token=token)
        address = address_of(listening)
        stopped_by = serve_site(site, listening, config.host, lambda: _ready(config, gallery, address))
    finally:
        listening.close()
    print("stopped.", file=sys.stderr)
    if stopped_by == 2:  # Ctrl-C
        raise SystemExit(130)


def _sorted_out(config: Serve) -> "tuple[Watched | None, list[Path]]":
    """The gallery, and the folders of runs."""
    from tammes.serve.gallery import Watched
    from tammes.serve.reports import has_reports

    if not config.what:
        raise UserError("what? For example: tammes serve gallery. `tammes index` makes one.")
    folders = [Path(each) for each in config.what if "://" not in each and has_reports(Path(each))]
    galleries = [each for each in config.what if "://" in each or Path(each) not in folders]
    if len(galleries) > 1:
        missing = [each for each in galleries if "://" not in each and not Path(each).exists()]
        if missing:
            raise UserError(f"no such gallery or folder of runs: {', '.join(missing)}.")
        raise UserError(f"one gallery at a time: got {' and '.join(galleries)}. Start another server for the other.")
    if not galleries:
        if config.model is not None:
            raise UserError("--model is for a gallery, and only reports are served.")
        return None, folders
    with working("reading the gallery"):
        watched = Watched(galleries[0], config.model, config.device)
    run = watched.now.opened.run.folder
    if not any(run.resolve().is_relative_to(folder.resolve()) for folder in folders) and (run / "report.html").exists():
        folders.append(run)  # the model that searches has a report: it belongs to it
    return watched, folders


def _millions(number: float) -> int:
    return int(number * 1e6) if isfinite(number) else 0


def _token(config: Serve) -> str | None:
    if config.token_file is None:
        return config.token
    if config.token is not None:
        raise UserError("--token and --token-file say the same: give one of them.")
    try:
        lines = config.token_file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--token-file {config.token_file} cannot be read: {error}.") from None
    if not lines or not lines[0].strip():
        raise UserError(f"--token-file {config.token_file} is empty: its first line is the token.")
    return lines[0].strip()


def _ready(config: Serve, gallery: "Watched | None", address: str) -> None:
    if config.json:
        print_json({"address": address, "items": len(gallery.now.catalogue) if gallery is not None else None})
    elif gallery is not None:
        catalogue = gallery.now.catalogue
        classes = f" in {catalogue.num_classes:,} classes" if catalogue.num_classes else ""
        print(f"{printable(gallery.now.name)}: {len(catalogue):,} images{classes}\n{address}  (Ctrl-C stops it)")
    else:
        print(f"{address}/runs  (Ctrl-C stops it)")
    sys.stdout.flush()
    if config.open:
        import webbrowser

        webbrowser.open(address)
